"""Round trips and refusals of the data model, for any value and any damage."""

import hashlib
import json
import string
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.seeds import examples

from kvcs.errors import DataError, IntegrityError, ManifestError
from kvcs.kv import (
    KVSP_PROVISIONAL,
    BlockPlace,
    Component,
    DataTrackName,
    Descriptor,
    Dtype,
    Expectation,
    Layout,
    Manifest,
    PublicationName,
    ScopeKey,
    Segment,
    block_keys_sha256,
    check_successor,
    encode_payload,
    matching_blocks,
    parse_manifest,
    select_tracks,
    verify_payload,
)
from kvcs.kv.strict_json import MAX_SAFE_INTEGER, JsonLimits, canonical_json, decode_json
from kvcs.names import TrackNamespace

PROFILE = settings(deadline=None, derandomize=True, max_examples=examples(100))

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INTEGERS = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
SCALARS = st.booleans() | INTEGERS | TEXTS
EXTRA = st.dictionaries(TEXTS.map("x-{}".format), SCALARS | st.lists(SCALARS, max_size=3))
DIGESTS = st.binary(min_size=32, max_size=32)
HEX = DIGESTS.map(bytes.hex)
SMALL = st.integers(1, 5)


@st.composite
def descriptors(draw):
    layers = draw(SMALL)
    lists = st.lists(SMALL, min_size=layers, max_size=layers).map(tuple)
    geometry = draw(
        st.fixed_dictionaries({"kv_heads": SMALL, "head_dim": SMALL})
        | st.fixed_dictionaries(
            {"layer_kv_heads": lists, "layer_k_dim": lists, "layer_v_dim": lists}
        )
    )
    return Descriptor(
        layers=layers,
        block_tokens=draw(SMALL),
        dtype=draw(st.sampled_from(Dtype)),
        position=draw(TEXTS),
        weights_sha256=draw(HEX),
        tokenizer_sha256=draw(HEX),
        adapter_sha256=draw(st.none() | HEX),
        extra=draw(EXTRA),
        **geometry,
    )


@st.composite
def publications(draw):
    """All manifest versions of one publication: one for each layer, segment after segment."""
    descriptor = draw(descriptors())
    tracks = draw(st.sampled_from([("k.raw",), ("k.raw", "v.raw"), ("kv.raw", "k.x", "v.x")]))
    manifest = Manifest(compat=descriptor, deterministic=draw(st.booleans()), extra=draw(EXTRA))
    versions = [manifest]
    for number in range(draw(st.integers(0, 3))):
        segment = Segment(
            segment=number,
            first_block=manifest.blocks,
            blocks=draw(st.integers(1, 3)),
            block_keys_sha256=draw(DIGESTS),
            tracks=tuple(f"{track}.s{number}" for track in tracks),
        )
        versions.append(manifest := manifest.with_segment(segment))
        for layer_index in range(descriptor.layers):
            group = [
                hashlib.sha256(bytes((number, layer_index, block_index))).digest()
                for block_index in range(segment.blocks)
            ]
            segment = segment.with_layer(dict.fromkeys(segment.tracks, group))
            versions.append(manifest := manifest.with_segment(segment))
        versions.append(manifest := manifest.with_segment(segment.completed()))
    return versions


@PROFILE
@given(descriptors())
def test_a_descriptor_survives_its_canonical_form(descriptor):
    canonical = descriptor.canonical()

    assert Descriptor.decode(canonical) == descriptor
    assert Descriptor.decode(canonical).canonical() == canonical
    assert json.loads(canonical) == descriptor.to_json()


@PROFILE
@given(descriptors(), descriptors())
def test_identifiers_are_equal_just_when_descriptors_are(one, other):
    key = ScopeKey(bytes(32))

    same = KVSP_PROVISIONAL.compatibility_id(key, one) == KVSP_PROVISIONAL.compatibility_id(
        key, other
    )

    assert same == (one.canonical() == other.canonical())


@PROFILE
@given(EXTRA)
def test_the_canonical_form_does_not_depend_on_order_and_sorts_by_utf_16(members):
    canonical = canonical_json(members)
    names = list(json.loads(canonical))

    assert canonical_json(dict(reversed(members.items()))) == canonical
    assert names == sorted(names, key=lambda name: [*name.encode("utf-16-be")])


@PROFILE
@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=24),
    st.integers(1, 5),
    st.integers(0, 23),
    st.binary(min_size=32, max_size=32),
)
def test_block_keys_are_a_prefix_chain(tokens, block_tokens, cut, secret):
    key, compatibility_id = ScopeKey(secret), bytes(32)

    def keys_of(some):
        return KVSP_PROVISIONAL.block_keys(key, compatibility_id, some, block_tokens=block_tokens)

    keys = keys_of(tokens)
    assert len(keys) == len(set(keys)) == len(tokens) // block_tokens
    assert keys_of(tokens[:cut]) == keys[: min(cut, len(tokens)) // block_tokens]
    if cut < len(tokens):
        changed = keys_of([*tokens[:cut], tokens[cut] ^ 1, *tokens[cut + 1 :]])
        assert [one == other for one, other in zip(keys, changed, strict=True)] == [
            block_index < cut // block_tokens for block_index in range(len(keys))
        ]


@PROFILE
@given(
    st.sampled_from(Component),
    st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=32),
    st.integers(0, 2**32 - 1),
)
def test_track_names_survive_their_text(component, codec, segment):
    name = DataTrackName(component, codec, segment)

    assert DataTrackName.parse(name.format()) == name


@PROFILE
@given(
    st.binary(max_size=48)
    | st.text("kvraw.s0123456789-KV\n", max_size=12).map(str.encode)
    | st.from_regex(rb"(k|v|kv)\.[a-z]{1,3}\.s[0-9]{1,11}", fullmatch=True)
)
def test_what_parses_as_a_track_name_is_exactly_its_form(text):
    try:
        name = DataTrackName.parse(text)
    except DataError:
        return

    assert name.format() == text


@PROFILE
@given(st.lists(st.binary(min_size=1, max_size=33), max_size=6), st.booleans())
def test_a_namespace_is_a_publication_just_when_its_fields_fit(fields, fit):
    if fit:
        fields = [
            b"kvcs-1",
            *(
                (field * 32)[:size]
                for field, size in zip(
                    [*fields, b"x", b"x", b"x", b"x"], (16, 32, 32, 16), strict=False
                )
            ),
        ]
    namespace = TrackNamespace(tuple(fields))

    try:
        name = PublicationName.parse(namespace)
    except DataError:
        assert not fit
    else:
        assert name.namespace() == namespace
        assert PublicationName.parse(TrackNamespace.parse(str(name))) == name


@PROFILE
@given(descriptors(), st.integers(1, 4), st.sampled_from(Component), st.data())
def test_blocks_add_up_to_their_tensor(descriptor, count, component, data):
    layout = Layout(descriptor)
    layer_index = data.draw(st.integers(0, descriptor.layers - 1))
    size_bytes = count * layout.data_bytes(component, layer_index)
    tensor = hashlib.shake_128(b"tensor").digest(size_bytes)

    blocks = layout.blocks(component, layer_index, tensor, count=count)

    assert len(blocks) == count
    assert b"".join(blocks) == tensor
    k, v = (layout.data_bytes(part, layer_index) for part in (Component.K, Component.V))
    assert layout.data_bytes(Component.KV, layer_index) == k + v


PLACES = st.builds(
    BlockPlace,
    component=st.sampled_from(Component),
    codec=st.integers(0, 2**16 - 1),
    layer_index=st.integers(0, 2**32 - 1),
    block_index=st.integers(0, 2**32 - 1),
    token_start=st.integers(0, 2**64 - 1),
    token_count=st.integers(0, 2**32 - 1),
)
IGNORED = {6, 7, 30, 31}  # Flags and Reserved


@settings(PROFILE, max_examples=examples(300))
@given(PLACES, st.lists(st.binary(max_size=40), max_size=3), st.data())
def test_no_damage_passes(place, parts, data):
    payload, digest = encode_payload(place, *parts)
    data_bytes = sum(map(len, parts))
    expectation = data.draw(
        st.sampled_from(
            [
                Expectation(place=place, data_bytes=data_bytes, digest=digest),
                Expectation(place=place, data_bytes=None),
            ]
        )
    )
    assert verify_payload(payload, expectation) == b"".join(parts)

    damage = data.draw(st.sampled_from(["flip", "cut", "add"]))
    if damage == "flip":
        bit = data.draw(st.integers(0, 8 * len(payload) - 1))
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        assume(bit // 8 not in IGNORED)
    elif damage == "cut":
        damaged = payload[: data.draw(st.integers(0, len(payload) - 1))]
    else:
        damaged = payload + data.draw(st.binary(min_size=1, max_size=9))

    with pytest.raises(IntegrityError):
        verify_payload(bytes(damaged), expectation)


@PROFILE
@given(PLACES, PLACES, st.binary(max_size=8))
def test_an_object_passes_at_its_own_place_only(claimed, expected, content):
    payload, _ = encode_payload(claimed, content)

    try:
        verify_payload(payload, Expectation(place=expected, data_bytes=len(content)))
    except IntegrityError:
        assert claimed != expected
    else:
        assert claimed == expected


@PROFILE
@given(publications())
def test_every_version_survives_and_succeeds_the_versions_before_it(versions):
    for version in versions:
        encoded = version.encode()
        assert parse_manifest(encoded) == version
        assert parse_manifest(encoded).encode() == encoded
    for older, newer in pairwise(versions):
        check_successor(older, newer)
        check_successor(versions[0], newer)
        with pytest.raises(ManifestError):
            check_successor(newer, older)


@settings(PROFILE, max_examples=examples(300))
@given(publications(), st.data())
def test_a_damaged_manifest_is_refused_or_is_another_manifest(versions, data):
    encoded = bytearray(versions[-1].encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(
                [b"", b"[", b"}", b'"', b",", b"0", b"-", b".5", b"\\", b"\xff", b"1e9"]
            )
        )

    try:
        parsed = parse_manifest(encoded)
    except DataError:
        return

    assert parse_manifest(parsed.encode()) == parsed


JSON_VALUES = st.recursive(
    st.none() | SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def depth(value):
    inner = value.values() if isinstance(value, dict) else value
    is_container = isinstance(value, list | dict)
    return 1 + max(map(depth, inner), default=0) if is_container else 0


@PROFILE
@given(JSON_VALUES, st.booleans())
@example([{"[": []}, '"[['], True)
def test_strict_json_reads_what_json_writes_and_knows_its_depth(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    level = depth(value)

    def limits(max_depth):
        return JsonLimits(max_bytes=len(text), max_depth=max_depth, max_values=1000)

    assert decode_json(text, limits(max(level, 1))) == value
    if level > 1:
        with pytest.raises(ValueError, match="nested deeper"):
            decode_json(text, limits(level - 1))


@settings(PROFILE, max_examples=examples(300))
@given(st.binary(max_size=64) | st.text('{}[]",:\\u0d8eE.-+naNI ', max_size=40).map(str.encode))
def test_strict_json_accepts_no_more_than_json(text):
    try:
        value = decode_json(text, JsonLimits(max_bytes=100, max_depth=20, max_values=100))
    except ValueError:
        return

    assert json.loads(text) == value


@PROFILE
@given(st.lists(SMALL, max_size=4), st.integers(0, 20), st.booleans(), descriptors())
def test_matching_blocks_agrees_with_a_naive_walk(sizes, known, vouched, descriptor):
    keys = [hashlib.sha256(bytes([number])).digest() for number in range(20)]
    manifest = Manifest(compat=descriptor)
    for number, blocks in enumerate(sizes):
        first = manifest.blocks
        manifest = manifest.with_segment(
            Segment(
                segment=number,
                first_block=first,
                blocks=blocks,
                block_keys_sha256=block_keys_sha256(keys[first : first + blocks]),
                tracks=(),
            )
        )

    whole = max((end for end in ends(sizes) if end <= known), default=0)
    expected = min(known, manifest.blocks) if vouched else whole
    assert matching_blocks(manifest, keys[:known], vouched=vouched) == expected


def ends(sizes):
    return [sum(sizes[: number + 1]) for number in range(len(sizes))]


TRACKS = st.lists(
    st.tuples(st.sampled_from(["k", "v", "kv"]), st.sampled_from(["raw", "other"])),
    unique=True,
    max_size=6,
)


@PROFILE
@given(TRACKS)
def test_selected_tracks_are_the_first_set_that_is_complete(tracks):
    segment = Segment(
        segment=0,
        first_block=0,
        blocks=1,
        block_keys_sha256=bytes(32),
        tracks=tuple(f"{component}.{codec}.s0" for component, codec in tracks),
    )

    # Reading on from the front, what is the first moment at which something can be taken?
    expected = None
    for seen in range(len(tracks) + 1):
        listed = set(tracks[:seen])
        if ("kv", "raw") in listed:
            expected = ("kv.raw.s0",)
        elif {("k", "raw"), ("v", "raw")} <= listed:
            expected = ("k.raw.s0", "v.raw.s0")
        if expected:
            break
    chosen = select_tracks(segment)
    assert (chosen and tuple(map(str, chosen))) == expected


@PROFILE
@given(publications(), st.integers(0, 3))
def test_deterministic_never_changes(versions, number):
    older = versions[min(number, len(versions) - 1)]
    newer = replace(versions[-1], deterministic=not versions[-1].deterministic)

    with pytest.raises(ManifestError):
        check_successor(older, newer)
