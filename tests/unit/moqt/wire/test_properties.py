import pytest

from kvcs.errors import MalformedTrack, RemoteProtocolError, TerminationCode
from kvcs.moqt.codepoints import GroupOrder, PropertyType
from kvcs.moqt.wire import EMPTY_PROPERTIES, Properties
from kvcs.names import Location

IMMUTABLE = PropertyType.IMMUTABLE_PROPERTIES
PLACE = Location(5, 5)


def nested(*pairs):
    return Properties.of((IMMUTABLE, Properties.of(*pairs).raw))


def test_properties_keep_the_bytes_they_came_with():
    raw = bytes.fromhex("80 04 80 05 b8 00 01")

    decoded = Properties.decode(raw)
    assert decoded.raw == raw
    assert decoded.pairs == ((4, 5), (0x3804, 1))
    assert decoded != Properties.of(*decoded.pairs)
    assert bool(decoded)
    assert not EMPTY_PROPERTIES


def test_values_have_the_defaults_of_the_draft():
    assert EMPTY_PROPERTIES.object_delivery_timeout_ms == 0
    assert EMPTY_PROPERTIES.subgroup_delivery_timeout_ms == 0
    assert EMPTY_PROPERTIES.max_cache_duration_ms is None
    assert EMPTY_PROPERTIES.default_publisher_priority == 128
    assert EMPTY_PROPERTIES.default_group_order == GroupOrder.ASCENDING
    assert EMPTY_PROPERTIES.prior_group_id_gap == 0
    assert EMPTY_PROPERTIES.prior_object_id_gap == 0
    assert EMPTY_PROPERTIES.unknown_mandatory() == ()
    EMPTY_PROPERTIES.check_object(Location(0, 0))


@pytest.mark.parametrize("build", [Properties.of, nested])
def test_values_are_found_in_the_mutable_and_the_immutable_list(build):
    properties = build(
        (PropertyType.OBJECT_DELIVERY_TIMEOUT, 1),
        (PropertyType.MAX_CACHE_DURATION, 0),
        (PropertyType.SUBGROUP_DELIVERY_TIMEOUT, 3),
        (PropertyType.DEFAULT_PUBLISHER_PRIORITY, 0),
        (PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER, 2),
        (PropertyType.PRIOR_GROUP_ID_GAP, 5),
        (PropertyType.PRIOR_OBJECT_ID_GAP, 4),
        (0x3801, b"app"),
    )

    properties.check_object(PLACE)
    assert properties.object_delivery_timeout_ms == 1
    assert properties.max_cache_duration_ms == 0
    assert properties.subgroup_delivery_timeout_ms == 3
    assert properties.default_publisher_priority == 0
    assert properties.default_group_order == GroupOrder.DESCENDING
    assert properties.prior_group_id_gap == 5
    assert properties.prior_object_id_gap == 4
    assert properties.find(0x3801) == b"app"
    assert properties.find(0x3803) is None


@pytest.mark.parametrize("build", [Properties.of, nested])
@pytest.mark.parametrize(
    ("number", "value", "code"),
    [
        (PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER, 0, TerminationCode.PROTOCOL_VIOLATION),
        (PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER, 3, TerminationCode.PROTOCOL_VIOLATION),
        (PropertyType.DYNAMIC_GROUPS, 2, TerminationCode.PROTOCOL_VIOLATION),
        (PropertyType.DEFAULT_PUBLISHER_PRIORITY, 256, TerminationCode.KEY_VALUE_FORMATTING_ERROR),
    ],
)
def test_illegal_track_property_closes_the_session(build, number, value, code):
    properties = build((number, value))

    with pytest.raises(RemoteProtocolError, match=number.name) as caught:
        Properties.decode_track(properties.raw)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "raw",
    [
        "0b 03 0b 01 00",  # IMMUTABLE_PROPERTIES inside itself
        "0b 02 02 81",  # a pair inside is cut off
        "0b 00 00 00",  # IMMUTABLE_PROPERTIES twice
        "3c 01 00 01",  # PRIOR_GROUP_ID_GAP twice
        "0b 02 3e 01 33 01",  # PRIOR_OBJECT_ID_GAP in both lists
    ],
)
def test_broken_or_repeated_properties_make_the_track_malformed(raw):
    properties = Properties.decode(bytes.fromhex(raw))

    with pytest.raises(MalformedTrack):
        properties.check_object(PLACE)
    assert properties.fault


def test_unknown_properties_may_repeat():
    properties = Properties.of((0x3800, 1), (0x3800, 1))

    properties.check_object(PLACE)
    assert properties.fault is None


@pytest.mark.parametrize("build", [Properties.of, nested])
@pytest.mark.parametrize(
    ("number", "value"),
    [
        (PropertyType.PRIOR_GROUP_ID_GAP, 6),
        (PropertyType.PRIOR_OBJECT_ID_GAP, 6),
        (0x4000, 1),
        (0x7FFF, b""),
    ],
)
def test_gap_below_zero_or_mandatory_property_on_an_object_is_malformed(build, number, value):
    with pytest.raises(MalformedTrack, match=r"Object \{5, 5\}"):
        build((number, value)).check_object(PLACE)


def test_mandatory_properties_are_listed_from_both_lists():
    immutable = Properties.of((0x4001, b"")).raw
    properties = Properties.of((0x3FFF, b""), (0x4000, 1), (0x8000, 1), (IMMUTABLE, immutable))

    assert properties.unknown_mandatory() == (0x4000, 0x4001)
