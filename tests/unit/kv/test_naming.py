"""The Track Namespace of a publication and its Track Names."""

import pytest

from kvcs.errors import DataError
from kvcs.kv import (
    MANIFEST,
    MANIFEST_PRIORITY,
    SIGNED_MANIFEST,
    Component,
    DataTrackName,
    PublicationName,
    anchor_prefix,
    candidate_prefixes,
    publisher_priority,
)
from kvcs.names import FullTrackName, TrackNamespace

# KVCS draft, "Encoding Examples".
SCOPE_ID = bytes.fromhex("6d1c6481cd428737da312c089db3832a")
COMPATIBILITY_ID = bytes.fromhex("5ed5c2f238839655d7c4029e12b7f31caf9e7421f4edb4057feee6dab760ee0f")
ANCHOR_KEY = bytes.fromhex("653275884ca44f8945fd4c902611c467394b73656e64c78d8522648cb75aefc1")
PUBLICATION_ID = bytes.fromhex("0123456789abcdef0123456789abcdef")
NAMESPACE = bytes.fromhex(
    "05066b7663732d31106d1c6481cd428737da312c089db3832a205ed5c2f238839655d7c4029e12b7f31caf9e7421"
    "f4edb4057feee6dab760ee0f20653275884ca44f8945fd4c902611c467394b73656e64c78d8522648cb75aefc110"
    "0123456789abcdef0123456789abcdef"
)
NAME = PublicationName(
    scope_id=SCOPE_ID,
    compatibility_id=COMPATIBILITY_ID,
    anchor_key=ANCHOR_KEY,
    publication_id=PUBLICATION_ID,
)
FIELDS = (b"kvcs-1", SCOPE_ID, COMPATIBILITY_ID, ANCHOR_KEY, PUBLICATION_ID)


def test_the_namespace_is_the_published_vector():
    namespace, end = TrackNamespace.decode(NAMESPACE)

    assert NAME.namespace().encode() == NAMESPACE
    assert end == len(NAMESPACE) == 108
    assert PublicationName.parse(namespace) == NAME


def test_the_text_form_is_that_of_the_namespace():
    text = str(NAME)

    assert text.startswith("kvcs.2d1-m.1cd.81.cdB.877.da1.2c.08.9d.b3.83.2a-")
    assert PublicationName.parse(TrackNamespace.parse(text)) == NAME


def test_people_are_told_the_first_digits_of_the_publication_id():
    assert NAME.short_id == "01234567"


def test_a_track_of_a_publication_has_its_namespace():
    assert NAME.track(MANIFEST) == FullTrackName(NAME.namespace(), b"manifest")
    assert NAME.track(SIGNED_MANIFEST).name == b"manifest.cose"


@pytest.mark.parametrize(
    "fields",
    [
        (),
        FIELDS[:4],
        (*FIELDS, b"x"),
        (b"kvcs-2", *FIELDS[1:]),
        (b"KVCS-1", *FIELDS[1:]),
        (*FIELDS[:4], PUBLICATION_ID[:15]),
        (*FIELDS[:4], PUBLICATION_ID + b"x"),
        (*FIELDS[:1], SCOPE_ID.hex().encode(), *FIELDS[2:]),
        (*FIELDS[:3], ANCHOR_KEY[:31], PUBLICATION_ID),
    ],
    ids=len,
)
def test_any_other_namespace_is_no_publication(fields):
    with pytest.raises(DataError, match="not a KVCS publication"):
        PublicationName.parse(TrackNamespace(fields))


def test_identifiers_of_another_length_make_no_name():
    with pytest.raises(DataError, match="not a KVCS publication"):
        PublicationName(
            scope_id=SCOPE_ID,
            compatibility_id=COMPATIBILITY_ID,
            anchor_key=ANCHOR_KEY,
            publication_id=b"",
        )


def test_the_anchor_prefix_is_four_fields():
    prefix = anchor_prefix(SCOPE_ID, COMPATIBILITY_ID, ANCHOR_KEY)

    assert prefix.fields == FIELDS[:4]
    assert prefix.is_prefix_of(NAME.namespace())


def test_candidate_prefixes_are_longest_first():
    keys = [bytes([number]) * 32 for number in range(3)]

    prefixes = candidate_prefixes(SCOPE_ID, COMPATIBILITY_ID, keys)

    assert [prefix.fields[3] for prefix in prefixes] == keys[::-1]
    assert all(prefix.fields[:3] == FIELDS[:3] for prefix in prefixes)
    assert candidate_prefixes(SCOPE_ID, COMPATIBILITY_ID, []) == ()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"k.raw.s0", DataTrackName(Component.K, "raw", 0)),
        (b"v.raw.s10", DataTrackName(Component.V, "raw", 10)),
        (b"kv.a-0.s4294967295", DataTrackName(Component.KV, "a-0", 2**32 - 1)),
        (b"k." + b"z" * 32 + b".s7", DataTrackName(Component.K, "z" * 32, 7)),
        (b"k.-.s1", DataTrackName(Component.K, "-", 1)),
    ],
)
def test_track_names_of_the_grammar_are_parsed_and_formatted(text, name):
    assert DataTrackName.parse(text) == name
    assert name.format() == text
    assert str(name) == text.decode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"manifest",
        b"manifest.cose",
        b"K.raw.s0",
        b"k.RAW.s0",
        b"k.raw.S0",
        b"k.raw.s",
        b"k.raw.s00",
        b"k.raw.s01",
        b"k.raw.s-1",
        b"k.raw.s4294967296",
        b"k.raw.s99999999999",
        b"k.raw.0",
        b"k..s0",
        b"k." + b"z" * 33 + b".s0",
        b"k.ra_w.s0",
        b"k.r.w.s0",
        b"vk.raw.s0",
        b"k.raw.s0\n",
        b" k.raw.s0",
        b"k.raw.s0 ",
        b"k.raw.s\xd9\xa0",
        b"k.raw.s0" * 100,
    ],
)
def test_any_other_track_name_is_refused(text):
    with pytest.raises(DataError, match="not the Track Name of a KVCS data track"):
        DataTrackName.parse(text)


@pytest.mark.parametrize(("codec", "segment"), [("RAW", 0), ("raw", 2**32), ("raw", -1), ("", 0)])
def test_a_track_name_outside_the_grammar_cannot_be_made(codec, segment):
    with pytest.raises(DataError):
        DataTrackName(Component.K, codec, segment)


def test_components_have_their_registered_values():
    assert [(part.label, part.value) for part in Component] == [("k", 1), ("v", 2), ("kv", 3)]


@pytest.mark.parametrize(
    ("layer_index", "layers", "priority"),
    [(0, 1, 0), (0, 32, 0), (1, 32, 4), (31, 32, 124), (1, 80, 1), (79, 80, 126), (32, 32, 128)],
)
def test_earlier_layers_are_more_urgent(layer_index, layers, priority):
    assert publisher_priority(layer_index, layers) == priority


def test_the_manifest_is_most_urgent():
    assert MANIFEST_PRIORITY == 0
