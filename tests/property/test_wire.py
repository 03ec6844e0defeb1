"""The wire codec against values and bytes that nobody thought of.

What is encoded decodes to the same value, wherever the bytes are cut on their way, and
bytes that were never encoded raise nothing but the two documented exceptions.
"""

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seeds import examples

from kvcs.errors import MalformedTrack, RemoteProtocolError, RequestFailed
from kvcs.moqt.codepoints import (
    GroupOrder,
    LocationFilterType,
    MessageType,
    ObjectStatus,
    ParameterType,
    PropertyType,
    RangeMarker,
    SetupOption,
)
from kvcs.moqt.wire import (
    ALLOWED,
    EMPTY_PROPERTIES,
    RANGE_FILTERS,
    EndOfRange,
    Fetch,
    FetchDecoder,
    FetchEncoder,
    FetchHeader,
    FetchOk,
    FillParameters,
    Goaway,
    LocationFilter,
    Namespace,
    NamespaceDone,
    Object,
    ObjectDatagram,
    Parameters,
    Properties,
    Publish,
    PublishDone,
    PublishNamespace,
    PublishSkipped,
    PublishStateNotify,
    Range,
    RangeFilter,
    Reader,
    Redirect,
    RequestError,
    RequestOk,
    RequestUpdate,
    Scope,
    Setup,
    SetupOptions,
    SubgroupHeader,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    Token,
    TrackStatus,
    decode_message,
    decode_object_header,
    encode_object_header,
    matches,
)
from kvcs.moqt.wire.frame import encode_frame
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.varint import MAX_VI64, NeedMore, decode_vi64, encode_vi64

many = settings(deadline=None, derandomize=True, max_examples=examples(300))
some = settings(deadline=None, derandomize=True, max_examples=examples(100))

small = st.integers(0, 200)
vi64 = small | st.sampled_from([2**14, 2**32, MAX_VI64 - 1, MAX_VI64]) | st.integers(0, MAX_VI64)
u8 = st.integers(0, 255)
octets = st.binary(max_size=40)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
locations = st.builds(Location, vi64, vi64)
namespaces = st.builds(
    TrackNamespace, st.lists(st.binary(min_size=1, max_size=20), max_size=6).map(tuple)
)
tracks = st.builds(FullTrackName, namespaces, octets)

tokens = st.one_of(
    st.builds(lambda value, kind: Token.use_value(value, token_type=kind), octets, vi64),
    st.builds(lambda n, value, kind: Token.register(n, value, token_type=kind), vi64, octets, vi64),
    st.builds(Token.use_alias, vi64),
    st.builds(Token.delete, vi64),
)


def pairs(known):
    number = st.sampled_from(sorted(set(range(0x100)) - set(known))) | st.integers(2**13, 2**62)
    return number.flatmap(lambda n: st.tuples(st.just(n), octets if n % 2 else vi64))


unknown_properties = st.lists(pairs(PropertyType), max_size=4)
known_properties = st.fixed_dictionaries(
    {},
    optional={
        PropertyType.MAX_CACHE_DURATION: vi64,
        PropertyType.DEFAULT_PUBLISHER_PRIORITY: u8,
        PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER: st.sampled_from(list(map(int, GroupOrder))),
        PropertyType.DYNAMIC_GROUPS: st.integers(0, 1),
        PropertyType.IMMUTABLE_PROPERTIES: unknown_properties.map(lambda p: Properties.of(*p).raw),
    },
)
properties = st.builds(
    lambda known, unknown: Properties.of(*known.items(), *unknown),
    known_properties,
    unknown_properties,
)


@st.composite
def location_filters(draw):
    start, delta = sorted((draw(vi64), draw(vi64)))
    object_id, end_object = draw(vi64), draw(vi64)
    match draw(st.sampled_from(list(LocationFilterType))):
        case LocationFilterType.NONE:
            return LocationFilter.none()
        case LocationFilterType.RELATIVE_START:
            return LocationFilter.relative_start(start)
        case LocationFilterType.NEXT_OBJECT:
            return LocationFilter.next_object()
        case LocationFilterType.ABSOLUTE_START:
            return LocationFilter.absolute_start(start, object_id)
        case LocationFilterType.ABSOLUTE_START_GROUP_END:
            return LocationFilter.absolute_start_group_end(start, object_id, delta - start)
        case LocationFilterType.ABSOLUTE_RANGE:
            return LocationFilter.absolute_range(start, object_id, delta - start, end_object)


@st.composite
def range_filters(draw, kinds):
    kind = draw(st.sampled_from(sorted(kinds)))
    value = u8 if kind == ParameterType.PRIORITY_FILTER else vi64
    bounds = sorted(draw(st.lists(value, min_size=1, max_size=6)))
    ends = [*bounds[1::2], None]
    ranges = tuple(map(Range, bounds[::2], ends))
    has_type = kind in (ParameterType.OBJECT_PROPERTY_FILTER, ParameterType.TRACK_PROPERTY_FILTER)
    return RangeFilter(
        kind=kind,
        set_id=draw(u8),
        property_type=draw(st.integers(0, 2**62).map(lambda n: 2 * n)) if has_type else None,
        ranges=ranges,
    )


@st.composite
def filter_sets(draw, kinds):
    found = {}
    for item in draw(st.lists(range_filters(kinds), max_size=4)):
        found[item.kind, item.set_id, item.property_type] = item
    # The wire orders them by their kind.
    items = sorted(found.values(), key=lambda item: item.kind)
    taken_back = draw(st.sets(st.sampled_from(sorted(kinds)))) - {item.kind for item in items}
    items += [RangeFilter(kind=kind) for kind in taken_back]
    return tuple(sorted(items, key=lambda item: item.kind))


VALUES = {
    ParameterType.OBJECT_DELIVERY_TIMEOUT: ("object_delivery_timeout_ms", vi64),
    ParameterType.AUTHORIZATION_TOKEN: (
        "authorization_tokens",
        st.lists(tokens, min_size=1, max_size=3).map(tuple),
    ),
    ParameterType.RENDEZVOUS_TIMEOUT: ("rendezvous_timeout_ms", vi64),
    ParameterType.SUBGROUP_DELIVERY_TIMEOUT: ("subgroup_delivery_timeout_ms", vi64),
    ParameterType.EXPIRES: ("expires_ms", vi64),
    ParameterType.LARGEST_OBJECT: ("largest_object", locations),
    ParameterType.FILL_TIMEOUT: ("fill_timeout_ms", vi64),
    ParameterType.FORWARD: ("forward", st.booleans()),
    ParameterType.SUBSCRIBER_PRIORITY: ("subscriber_priority", u8),
    ParameterType.LOCATION_FILTER: ("location_filter", location_filters()),
    ParameterType.GROUP_ORDER: ("group_order", st.sampled_from(GroupOrder)),
    ParameterType.NEW_GROUP_REQUEST: ("new_group_request", vi64),
    ParameterType.TRACK_NAMESPACE_PREFIX: ("track_namespace_prefix", namespaces),
    ParameterType.INCLUDE_PROPERTIES: ("include_properties", st.booleans()),
}


@st.composite
def blocks(draw, scope, build):
    allowed = ALLOWED[scope]
    chosen = draw(st.sets(st.sampled_from(sorted(allowed)))) if allowed else set()
    values = {name: draw(value) for kind, (name, value) in VALUES.items() if kind in chosen}
    if ParameterType.FILL_PARAMETERS in chosen:
        values["fill"] = draw(blocks(Scope.FILL, FillParameters))
    kinds = allowed & RANGE_FILTERS
    if kinds & chosen:
        values["range_filters"] = draw(filter_sets(kinds))
    return build(**values)


def parameters(scope):
    return blocks(scope, Parameters)


unknown_options = st.lists(pairs(SetupOption), max_size=3).map(
    lambda items: tuple(sorted(items, key=lambda item: item[0]))
)
setup_options = st.builds(
    SetupOptions,
    path=st.none() | octets,
    authorization_tokens=st.lists(tokens, max_size=2).map(tuple),
    max_auth_token_cache_size=vi64,
    authority=st.none() | octets,
    max_filter_ranges=vi64,
    implementation=st.none() | text,
    max_request_updates=vi64,
    unknown=unknown_options,
)
request_errors = st.one_of(
    st.builds(
        RequestError, code=vi64.filter(lambda n: n != 0x34), retry_interval=vi64, reason=text
    ),
    st.builds(
        RequestError,
        code=st.just(0x34),
        retry_interval=vi64,
        reason=text,
        redirect=st.builds(Redirect, text, tracks),
    ),
)


def track_requests(kind, scope):
    return st.builds(kind, request_id=vi64, track=tracks, parameters=parameters(scope))


def prefix_requests(kind, scope):
    return st.builds(
        kind, request_id=vi64, track_namespace_prefix=namespaces, parameters=parameters(scope)
    )


MESSAGES = {
    MessageType.SETUP: st.builds(Setup, setup_options),
    MessageType.GOAWAY: st.builds(Goaway, uri=text, timeout_ms=vi64),
    MessageType.SUBSCRIBE: track_requests(Subscribe, Scope.SUBSCRIBE),
    MessageType.SUBSCRIBE_OK: st.builds(
        SubscribeOk,
        track_alias=vi64,
        parameters=parameters(Scope.SUBSCRIBE_OK),
        properties=properties,
    ),
    MessageType.REQUEST_UPDATE: st.builds(
        RequestUpdate, request_id=vi64, parameters=parameters(Scope.UPDATE)
    ),
    MessageType.REQUEST_OK: st.builds(
        RequestOk, parameters=parameters(Scope.REQUEST_OK), properties=properties
    ),
    MessageType.REQUEST_ERROR: request_errors,
    MessageType.PUBLISH: st.builds(
        Publish,
        request_id=vi64,
        track=tracks,
        track_alias=vi64,
        parameters=parameters(Scope.PUBLISH),
        properties=properties,
    ),
    MessageType.PUBLISH_DONE: st.builds(
        PublishDone, status_code=vi64, stream_count=vi64, reason=text
    ),
    MessageType.PUBLISH_STATE_NOTIFY: st.builds(
        PublishStateNotify, parameters=parameters(Scope.STATE_NOTIFY)
    ),
    MessageType.FETCH: track_requests(Fetch, Scope.FETCH),
    MessageType.FETCH_OK: st.builds(
        FetchOk, end_of_track=st.booleans(), end_location=locations, properties=properties
    ),
    MessageType.TRACK_STATUS: track_requests(TrackStatus, Scope.TRACK_STATUS),
    MessageType.PUBLISH_NAMESPACE: prefix_requests(PublishNamespace, Scope.PUBLISH_NAMESPACE),
    MessageType.SUBSCRIBE_NAMESPACE: prefix_requests(SubscribeNamespace, Scope.SUBSCRIBE_NAMESPACE),
    MessageType.SUBSCRIBE_TRACKS: prefix_requests(SubscribeTracks, Scope.SUBSCRIBE_TRACKS),
    MessageType.NAMESPACE: st.builds(Namespace, track_namespace_suffix=namespaces),
    MessageType.NAMESPACE_DONE: st.builds(NamespaceDone, track_namespace_suffix=namespaces),
    MessageType.PUBLISH_SKIPPED: st.builds(
        PublishSkipped, track_namespace_suffix=namespaces, track_name=octets
    ),
}
messages = st.one_of(*MESSAGES.values())


def test_every_message_type_has_a_strategy():
    assert set(MESSAGES) == set(MessageType)


@pytest.mark.parametrize("message_type", MESSAGES, ids=lambda item: item.name)
def test_message_survives_the_wire(message_type):
    @some
    @given(MESSAGES[message_type], octets)
    def check(message, trailing):
        encoded = message.encode()

        assert decode_message(encoded) == (message, len(encoded))
        assert decode_message(trailing + encoded + trailing, len(trailing)) == (
            message,
            len(trailing) + len(encoded),
        )

    check()


@some
@given(messages, st.data())
def test_message_cut_anywhere_needs_more(message, data):
    encoded = message.encode()
    cut = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(NeedMore):
        decode_message(encoded[:cut])


@pytest.mark.parametrize("message_type", MESSAGES, ids=lambda item: item.name)
def test_body_of_arbitrary_bytes_decodes_or_closes_the_session(message_type):
    @some
    @given(st.binary(max_size=80))
    def check(body):
        framed = encode_frame(message_type, body)

        try:
            message, end = decode_message(framed)
        except RemoteProtocolError:
            return
        assert end == len(framed)
        if not has_fault(message):
            assert decode_message(message.encode())[0] == message

    check()


def has_fault(message):
    return getattr(getattr(message, "parameters", None), "filter_fault", None) is not None


@many
@given(blocks(Scope.FILL, FillParameters))
def test_fill_means_the_same_with_a_count_and_without(fill):
    counted = fill.encode()
    bare = counted[len(encode_vi64(decode_vi64(counted)[0])) :]

    assert FillParameters.decode(counted) == fill
    assert FillParameters.decode(bare) == fill


@many
@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_only_what_is_documented(data):
    for decode in (
        decode_message,
        ObjectDatagram.decode,
        Token.decode,
        FillParameters.decode,
        lambda data: SubgroupHeader.decode(Reader(data)),
        lambda data: FetchHeader.decode(Reader(data)),
        lambda data: LocationFilter.decode(Reader(data)),
    ):
        with contextlib.suppress(NeedMore, RemoteProtocolError, RequestFailed):
            decode(data)


@many
@given(messages, st.data())
def test_one_changed_octet_raises_only_what_is_documented(message, data):
    encoded = bytearray(message.encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(u8)

    with contextlib.suppress(NeedMore, RemoteProtocolError):
        decode_message(bytes(encoded))


@many
@given(st.binary(max_size=40), locations)
def test_properties_are_kept_exactly(raw, location):
    try:
        decoded = Properties.decode(raw)
    except RemoteProtocolError:
        return

    assert decoded.raw == raw
    with contextlib.suppress(MalformedTrack):
        decoded.check_object(location)


@some
@given(properties)
def test_properties_are_found_in_both_lists(built):
    assert built.fault is None
    found = (*built.pairs, *built.immutable_pairs)
    for number, _ in found:
        assert built.find(number) == next(value for known, value in found if known == number)


# Objects of one Subgroup, as what an Object has besides its place.
contents = st.one_of(
    st.fixed_dictionaries({"payload": octets, "properties": properties}),
    st.fixed_dictionaries({"status": st.sampled_from(ObjectStatus)}),
)
ascending_ids = st.lists(vi64, unique=True, max_size=6).map(sorted)


@st.composite
def subgroup_streams(draw):
    header = SubgroupHeader(
        track_alias=draw(vi64),
        group_id=draw(vi64),
        subgroup_id=draw(st.none() | vi64),
        publisher_priority=draw(st.none() | u8),
        has_properties=draw(st.booleans()),
        end_of_group=draw(st.booleans()),
        first_object=draw(st.booleans()),
    )
    if header.subgroup_id == 0:
        header = header._replace(explicit_subgroup_id=draw(st.booleans()))
    objects = []
    for object_id in draw(ascending_ids):
        content = draw(contents)
        if not header.has_properties:
            content.pop("properties", None)
        objects.append(
            Object(
                group_id=header.group_id,
                object_id=object_id,
                subgroup_id=header.subgroup_id,
                publisher_priority=header.publisher_priority or 0,
                **content,
            )
        )
    return header, objects


def encode_subgroup(header, objects):
    encoded = header.encode()
    previous = None
    for obj in objects:
        encoded += encode_object_header(
            obj, previous_object_id=previous, has_properties=header.has_properties
        )
        encoded += obj.payload
        previous = obj.object_id
    return encoded


class Cutter:
    """Feeds a decoder with ever more bytes, as a session does."""

    def __init__(self, data, cuts):
        self.ends = [*sorted(cuts), len(data)]
        self.data = data
        self.reader = Reader(data[: self.ends[0]])

    def read(self, method):
        while True:
            offset = self.reader.offset
            try:
                return method(self.reader)
            except NeedMore:
                assert self.reader.offset == offset
                self.ends.pop(0)
                self.reader = Reader(self.data[: self.ends[0]], offset)

    @property
    def is_done(self):
        return self.reader.offset == len(self.data)


def cuts_of(data):
    return st.lists(st.integers(0, len(data)), max_size=8)


@many
@given(subgroup_streams(), st.data())
def test_subgroup_stream_survives_any_cut(stream, data):
    header, objects = stream
    encoded = encode_subgroup(header, objects)

    cutter = Cutter(encoded, data.draw(cuts_of(encoded)))
    assert cutter.read(SubgroupHeader.decode) == header
    previous = None
    for obj in objects:
        found = cutter.read(
            lambda reader, previous=previous: decode_object_header(
                reader, previous_object_id=previous, has_properties=header.has_properties
            )
        )
        assert found == (obj.object_id, obj.properties, len(obj.payload), obj.status)
        assert cutter.read(lambda reader, n=found.payload_length: reader.take(n)) == obj.payload
        previous = found.object_id
    assert cutter.is_done


@st.composite
def fetch_streams(draw):
    order = draw(st.sampled_from(GroupOrder))
    group_ids = sorted(
        draw(st.lists(vi64, unique=True, max_size=4)), reverse=order == GroupOrder.DESCENDING
    )
    records = []
    for group_id in group_ids:
        for object_id in draw(ascending_ids):
            if draw(st.integers(0, 3)) == 0:
                marker = draw(st.sampled_from(RangeMarker))
                records.append(EndOfRange(marker, Location(group_id, object_id)))
                continue
            records.append(
                Object(
                    group_id=group_id,
                    object_id=object_id,
                    subgroup_id=draw(st.none() | st.integers(0, 3) | vi64),
                    publisher_priority=draw(st.integers(0, 2) | u8),
                    properties=draw(st.just(EMPTY_PROPERTIES) | properties),
                    payload=draw(octets),
                )
            )
    return order, records


@many
@given(fetch_streams(), st.data())
def test_fetch_stream_survives_any_cut(stream, data):
    order, records = stream
    encoder = FetchEncoder(order)
    encoded = FetchHeader(7).encode()
    for record in records:
        if isinstance(record, EndOfRange):
            encoded += encoder.marker(record.marker, record.location)
        else:
            encoded += encoder.object_header(record) + record.payload

    cutter = Cutter(encoded, data.draw(cuts_of(encoded)))
    decoder = FetchDecoder(order)
    assert cutter.read(FetchHeader.decode) == FetchHeader(7)
    for record in records:
        found = cutter.read(decoder.record)
        if isinstance(record, EndOfRange):
            assert found == record
            continue
        assert found == (
            record.group_id,
            record.object_id,
            record.subgroup_id,
            record.publisher_priority,
            record.properties,
            len(record.payload),
        )
        assert cutter.read(lambda reader, n=found.payload_length: reader.take(n)) == record.payload
    assert cutter.is_done


@many
@given(st.binary(max_size=60), st.sampled_from(GroupOrder))
def test_arbitrary_fetch_records_move_only_forward(data, order):
    reader = Reader(data)
    decoder = FetchDecoder(order)
    places = []

    with contextlib.suppress(NeedMore, RemoteProtocolError):
        while reader.remaining:
            record = decoder.record(reader)
            if isinstance(record, EndOfRange):
                places.append((record.location.group_id, record.location.object_id))
            else:
                places.append((record.group_id, record.object_id))
                reader.take(record.payload_length)

    sign = -1 if order == GroupOrder.DESCENDING else 1
    keys = [(sign * group_id, object_id) for group_id, object_id in places]
    assert all(first < second for first, second in pairwise(keys))
    assert all(0 <= n <= MAX_VI64 for place in places for n in place)


datagrams = st.builds(
    lambda end_of_group, content, **place: ObjectDatagram(
        **place, **content, end_of_group=end_of_group and not content.get("status")
    ),
    track_alias=vi64,
    group_id=vi64,
    object_id=vi64,
    publisher_priority=st.none() | u8,
    end_of_group=st.booleans(),
    content=contents,
)


@many
@given(datagrams)
def test_datagram_survives_the_wire(datagram):
    assert ObjectDatagram.decode(datagram.encode()) == datagram


@many
@given(location_filters(), locations, locations)
def test_fetch_range_is_the_subscription_range_up_to_largest(chosen, largest, place):
    subscribed = chosen.subscription_range(largest)

    fetched = chosen.fetch_range(largest)
    is_fetched = fetched is not None and place in fetched
    assert is_fetched == (place in subscribed and place <= largest)


@many
@given(filter_sets(RANGE_FILTERS), vi64, u8, st.none() | vi64)
def test_range_filters_agree_with_the_rule_spelled_out(filters, object_id, priority, subgroup_id):
    values = {
        ParameterType.SUBGROUP_FILTER: subgroup_id,
        ParameterType.OBJECTID_FILTER: object_id,
        ParameterType.PRIORITY_FILTER: priority,
    }

    def passes(item):
        value = values.get(item.kind)
        return value is not None and any(
            span.start <= value <= (MAX_VI64 if span.end is None else span.end)
            for span in item.ranges
        )

    given_filters = [item for item in filters if item.ranges]
    sets = {item.set_id for item in given_filters}
    expected = not sets or any(
        all(passes(item) for item in given_filters if item.set_id == set_id) for set_id in sets
    )
    assert expected == matches(
        filters,
        subgroup_id=subgroup_id,
        object_id=object_id,
        publisher_priority=priority,
        properties=EMPTY_PROPERTIES,
    )
