"""The manifest: encoding, strict and bounded parsing, and what an Object must be."""

import json
import time
from dataclasses import replace

import pytest

from kvcs.errors import ManifestError, UnsupportedEncoding
from kvcs.kv import (
    Component,
    DataTrackName,
    Manifest,
    ManifestCadence,
    ManifestLimits,
    Segment,
    parse_manifest,
)
from kvcs.names import Location

K0 = DataTrackName(Component.K, "raw", 0)
V0 = DataTrackName(Component.V, "raw", 0)
K1 = DataTrackName(Component.K, "raw", 1)
GROUP = tuple(bytes.fromhex(octet * 32) for octet in ("ab", "cd", "ef"))


def text(members):
    return json.dumps(members).encode()


@pytest.fixture
def manifest(members):
    return parse_manifest(text(members))


def test_a_manifest_is_parsed_with_all_its_members(manifest, members, descriptor):
    first, second = manifest.segments

    assert manifest.compat == descriptor
    assert (manifest.layers, manifest.block_tokens, manifest.blocks) == (2, 4, 5)
    assert manifest.deterministic is False
    assert manifest.complete is False
    assert manifest.extra == first.extra == {}
    assert (first.segment, first.first_block, first.blocks, first.end_block) == (0, 0, 3, 3)
    assert first.block_keys_sha256.hex() == members["segments"][0]["block_keys_sha256"]
    assert first.tracks == ("k.raw.s0", "v.raw.s0")
    assert first.complete
    assert first.object_digests == {"k.raw.s0": (GROUP, GROUP), "v.raw.s0": (GROUP, GROUP)}
    assert second.object_digests == {}
    assert not second.complete


def test_encoding_gives_the_same_members_back(manifest, members):
    members["segments"][1]["object_digests"] = {}

    assert json.loads(manifest.encode()) == members
    assert parse_manifest(manifest.encode()) == manifest


def test_encoding_does_not_depend_on_the_order_of_what_was_received(members):
    shuffled = dict(reversed(members.items()))
    shuffled["segments"] = [dict(reversed(one.items())) for one in members["segments"]]
    digests = members["segments"][0]["object_digests"]
    shuffled["segments"][0]["object_digests"] = dict(reversed(digests.items()))

    assert parse_manifest(text(shuffled)).encode() == parse_manifest(text(members)).encode()


def test_unknown_members_are_kept_and_mean_nothing(members):
    members |= {"later": {"a": [None]}, "also": "\u20ac"}
    members["segments"][0]["note"] = [1, 2]

    manifest = parse_manifest(text(members))

    assert manifest.extra == {"later": {"a": [None]}, "also": "\u20ac"}
    assert manifest.segments[0].extra == {"note": [1, 2]}
    assert parse_manifest(manifest.encode()) == manifest


def test_a_first_version_may_list_nothing(descriptor):
    manifest = parse_manifest(Manifest(compat=descriptor).encode())

    assert manifest.segments == ()
    assert manifest.blocks == 0
    assert not manifest.complete


def test_versions_grow_by_layers_and_segments(descriptor, manifest):
    segment = replace(manifest.segments[0], complete=False, object_digests={})
    version = Manifest(compat=descriptor).with_segment(segment)
    assert version.segments[0].listed_layers([K0, V0]) == 0

    segment = segment.with_layer({"k.raw.s0": GROUP, "v.raw.s0": list(GROUP)})
    version = version.with_segment(segment)
    assert version.segments[0].listed_layers([K0, V0]) == 1

    segment = segment.with_layer({"k.raw.s0": GROUP})
    assert segment.listed_layers([K0]) == 2
    assert segment.listed_layers([K0, V0]) == 1
    assert segment.listed_layers([]) == 0
    segment = segment.with_layer({"v.raw.s0": GROUP}).completed()
    version = version.with_segment(segment).with_segment(manifest.segments[1])

    assert version == manifest
    assert not version.complete
    assert version.with_segment(manifest.segments[1].completed()).complete


def test_the_digest_of_an_object_is_listed_or_unknown(manifest):
    first, second = manifest.segments

    assert first.digest(K0, Location(1, 2)) == GROUP[2]
    assert first.digest(K0, Location(2, 0)) is None
    assert first.digest(K0, Location(0, 3)) is None
    assert second.digest(K1, Location(0, 0)) is None


@pytest.mark.parametrize(
    "name", ["kvcs", "compat", "layers", "block_tokens", "deterministic", "segments"]
)
def test_a_missing_member_is_named(name, members):
    del members[name]

    with pytest.raises(ManifestError, match=f"manifest: {name} is missing"):
        parse_manifest(text(members))


@pytest.mark.parametrize(
    "name", ["segment", "first_block", "blocks", "block_keys_sha256", "tracks", "complete"]
)
def test_a_missing_member_of_a_segment_is_named_with_its_place(name, members):
    del members["segments"][1][name]

    with pytest.raises(ManifestError, match=rf"segments\[1\]: {name} is missing"):
        parse_manifest(text(members))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("kvcs", True, "kvcs is missing or not"),
        ("compat", [], "compat is missing or not"),
        ("layers", 3, "layers differs from compat, which has 2"),
        ("layers", 2**53 - 1, "layers differs from compat"),
        ("block_tokens", 16, "block_tokens differs from compat, which has 4"),
        ("deterministic", 1, "deterministic is missing or not"),
        ("deterministic", None, "deterministic is missing or not"),
        ("segments", {}, "segments is missing or not"),
        ("segments", [1], r"segments\[0\] is not an object"),
    ],
)
def test_a_wrong_member_is_named(name, value, reason, members):
    members[name] = value

    with pytest.raises(ManifestError, match=reason):
        parse_manifest(text(members))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layers": 0}, "descriptor member layers"),
        ({"layers": 10**9}, "descriptor member layers"),
        ({"weights_sha256": "x"}, "descriptor member weights_sha256"),
        ({"adapter_sha256": None}, "'adapter_sha256' is null"),
        ({"more": {}}, "'more' must be"),
    ],
)
def test_a_lying_descriptor_is_refused(change, reason, members):
    members["compat"] |= change

    with pytest.raises(ManifestError, match=reason):
        parse_manifest(text(members))


def test_a_descriptor_of_an_unknown_dtype_is_unsupported(members):
    members["compat"]["dtype"] = "int4"

    with pytest.raises(UnsupportedEncoding, match="dtype"):
        parse_manifest(text(members))


@pytest.mark.parametrize("form", [0, 2])
def test_another_format_is_unsupported(form, members):
    members["kvcs"] = form

    with pytest.raises(UnsupportedEncoding, match="another format than 1"):
        parse_manifest(text(members))


HEX = "ab" * 32


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"segment": 1, "tracks": [], "object_digests": {}},
            "segment 1 from block 0 stands where segment 0 from block 0 belongs",
        ),
        ({"segment": -1, "tracks": [], "object_digests": {}}, "segment -1 from block 0 stands"),
        ({"segment": 1}, "segment 1: lists a track of another segment"),
        ({"first_block": 1}, "segment 0 from block 1 stands where"),
        ({"first_block": -1}, "3 blocks from block -1"),
        ({"blocks": 0}, "0 blocks from block 0"),
        ({"blocks": -1}, "-1 blocks"),
        ({"blocks": 4}, "has not 4 digests"),
        ({"blocks": 3.5}, "not an integer"),
        ({"block_keys_sha256": "ab" * 31}, "64 lower-case hex digits"),
        ({"block_keys_sha256": "AB" * 32}, "64 lower-case hex digits"),
        ({"block_keys_sha256": ""}, "64 lower-case hex digits"),
        ({"block_keys_sha256": "zz" * 32}, "non-hexadecimal"),
        ({"tracks": "k.raw.s0"}, "tracks is missing or not of type list"),
        ({"tracks": ["k.raw.s0", "v.raw.s0", 1]}, "not a Track Name"),
        ({"tracks": ["k.raw.s0", "v.raw.s0", "x" * 65]}, "not a Track Name"),
        ({"tracks": ["k.raw.s0", "v.raw.s0", "k.raw.s0"]}, "listed twice"),
        ({"tracks": ["k.raw.s0", "v.raw.s1"]}, "lists a track of another segment"),
        ({"tracks": ["k.raw.s0"]}, "object_digests names a track that is not listed"),
        ({"complete": "yes"}, "complete is missing or not"),
        ({"object_digests": []}, "object_digests is missing or not of type dict"),
        ({"object_digests": None}, "object_digests is missing or not of type dict"),
        ({"object_digests": {"k.raw.s0": {}}}, "not an array"),
        ({"object_digests": {"k.raw.s0": [HEX] * 2}}, "not an array of hex digests"),
        ({"object_digests": {"k.raw.s0": [{HEX: 1}] * 2}}, "not an array of hex digests"),
        ({"object_digests": {"k.raw.s0": [[1, 2, 3]] * 2}}, "not an array of hex digests"),
        ({"object_digests": {"k.raw.s0": [[HEX, HEX, None]]}}, "not an array of hex digests"),
        ({"object_digests": {"k.raw.s0": [[HEX, HEX, "AB" * 32]]}}, "64 lower-case hex"),
        ({"object_digests": {"k.raw.s0": [[HEX, HEX[:-2], HEX + "ab"]]}}, "64 lower-case hex"),
        ({"object_digests": {"k.raw.s0": [[HEX, HEX, "ab " * 21 + "a"]]}}, "hex"),
        ({"object_digests": {"k.raw.s0": [[HEX, HEX, " " * 64]]}}, "64 lower-case hex"),
        ({"object_digests": {"k.raw.s0": [[HEX, HEX, "ab\u0661" * 16]]}}, "hex"),
        ({"object_digests": {"k.raw.s0": [[HEX] * 2] * 2}}, "has not 3 digests"),
        ({"object_digests": {"k.raw.s0": [[]] * 2}}, "has not 3 digests"),
        ({"object_digests": {"k.raw.s0": [[HEX] * 3]}}, "digests of 1 Groups in k.raw.s0"),
        ({"object_digests": {"k.raw.s0": []}}, "digests of 0 Groups in k.raw.s0"),
        ({"object_digests": {"k.raw.s0": [[HEX] * 3] * 3}}, "digests of 3 Groups in k.raw.s0"),
    ],
)
def test_a_wrong_segment_is_refused(change, reason, members):
    members["segments"][0] |= change

    with pytest.raises(ManifestError, match=reason):
        parse_manifest(text(members))


@pytest.mark.parametrize("first_block", [2, 4])
def test_segments_with_a_hole_or_an_overlap_are_refused(first_block, members):
    members["segments"][1]["first_block"] = first_block

    with pytest.raises(ManifestError, match=f"segment 1 from block {first_block} stands where"):
        parse_manifest(text(members))


def test_segments_out_of_order_are_refused(members):
    members["segments"].reverse()

    with pytest.raises(ManifestError, match="stands where segment 0 from block 0 belongs"):
        parse_manifest(text(members))


def test_a_segment_says_itself_that_its_keys_have_no_digest(manifest):
    with pytest.raises(ManifestError, match="block_keys_sha256 is not 32 octets"):
        replace(manifest.segments[0], block_keys_sha256=b"")


def test_a_complete_segment_need_not_list_digests(members):
    del members["segments"][0]["object_digests"]

    assert parse_manifest(text(members)).segments[0].complete


def test_foreign_track_names_are_kept_and_no_data_tracks(members):
    members["segments"][0]["tracks"] += ["K.RAW.S0", "q.raw.s0", "x" * 64]

    segment = parse_manifest(text(members)).segments[0]

    assert segment.tracks[2:] == ("K.RAW.S0", "q.raw.s0", "x" * 64)
    assert segment.data_tracks() == (K0, V0)


def test_a_billion_blocks_are_refused(members):
    members["segments"] = [
        {
            "segment": 0,
            "first_block": 0,
            "blocks": 10**9,
            "block_keys_sha256": HEX,
            "tracks": [],
            "complete": False,
        }
    ]

    with pytest.raises(ManifestError, match="1000000000 blocks, at most 1048576"):
        parse_manifest(text(members))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ManifestLimits(max_bytes=100), "octets of JSON, at most 100"),
        (ManifestLimits(max_depth=5), "deeper than 5"),
        (ManifestLimits(max_values=40), "JSON values, at most 40"),
        (ManifestLimits(max_segments=1), "2 segments, at most 1"),
        (ManifestLimits(max_tracks=1), "2 tracks, at most 1"),
        (ManifestLimits(max_blocks=4), "5 blocks, at most 4"),
    ],
)
def test_every_limit_holds(limits, reason, members):
    with pytest.raises(ManifestError, match=reason):
        parse_manifest(text(members), limits)


def test_the_default_limits_are_those_of_the_documentation():
    assert ManifestLimits() == ManifestLimits(
        max_bytes=16_777_216,
        max_depth=16,
        max_values=262_144,
        max_segments=4096,
        max_tracks=32,
        max_blocks=1_048_576,
    )


def test_a_manifest_at_its_limits_passes(members):
    data = text(members)
    limits = ManifestLimits(
        max_bytes=len(data), max_depth=6, max_segments=2, max_tracks=2, max_blocks=5
    )

    assert parse_manifest(data, limits) == parse_manifest(memoryview(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'"manifest"',
        b"\xff\xfe",
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[]" * 100_000,
        b'"' * 400_000,
        b'"' + b'\\"' * 200_000,
        b"\\" * 400_000,
        b"1" * 400_000,
        b"1." + b"1" * 400_000,
        b"1e" + b"1" * 400_000,
        b"[" + b"0," * 300_000 + b"0]",
        b"[" + b'"",' * 300_000 + b'""]',
        bytes(16 * 2**20 + 1),
    ],
    ids=lambda data: f"{bytes(data[:6])!r}*{len(data)}",
)
def test_hostile_text_is_refused_in_bounded_time(data):
    start = time.process_time()

    with pytest.raises(ManifestError):
        parse_manifest(data)

    # Linear work takes some milliseconds; quadratic work takes minutes.
    assert time.process_time() - start < 2


def test_cadence_is_dense_at_first_and_then_every_eight_layers():
    cadence = ManifestCadence()

    assert [done for done in range(1, 41) if cadence.due(done)] == [1, 2, 4, 8, 16, 24, 32, 40]


def test_cadence_can_be_chosen():
    assert [done for done in range(1, 9) if ManifestCadence(first=(), every=3).due(done)] == [3, 6]


def test_an_encoded_segment_is_what_the_draft_shows(descriptor):
    segment = Segment(
        segment=0, first_block=0, blocks=1, block_keys_sha256=bytes(32), tracks=("k.raw.s0",)
    )

    assert (
        Manifest(compat=descriptor, segments=(segment,))
        .encode()
        .endswith(
            b',"layers":2,"block_tokens":4,"deterministic":false,"segments":[{"segment":0,'
            b'"first_block":0,"blocks":1,"block_keys_sha256":"' + b"00" * 32 + b'",'
            b'"tracks":["k.raw.s0"],"complete":false,"object_digests":{}}]}'
        )
    )
