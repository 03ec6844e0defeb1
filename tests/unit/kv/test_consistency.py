"""Whether a manifest belongs to a publication, to a prompt, and to the version before it."""

import json
from dataclasses import dataclass, replace

import pytest

from kvcs.errors import KeyMismatch, ManifestError
from kvcs.kv import (
    KVSP_PROVISIONAL,
    RAW,
    Component,
    DataTrackName,
    ScopeKey,
    Segment,
    check_anchor,
    check_identity,
    check_segment_keys,
    check_successor,
    matching_blocks,
    parse_manifest,
    select_tracks,
)


@pytest.fixture
def manifest(members):
    return parse_manifest(json.dumps(members).encode())


def test_the_descriptor_must_be_the_one_of_the_namespace(manifest, name, scope_key, descriptor):
    check_identity(manifest, name, scope_key, KVSP_PROVISIONAL)

    other = replace(manifest, compat=replace(descriptor, weights_sha256="99" * 32))
    with pytest.raises(KeyMismatch, match="another model"):
        check_identity(other, name, scope_key, KVSP_PROVISIONAL)


def test_an_unknown_member_of_the_descriptor_counts(manifest, name, scope_key, descriptor):
    other = replace(manifest, compat=replace(descriptor, extra={"more": 1}))

    with pytest.raises(KeyMismatch, match="another model"):
        check_identity(other, name, scope_key, KVSP_PROVISIONAL)


def test_a_publication_of_another_scope_is_refused(manifest, name):
    with pytest.raises(KeyMismatch, match="another scope"):
        check_identity(manifest, name, ScopeKey(bytes(32)), KVSP_PROVISIONAL)


def test_segment_0_ends_with_the_anchor_key(manifest, name, block_keys):
    check_anchor(manifest, name, block_keys)

    wrong = replace(name, anchor_key=block_keys[4])
    with pytest.raises(KeyMismatch, match="Anchor Key"):
        check_anchor(manifest, wrong, block_keys)


def test_segment_0_has_exactly_the_blocks_that_an_index_says(manifest, block_keys):
    blocks = manifest.segments[0].blocks
    check_segment_keys(manifest, block_keys[:blocks])
    check_segment_keys(manifest, ())
    check_segment_keys(replace(manifest, segments=()), block_keys)

    for lie in (block_keys[: blocks - 1], block_keys, block_keys[:blocks][::-1]):
        with pytest.raises(KeyMismatch, match="index"):
            check_segment_keys(manifest, lie)


@pytest.mark.parametrize("known", [0, 2])
def test_the_anchor_key_is_not_checked_without_the_keys_of_segment_0(
    known, manifest, name, block_keys
):
    check_anchor(manifest, replace(name, anchor_key=bytes(32)), block_keys[:known])


def test_the_anchor_key_is_not_checked_without_segments_or_for_other_tokens(
    manifest, name, block_keys
):
    check_anchor(replace(manifest, segments=()), name, block_keys)
    check_anchor(manifest, replace(name, anchor_key=bytes(32)), block_keys[::-1])


@pytest.mark.parametrize(
    ("known", "unvouched", "vouched"),
    [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 3, 3), (4, 3, 4), (5, 5, 5)],
)
def test_a_segment_is_used_in_part_only_when_vouched_for(
    known, unvouched, vouched, manifest, block_keys
):
    assert matching_blocks(manifest, block_keys[:known]) == unvouched
    assert matching_blocks(manifest, block_keys[:known], vouched=True) == vouched


def test_more_keys_than_blocks_match_all_blocks(manifest, block_keys):
    assert matching_blocks(manifest, [*block_keys, bytes(32)]) == 5


@pytest.mark.parametrize("vouched", [False, True])
def test_a_segment_of_other_tokens_is_not_used_nor_any_after_it(vouched, manifest, block_keys):
    other = bytes(32)

    assert matching_blocks(manifest, [other, *block_keys[1:]], vouched=vouched) == 0
    assert matching_blocks(manifest, [*block_keys[:4], other], vouched=vouched) == 3


def test_a_later_version_may_add(manifest):
    first = replace(manifest.segments[0], complete=False, object_digests={})
    versions = [replace(manifest, segments=()), replace(manifest, segments=(first,))]
    digests = manifest.segments[0].object_digests["k.raw.s0"]
    versions.append(versions[-1].with_segment(first.with_layer({"k.raw.s0": digests[0]})))
    versions.append(manifest)
    tracks = (*manifest.segments[1].tracks, "kv.more.s1")
    versions.append(manifest.with_segment(replace(manifest.segments[1], tracks=tracks)))
    versions.append(replace(versions[-1], extra={"note": 1}))

    for number, older in enumerate(versions):
        for newer in versions[number:]:
            check_successor(older, newer)


def test_a_later_version_may_not_change_the_publication(manifest, descriptor):
    for newer in (
        replace(manifest, deterministic=True),
        replace(manifest, compat=replace(descriptor, position="other")),
    ):
        with pytest.raises(ManifestError, match="changes compat or deterministic"):
            check_successor(manifest, newer)


def test_a_later_version_may_not_take_back_a_segment(manifest):
    with pytest.raises(ManifestError, match="takes back a segment"):
        check_successor(manifest, replace(manifest, segments=manifest.segments[:1]))


def test_a_later_version_may_not_change_a_segment(manifest):
    first = manifest.segments[0]
    groups = first.object_digests["k.raw.s0"]
    others = (groups[0][::-1], groups[1])
    for change in (
        {"block_keys_sha256": bytes(32)},
        {"tracks": ("v.raw.s0", "k.raw.s0")},
        {"tracks": ("k.raw.s0",), "object_digests": {}},
        {"complete": False},
        {"object_digests": {}},
        {"object_digests": {"k.raw.s0": groups}},
        {"object_digests": {**first.object_digests, "v.raw.s0": others}},
        {"complete": False, "object_digests": {"k.raw.s0": groups[:1]}},
    ):
        newer = manifest.with_segment(replace(first, **change))
        with pytest.raises(ManifestError, match="changes segment 0"):
            check_successor(manifest, newer)


def test_a_later_version_may_not_move_the_blocks_of_a_segment(manifest):
    last = replace(manifest.segments[1], blocks=3)

    with pytest.raises(ManifestError, match="changes segment 1"):
        check_successor(manifest, manifest.with_segment(last))


@dataclass(frozen=True)
class Lossy:
    """A codec only as far as choosing tracks looks at it."""

    name: str
    number: int = 7
    lossy: bool = True


CODECS = {"raw": RAW, "tight": replace(Lossy("tight"), lossy=False), "small": Lossy("small")}


@pytest.mark.parametrize(
    ("tracks", "allow_lossy", "chosen"),
    [
        ("k.raw v.raw", False, "k.raw v.raw"),
        ("v.raw k.raw", False, "k.raw v.raw"),
        ("kv.raw k.raw v.raw", False, "kv.raw"),
        ("k.raw v.raw kv.raw", False, "k.raw v.raw"),
        ("k.raw kv.tight v.raw", False, "kv.tight"),
        ("k.raw v.tight v.raw k.tight", False, "k.raw v.raw"),
        ("k.small v.small k.raw v.raw", False, "k.raw v.raw"),
        ("k.small v.small k.raw v.raw", True, "k.small v.small"),
        ("kv.small k.raw v.raw", False, "k.raw v.raw"),
        ("kv.small k.raw v.raw", True, "kv.small"),
        ("kv.unknown k.raw v.raw", True, "k.raw v.raw"),
        ("K.raw k.raw V.raw v.raw", False, "k.raw v.raw"),
        ("k.raw", False, None),
        ("k.raw v.tight", False, None),
        ("kv.unknown", True, None),
        ("kv.small", False, None),
        ("K.raw V.raw", False, None),
        ("", False, None),
    ],
)
def test_the_first_complete_set_in_order_is_taken(tracks, allow_lossy, chosen):
    segment = Segment(
        segment=3,
        first_block=0,
        blocks=1,
        block_keys_sha256=bytes(32),
        tracks=tuple(f"{track}.s3" for track in tracks.split()),
    )

    found = select_tracks(segment, codecs=CODECS, allow_lossy=allow_lossy)

    expected = chosen and tuple(f"{track}.s3" for track in chosen.split())
    assert (found and tuple(map(str, found))) == expected


def test_known_codecs_are_the_registry_unless_said_otherwise(manifest):
    assert select_tracks(manifest.segments[0]) == (
        DataTrackName(Component.K, "raw", 0),
        DataTrackName(Component.V, "raw", 0),
    )
