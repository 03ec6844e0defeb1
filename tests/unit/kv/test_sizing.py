"""Sizes of Objects and manifests, and the warnings about them."""

from dataclasses import replace

import pytest

from kvcs.kv import (
    Layout,
    Manifest,
    ManifestCadence,
    Segment,
    manifest_bytes,
    manifest_traffic_bytes,
    size_warnings,
)


@pytest.mark.parametrize(("layers", "blocks", "tracks"), [(0, 1, 2), (2, 30, 2), (1, 50, 1)])
def test_the_estimate_is_close_to_the_encoded_size(layers, blocks, tracks, descriptor):
    segment = Segment(
        segment=0,
        first_block=0,
        blocks=blocks,
        block_keys_sha256=bytes(32),
        tracks=("k.raw.s0", "v.raw.s0")[:tracks],
    )
    for _ in range(layers):
        segment = segment.with_layer(dict.fromkeys(segment.tracks, [bytes(32)] * blocks))

    encoded = len(Manifest(compat=descriptor, segments=(segment,)).encode())

    assert abs(manifest_bytes(layers, blocks, tracks=tracks) - encoded) < 200


def test_a_long_context_in_small_blocks_costs_44_megabytes():
    assert manifest_bytes(80, 65536 // 16) == pytest.approx(44e6, rel=0.01)


def test_all_versions_together_are_about_one_percent_at_eighty_layers():
    data_bytes = 80 * 512 * 2 * 32 * 1024

    every_eight = manifest_traffic_bytes(80, 512)
    every_layer = manifest_traffic_bytes(80, 512, cadence=ManifestCadence(every=1))

    assert every_eight / data_bytes == pytest.approx(0.011, rel=0.05)
    assert every_layer / data_bytes == pytest.approx(0.083, rel=0.05)


def test_the_last_version_is_counted_once_and_always():
    assert manifest_traffic_bytes(3, 1) == sum(manifest_bytes(done, 1) for done in (0, 1, 2, 3))
    assert manifest_traffic_bytes(4, 1) == sum(manifest_bytes(done, 1) for done in (0, 1, 2, 4))


def test_sensible_sizes_give_no_warning(descriptor):
    sensible = Layout(replace(descriptor, layers=32, block_tokens=16))

    assert size_warnings(sensible, 64) == ()


@pytest.mark.parametrize(
    ("block_tokens", "reason"),
    [(4, "Objects of 8192 octets: below 16384"), (1024, "Objects of 2097152 octets: above")],
)
def test_objects_outside_the_advised_sizes_give_a_warning(block_tokens, reason, descriptor):
    (warning,) = size_warnings(Layout(replace(descriptor, block_tokens=block_tokens)), 1)

    assert reason in warning


@pytest.mark.parametrize("block_tokens", [8, 512])
def test_the_advised_sizes_are_inclusive(block_tokens, descriptor):
    assert size_warnings(Layout(replace(descriptor, block_tokens=block_tokens)), 1) == ()


def test_a_large_manifest_gives_a_warning(descriptor):
    layout = Layout(replace(descriptor, layers=80, block_tokens=16))

    (warning,) = size_warnings(layout, 512)

    assert "a manifest version of 5489440 octets, above 1048576" in warning
