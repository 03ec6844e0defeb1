"""What a publication puts into its tracks: places, order, priorities, ends and properties."""

from itertools import pairwise

import pytest

from kvcs.client.config import PublisherConfig
from kvcs.client.published import PublishedTracks
from kvcs.cose import SigningKey
from kvcs.kv import (
    SIGNED_MANIFEST,
    Component,
    Descriptor,
    Dtype,
    Layout,
    Manifest,
    PublicationName,
    TrustedProducers,
    check_binding,
    parse_manifest,
    verify_manifest,
)
from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.track.contents import Absent, Found
from kvcs.names import Location

LAYERS = 20
BLOCKS = 3
DESCRIPTOR = Descriptor(
    layers=LAYERS,
    block_tokens=4,
    dtype=Dtype.FLOAT16,
    position="rope-applied",
    weights_sha256="11" * 32,
    tokenizer_sha256="22" * 32,
    kv_heads=2,
    head_dim=8,
)
NAME = PublicationName(
    scope_id=bytes(16),
    compatibility_id=bytes(32),
    anchor_key=bytes(32),
    publication_id=bytes(16),
)
KEYS = tuple(bytes([block]) * 32 for block in range(BLOCKS))


def publish(tracks, segment, layers):
    """Publish layers whose payloads name their place; note the Largest after each."""
    for layer_index in layers:
        payloads = {
            name: [
                (f"{name} {layer_index} {block}".encode(), bytes([layer_index, block]) * 16)
                for block in range(BLOCKS)
            ]
            for name in tracks.track_names(segment)
        }
        tracks.add_layer(segment, layer_index, payloads, now=0.0)


def make(config=None):
    tracks = PublishedTracks(NAME, Manifest(compat=DESCRIPTOR), config or PublisherConfig())
    tracks.add_segment(tracks.with_segment(KEYS))
    tracks.publish_manifest(now=0.0)
    return tracks


@pytest.fixture
def whole():
    tracks = make()
    publish(tracks, 0, range(LAYERS))
    return tracks


def found(track, group_id, object_id):
    answer = track.store.lookup(Location(group_id, object_id), now=0.0)
    assert isinstance(answer, Found)
    return answer.obj


def test_a_group_is_a_layer_and_an_object_is_a_block(whole):
    for name, track in zip(whole.track_names(0), whole.data_tracks(0), strict=True):
        for layer_index in range(LAYERS):
            for block in range(BLOCKS):
                obj = found(track, layer_index, block)
                assert obj.payload == f"{name} {layer_index} {block}".encode()
                assert obj.subgroup_id == 0


def test_objects_are_ranked_by_layer_and_the_manifest_goes_first(whole):
    for track in whole.data_tracks(0):
        ranks = [found(track, layer, 0).publisher_priority for layer in range(LAYERS)]
        assert ranks == [128 * layer // LAYERS for layer in range(LAYERS)]
    assert found(whole.manifest_track, 0, 0).publisher_priority == 0


def test_every_group_and_every_data_track_says_where_it_ends(whole):
    for track in whole.data_tracks(0):
        for layer_index in range(LAYERS):
            assert track.store.group_end(layer_index) == Location(layer_index, BLOCKS)
        assert track.store.end == Location(LAYERS, 0)
        assert track.store.largest == Location(LAYERS, 0)
        assert track.is_ended
        assert isinstance(track.store.lookup(Location(0, BLOCKS + 1), now=0.0), Absent)


def test_the_manifest_track_has_one_object_for_each_version_and_no_status(whole):
    groups = whole.manifest_track.store.groups()

    assert groups == tuple(range(len(groups)))
    for group_id in groups:
        assert found(whole.manifest_track, group_id, 0).status is ObjectStatus.NORMAL
        assert whole.manifest_track.store.group_end(group_id) == Location(group_id, 0)
    assert whole.manifest_track.store.end is None


def test_versions_come_at_least_every_eight_layers_and_list_every_digest(whole):
    versions = [
        parse_manifest(found(whole.manifest_track, group_id, 0).payload)
        for group_id in whole.manifest_track.store.groups()
    ]
    listed = [len(next(iter(v.segments[0].object_digests.values()), ())) for v in versions]

    assert listed[0] == 0
    assert listed[-1] == LAYERS
    assert all(0 < later - earlier <= 8 for earlier, later in pairwise(listed))
    for name in whole.track_names(0):
        digests = versions[-1].segments[0].object_digests[str(name)]
        assert digests == tuple(
            tuple(bytes([layer, block]) * 16 for block in range(BLOCKS)) for layer in range(LAYERS)
        )


@pytest.mark.parametrize(("seconds", "expected"), [(90.0, {0x04: 90_000}), (None, {})])
def test_tracks_name_their_retention_and_no_delivery_timeout(seconds, expected):
    tracks = make(PublisherConfig(max_cache_duration=seconds))

    assert PropertyType.MAX_CACHE_DURATION == 0x04
    for track in tracks.tracks.values():
        assert dict(track.store.properties.pairs) == expected


def test_each_pass_is_a_segment_with_tracks_of_its_own():
    tracks = make()
    publish(tracks, 0, range(LAYERS))
    tracks.add_segment(tracks.with_segment(KEYS))
    publish(tracks, 1, range(LAYERS))

    first, second = tracks.manifest.segments
    assert (first.first_block, second.first_block) == (0, BLOCKS)
    assert set(first.tracks).isdisjoint(second.tracks)
    assert second.tracks == ("k.raw.s1", "v.raw.s1")


def test_a_kv_track_takes_the_place_of_both():
    tracks = make(PublisherConfig(components=(Component.KV,)))

    assert [str(name) for name in tracks.track_names(0)] == ["kv.raw.s0"]
    assert Layout(DESCRIPTOR).data_bytes(Component.KV, 0) == 2 * 4 * 2 * 8 * 2


def test_a_signed_publication_has_one_manifest_track_and_signs_every_version():
    key = SigningKey.generate(b"producer-1")
    tracks = make(PublisherConfig(signing_key=key))
    publish(tracks, 0, range(LAYERS))

    versions = list(tracks.manifest_track.store.objects())

    assert set(tracks.tracks) == {SIGNED_MANIFEST, b"k.raw.s0", b"v.raw.s0"}
    assert [obj.group_id for obj in versions] == list(range(7))
    for obj in versions:
        signed = verify_manifest(obj.payload, TrustedProducers((key.public,)))
        check_binding(signed.manifest, NAME, obj.group_id, is_required=True)
    # The first layer is listed as soon as it is there, so that it can be used.
    assert (
        verify_manifest(versions[1].payload, TrustedProducers((key.public,)))
        .manifest.segments[0]
        .listed_layers(tracks.track_names(0))
        == 1
    )
    assert signed.manifest.complete
