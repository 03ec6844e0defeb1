import pytest

from kvcs.errors import RemoteProtocolError, TerminationCode
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.varint import NeedMore, encode_vi64

NAME = FullTrackName(TrackNamespace((b"kvcs", b"model-a")), b"seq-1")
NAME_BYTES = bytes.fromhex("02046b766373076d6f64656c2d61057365712d31")
TEXT = "example.2enet-team2-project_x--report"


def namespace_bytes(*fields: bytes, count: int | None = None) -> bytes:
    parts = [encode_vi64(len(fields) if count is None else count)]
    for field in fields:
        parts += (encode_vi64(len(field)), field)
    return b"".join(parts)


def test_full_track_name_encodes_as_specified():
    assert NAME.encode() == NAME_BYTES
    assert FullTrackName.decode(b"\xff" + NAME_BYTES, 1) == (NAME, 1 + len(NAME_BYTES))


def test_full_track_name_cut_short_needs_more():
    for end in range(len(NAME_BYTES)):
        with pytest.raises(NeedMore):
            FullTrackName.decode(NAME_BYTES[:end])


def test_text_form_round_trips():
    name = FullTrackName(TrackNamespace((b"example.net", b"team2", b"project_x")), b"report")

    assert str(name) == TEXT
    assert FullTrackName.parse(TEXT) == name
    assert str(name.namespace) == TEXT.partition("--")[0]


def test_text_form_of_empty_parts_round_trips():
    name = FullTrackName(TrackNamespace(), b"")

    assert FullTrackName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    ["example.net--x", "a.2E--x", "a.41--x", "a.2--x", "a b--x", "no separator", "a--.", "a---x"],
)
def test_text_form_that_is_not_canonical_is_refused(text):
    with pytest.raises(ValueError, match=r"text form|written as itself|needs|empty"):
        FullTrackName.parse(text)


def test_prefix_matches_whole_fields_only():
    prefix = TrackNamespace((b"foo",))

    assert prefix.is_prefix_of(TrackNamespace((b"foo", b"bar")))
    assert prefix.is_prefix_of(prefix)
    assert not prefix.is_prefix_of(TrackNamespace((b"foobar",)))
    assert not TrackNamespace((b"foo", b"bar")).is_prefix_of(prefix)
    assert TrackNamespace().is_prefix_of(prefix)
    assert len(prefix) == 1


def test_suffix_and_join_are_inverse():
    prefix = TrackNamespace((b"a",))
    whole = TrackNamespace((b"a", b"b", b"c"))

    assert prefix.joined(whole.suffix_of(prefix)) == whole
    with pytest.raises(ValueError, match="not a prefix"):
        prefix.suffix_of(whole)


@pytest.mark.parametrize(
    "data",
    [
        namespace_bytes(*[b"x"] * 33),
        namespace_bytes(b"x", b""),
        namespace_bytes(b"x" * 4097),
        namespace_bytes(b"x" * 4096, b"y"),
    ],
    ids=["33 fields", "empty field", "one long field", "long in all"],
)
def test_namespace_beyond_a_limit_is_a_protocol_violation(data):
    with pytest.raises(RemoteProtocolError) as caught:
        TrackNamespace.decode(data)

    assert caught.value.code is TerminationCode.PROTOCOL_VIOLATION


def test_names_at_their_limits_decode():
    for data in (namespace_bytes(*[b"x"] * 32), namespace_bytes(b"x" * 4096)):
        namespace, end = TrackNamespace.decode(data)

        assert end == len(data)
        assert namespace.encode() == data


def test_full_track_name_beyond_the_limit_is_a_protocol_violation():
    with pytest.raises(RemoteProtocolError, match="Full Track Name"):
        FullTrackName.decode(namespace_bytes(b"x" * 4090) + b"\x07" + b"y" * 7)


@pytest.mark.parametrize("fields", [(b"",), (b"x",) * 33, (b"x" * 4097,)])
def test_namespace_value_beyond_a_limit_is_refused(fields):
    with pytest.raises(ValueError, match="Track Namespace"):
        TrackNamespace(fields)


def test_full_track_name_value_beyond_the_limit_is_refused():
    with pytest.raises(ValueError, match="Full Track Name"):
        FullTrackName(TrackNamespace((b"x" * 4096,)), b"y")


def test_locations_are_ordered_by_group_then_object():
    assert Location(1, 9) < Location(2, 0) < Location(2, 1)
    assert Location(2, 300).encode().hex() == "02812c"
    assert str(Location(2, 1)) == "{2, 1}"
