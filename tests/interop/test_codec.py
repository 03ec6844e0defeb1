"""Both codecs write the same octets for the same values, and read each other's."""

from itertools import product

import pytest
from aiomoqt import messages as theirs
from aiomoqt.context import profile_for
from aiomoqt.messages.d20 import Setup as TheirSetup
from aiomoqt.messages.data import FetchObject
from aiomoqt.messages.params import D20ParamType, LocationFilter, RangeFilter
from aiomoqt.types import FetchType, GroupOrder, ObjectStatus, ParamType, SetupParamType
from aiomoqt.utils.buffer import Buffer

from kvcs.moqt import codepoints
from kvcs.moqt.codepoints import ParameterType, RangeMarker
from kvcs.moqt.wire import filters
from kvcs.moqt.wire.buffer import Reader
from kvcs.moqt.wire.datagram import ObjectDatagram
from kvcs.moqt.wire.fetch import Fetch, FetchOk
from kvcs.moqt.wire.fetch_stream import EndOfRange, FetchDecoder, FetchEncoder
from kvcs.moqt.wire.filters import Range
from kvcs.moqt.wire.goaway import Goaway
from kvcs.moqt.wire.message import UNKNOWN_STREAM_COUNT, decode_message
from kvcs.moqt.wire.namespace import (
    Namespace,
    NamespaceDone,
    PublishNamespace,
    PublishSkipped,
    SubscribeNamespace,
    SubscribeTracks,
)
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import NO_PARAMETERS, FillParameters, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.publish import Publish, PublishDone, PublishStateNotify
from kvcs.moqt.wire.request import Redirect, RequestError, RequestOk, RequestUpdate
from kvcs.moqt.wire.setup import Setup, SetupOptions
from kvcs.moqt.wire.subgroup import SubgroupHeader, decode_object_header, encode_object_header
from kvcs.moqt.wire.subscribe import Subscribe, SubscribeOk
from kvcs.moqt.wire.track_status import TrackStatus
from kvcs.names import FullTrackName, Location, TrackNamespace

PROFILE = profile_for(22)
FIELDS = (b"kvcs-1", bytes(range(200, 216)))
NAMESPACE = TrackNamespace(FIELDS)
TRACK = FullTrackName(NAMESPACE, b"k.raw.s0")
NAMED = {"track_namespace": FIELDS, "track_name": TRACK.name}
# Beyond 63 the integers of QUIC and of MOQT part, beyond 2^62 only MOQT's go on.
LARGE = 2**63 + 5
PROPERTIES = Properties.of((0x04, 60_000), (0x3801, b"abc"))
THEIR_PROPERTIES = {0x04: 60_000, 0x3801: b"abc"}


def written(buffer):
    return bytes(buffer.data_slice(0, buffer.tell()))


def body(message):
    """The body of an encoded message, for their decoder."""
    buffer = Buffer(data=message, vi64=True)
    buffer.pull_vint()
    length = buffer.pull_uint16()
    return buffer, buffer.tell() + length


LOCATION_FILTERS = [
    (filters.LocationFilter.none(), LocationFilter.none()),
    (filters.LocationFilter.relative_start(300), LocationFilter.relative(300)),
    (filters.LocationFilter.next_object(), LocationFilter.next_object()),
    (filters.LocationFilter.absolute_start(5, LARGE), LocationFilter.absolute(5, LARGE)),
    (
        filters.LocationFilter.absolute_start_group_end(5, 2, 300),
        LocationFilter.absolute(5, 2, 305),
    ),
    (filters.LocationFilter.absolute_range(5, 2, 0, 9), LocationFilter.absolute(5, 2, 5, 9)),
]

RANGE_FILTERS = (
    filters.RangeFilter(kind=ParameterType.SUBGROUP_FILTER, ranges=(Range(0, 0),)),
    filters.RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(3, 5), Range(300, None))),
    filters.RangeFilter(kind=ParameterType.PRIORITY_FILTER, set_id=1, ranges=(Range(0, 255),)),
    filters.RangeFilter(
        kind=ParameterType.OBJECT_PROPERTY_FILTER,
        set_id=1,
        property_type=0x3800,
        ranges=(Range(1, LARGE),),
    ),
)
THEIR_RANGE_FILTERS = {
    D20ParamType.SUBGROUP_FILTER: [RangeFilter(ranges=((0, 0),))],
    D20ParamType.OBJECTID_FILTER: [RangeFilter(ranges=((3, 5), (300, None)))],
    D20ParamType.PRIORITY_FILTER: [RangeFilter(set_id=1, ranges=((0, 255),))],
    D20ParamType.OBJECT_PROPERTY_FILTER: [
        RangeFilter(set_id=1, property_type=0x3800, ranges=((1, LARGE),))
    ],
}

MESSAGES = [
    (
        Setup(
            options=SetupOptions(
                path=b"/kvcs?x=1", authority=b"localhost:4433", max_filter_ranges=16
            )
        ),
        TheirSetup(
            options={
                SetupParamType.PATH: b"/kvcs?x=1",
                SetupParamType.AUTHORITY: b"localhost:4433",
                SetupParamType.MAX_FILTER_RANGES: 16,
            }
        ),
    ),
    (
        Setup(options=SetupOptions(implementation="kvcs", max_request_updates=300)),
        TheirSetup(
            options={
                SetupParamType.IMPLEMENTATION: b"kvcs",
                SetupParamType.MAX_REQUEST_UPDATES: 300,
            }
        ),
    ),
    *(
        (
            Subscribe(request_id=300, track=TRACK, parameters=Parameters(location_filter=ours)),
            theirs.Subscribe(request_id=300, **NAMED, location_filter=other),
        )
        for ours, other in LOCATION_FILTERS
    ),
    (
        Subscribe(
            request_id=0,
            track=TRACK,
            parameters=Parameters(
                rendezvous_timeout_ms=1000,
                subscriber_priority=7,
                group_order=codepoints.GroupOrder.DESCENDING,
                forward=False,
                location_filter=filters.LocationFilter.next_object(),
                fill=FillParameters(
                    fill_timeout_ms=300,
                    location_filter=filters.LocationFilter.absolute_start(0, 0),
                    range_filters=RANGE_FILTERS[1:2],
                ),
                range_filters=RANGE_FILTERS,
            ),
        ),
        theirs.Subscribe(
            request_id=0,
            **NAMED,
            priority=7,
            group_order=GroupOrder.DESCENDING,
            forward=0,
            location_filter=LocationFilter.next_object(),
            parameters={
                ParameterType.RENDEZVOUS_TIMEOUT: 1000,
                D20ParamType.FILL_PARAMETERS: {
                    D20ParamType.FILL_TIMEOUT: 300,
                    D20ParamType.LOCATION_FILTER: LocationFilter.absolute(0, 0),
                    D20ParamType.OBJECTID_FILTER: THEIR_RANGE_FILTERS[D20ParamType.OBJECTID_FILTER],
                },
                **THEIR_RANGE_FILTERS,
            },
        ),
    ),
    (
        Subscribe(request_id=2, track=TRACK, parameters=Parameters(fill=FillParameters())),
        theirs.Subscribe(request_id=2, **NAMED, parameters={D20ParamType.FILL_PARAMETERS: {}}),
    ),
    (
        SubscribeOk(
            track_alias=300,
            parameters=Parameters(expires_ms=1000, largest_object=Location(31, LARGE)),
            properties=PROPERTIES,
        ),
        theirs.SubscribeOk(
            track_alias=300,
            expires=1000,
            content_exists=1,
            largest_group_id=31,
            largest_object_id=LARGE,
            track_extensions=THEIR_PROPERTIES,
        ),
    ),
    (
        RequestUpdate(
            request_id=302,
            parameters=Parameters(
                forward=True,
                subscriber_priority=0,
                range_filters=(filters.RangeFilter(kind=ParameterType.OBJECTID_FILTER),),
            ),
        ),
        theirs.RequestUpdate(
            request_id=302,
            parameters={
                ParamType.FORWARD: 1,
                ParamType.SUBSCRIBER_PRIORITY: 0,
                D20ParamType.OBJECTID_FILTER: [RangeFilter(set_id=None)],
            },
        ),
    ),
    (
        RequestUpdate(
            request_id=304, parameters=Parameters(track_namespace_prefix=TrackNamespace(FIELDS))
        ),
        theirs.RequestUpdate(request_id=304, parameters={0x34: FIELDS}),
    ),
    (
        RequestOk(parameters=NO_PARAMETERS, properties=EMPTY_PROPERTIES),
        theirs.RequestOk(parameters={}),
    ),
    (
        RequestOk(parameters=Parameters(largest_object=Location(3, 300)), properties=PROPERTIES),
        theirs.RequestOk(
            parameters={ParamType.LARGEST_OBJECT: (3, 300)}, track_properties=THEIR_PROPERTIES
        ),
    ),
    (
        RequestError(code=0x10, retry_interval=300, reason="nichts da: ü"),
        theirs.RequestError(error_code=0x10, retry_interval=300, reason="nichts da: ü"),
    ),
    (
        RequestError(
            code=0x34, reason="there", redirect=Redirect(uri="moqt://other:4433/", track=TRACK)
        ),
        theirs.RequestError(
            error_code=0x34,
            reason="there",
            redirect=(b"moqt://other:4433/", FIELDS, TRACK.name),
        ),
    ),
    (
        Publish(
            request_id=301,
            track=TRACK,
            track_alias=300,
            parameters=Parameters(
                largest_object=Location(0, 7),
                forward=True,
                group_order=codepoints.GroupOrder.DESCENDING,
            ),
            properties=PROPERTIES,
        ),
        theirs.Publish(
            request_id=301,
            **NAMED,
            track_alias=300,
            # Its field of that name is the default of the Track, a property.
            parameters={ParamType.GROUP_ORDER: GroupOrder.DESCENDING},
            content_exists=1,
            largest_group_id=0,
            largest_object_id=7,
            forward=1,
            track_extensions=THEIR_PROPERTIES,
        ),
    ),
    (
        PublishDone(status_code=0x2, stream_count=300, reason="ended"),
        theirs.SubscribeDone(status_code=0x2, stream_count=300, reason="ended"),
    ),
    (
        PublishDone(status_code=0x0, stream_count=UNKNOWN_STREAM_COUNT, reason=""),
        theirs.SubscribeDone(status_code=0x0, stream_count=2**64 - 1, reason=""),
    ),
    (
        PublishStateNotify(
            parameters=Parameters(
                largest_object=Location(5, 300),
                forward=False,
                location_filter=filters.LocationFilter.absolute_start(6, 0),
            )
        ),
        theirs.PublishStateNotify(
            forward=0,
            largest_group_id=5,
            largest_object_id=300,
            location_filter=LocationFilter.absolute(6, 0),
        ),
    ),
    (
        Fetch(
            request_id=304,
            track=TRACK,
            parameters=Parameters(
                fill_timeout_ms=0,
                subscriber_priority=128,
                location_filter=filters.LocationFilter.absolute_range(0, 0, 31, 7),
                group_order=codepoints.GroupOrder.ASCENDING,
                range_filters=RANGE_FILTERS,
                include_properties=False,
            ),
        ),
        theirs.Fetch(
            fetch_type=FetchType.STANDALONE,
            request_id=304,
            namespace=FIELDS,
            track_name=TRACK.name,
            subscriber_priority=128,
            group_order=GroupOrder.ASCENDING,
            location_filter=LocationFilter.absolute(0, 0, 31, 7),
            parameters={
                D20ParamType.FILL_TIMEOUT: 0,
                D20ParamType.INCLUDE_PROPERTIES: 0,
                **THEIR_RANGE_FILTERS,
            },
        ),
    ),
    (
        # Their End Location is exclusive in the object and inclusive in the octets.
        FetchOk(
            end_of_track=True,
            end_location=Location(32, 0),
            parameters=NO_PARAMETERS,
            properties=PROPERTIES,
        ),
        theirs.FetchOk(
            request_id=0,
            end_of_track=1,
            largest_group_id=32,
            largest_object_id=1,
            track_extensions=THEIR_PROPERTIES,
        ),
    ),
    (
        TrackStatus(request_id=306, track=TRACK, parameters=Parameters(include_properties=False)),
        theirs.TrackStatus(
            request_id=306, **NAMED, parameters={D20ParamType.INCLUDE_PROPERTIES: 0}
        ),
    ),
    (
        PublishNamespace(
            request_id=308, track_namespace_prefix=NAMESPACE, parameters=NO_PARAMETERS
        ),
        theirs.PublishNamespace(request_id=308, namespace=FIELDS, parameters={}),
    ),
    (
        SubscribeNamespace(
            request_id=310, track_namespace_prefix=TrackNamespace(), parameters=NO_PARAMETERS
        ),
        theirs.SubscribeNamespace(request_id=310, namespace_prefix=(), parameters={}),
    ),
    (
        SubscribeTracks(
            request_id=312,
            track_namespace_prefix=NAMESPACE,
            parameters=Parameters(forward=False),
        ),
        theirs.SubscribeTracks(
            request_id=312, namespace_prefix=FIELDS, parameters={ParamType.FORWARD: 0}
        ),
    ),
    (Namespace(track_namespace_suffix=TrackNamespace()), theirs.Namespace(namespace_suffix=())),
    (
        NamespaceDone(track_namespace_suffix=NAMESPACE),
        theirs.NamespaceDone(namespace_suffix=FIELDS),
    ),
    (
        PublishSkipped(track_namespace_suffix=NAMESPACE, track_name=TRACK.name),
        theirs.PublishSkipped(namespace_suffix=FIELDS, track_name=TRACK.name),
    ),
    (
        Goaway(uri="moqt://other/", timeout_ms=300),
        theirs.GoAway(new_session_uri="moqt://other/", timeout=300),
    ),
]


@pytest.mark.parametrize(
    ("ours", "other"), MESSAGES, ids=[type(ours).__name__ for ours, _ in MESSAGES]
)
def test_messages_have_the_same_octets(ours, other):
    octets = written(other.serialize(prof=PROFILE))

    assert ours.encode() == octets
    assert decode_message(octets) == (ours, len(octets))
    buffer, end = body(ours.encode())
    again = type(other).deserialize(buffer, prof=PROFILE, buf_end=end)
    assert buffer.tell() == end
    assert written(again.serialize(prof=PROFILE)) == octets


OBJECTS = [
    (0, b"first", codepoints.ObjectStatus.NORMAL),
    (1, b"second" * 100, codepoints.ObjectStatus.NORMAL),
    (300, b"", codepoints.ObjectStatus.NORMAL),
    (301, b"", codepoints.ObjectStatus.END_OF_GROUP),
]


@pytest.mark.parametrize(
    ("mode", "subgroup_id", "has_properties", "end_of_group", "inherited", "first_object"),
    [
        (*subgroup, *flags)
        for subgroup in ((0, 0), (1, None), (2, 7), (2, 0))
        for flags in product((False, True), repeat=4)
    ],
)
def test_subgroup_streams_have_the_same_octets(
    mode, subgroup_id, has_properties, end_of_group, inherited, first_object
):
    other = theirs.SubgroupHeader(
        track_alias=300,
        group_id=LARGE,
        subgroup_id=subgroup_id,
        publisher_priority=200,
        extensions_present=has_properties,
        end_of_group=end_of_group,
        subgroup_id_mode=mode,
        first_object=first_object,
        default_priority=inherited,
        prof=PROFILE,
    )
    ours = SubgroupHeader(
        track_alias=300,
        group_id=LARGE,
        subgroup_id=subgroup_id,
        publisher_priority=None if inherited else 200,
        has_properties=has_properties,
        end_of_group=end_of_group,
        first_object=first_object,
        explicit_subgroup_id=(mode, subgroup_id) == (2, 0),
    )
    header = written(other.serialize())
    reader = Reader(header)

    assert ours.encode() == header
    assert SubgroupHeader.decode(reader) == ours
    previous = None
    for object_id, payload, status in OBJECTS:
        is_normal = status is codepoints.ObjectStatus.NORMAL
        with_properties = has_properties and is_normal
        obj = Object(
            group_id=LARGE,
            object_id=object_id,
            subgroup_id=subgroup_id,
            publisher_priority=200,
            status=status,
            properties=PROPERTIES if with_properties else EMPTY_PROPERTIES,
            payload=payload,
        )
        octets = written(
            other.next_object(
                payload,
                extensions=THEIR_PROPERTIES if with_properties else None,
                status=ObjectStatus(status),
                object_id=object_id,
            )
        )
        start = encode_object_header(
            obj, previous_object_id=previous, has_properties=has_properties
        )
        assert start + payload == octets
        reader = Reader(octets)
        decoded = decode_object_header(
            reader, previous_object_id=previous, has_properties=has_properties
        )
        assert (decoded.object_id, decoded.status) == (object_id, status)
        assert decoded.properties == obj.properties
        assert reader.take(decoded.payload_length) == payload
        previous = object_id


RECORDS = [
    (3, 0, 0, 10, b"one"),
    (3, 1, 0, 10, b""),
    (3, 300, 5, 11, b"three"),
    (4, 2, 6, 11, b"four"),
    RangeMarker.UNKNOWN,
    (LARGE, 0, 6, 128, b"five"),
    RangeMarker.TIMED_OUT,
]
MARKED = Location(7, 9)


def test_fetch_streams_are_read_alike():
    # Both may describe a record in several ways, so only what is read is compared.
    encoder = FetchEncoder(codepoints.GroupOrder.ASCENDING)
    decoder = FetchDecoder(codepoints.GroupOrder.ASCENDING)
    mine, prior = b"", None
    marked = MARKED
    for record in RECORDS:
        if isinstance(record, RangeMarker):
            other = FetchObject(
                group_id=marked.group_id, object_id=marked.object_id, end_of_range=int(record)
            )
            mine += encoder.marker(record, marked)
            expected = EndOfRange(record, marked)
            payload = b""
        else:
            group_id, object_id, subgroup_id, priority, payload = record
            other = FetchObject(
                group_id=group_id,
                subgroup_id=subgroup_id,
                object_id=object_id,
                publisher_priority=priority,
                payload=payload,
            )
            obj = Object(
                group_id=group_id,
                object_id=object_id,
                subgroup_id=subgroup_id,
                publisher_priority=priority,
                payload=payload,
            )
            mine += encoder.object_header(obj) + payload
            expected = None
        reader = Reader(written(other.serialize(prof=PROFILE, prior=prior)))
        read = decoder.record(reader)
        if expected is not None:
            assert read == expected
            other.subgroup_id, other.publisher_priority = (
                prior.subgroup_id,
                prior.publisher_priority,
            )
            marked = Location(LARGE, 5)
        else:
            assert (
                read.group_id,
                read.object_id,
                read.subgroup_id,
                read.publisher_priority,
                reader.take(read.payload_length),
            ) == record
        assert not reader.remaining
        prior = other

    buffer, prior = Buffer(data=mine, vi64=True), None
    for record in RECORDS:
        again = FetchObject.deserialize(buffer, prior=prior, prof=PROFILE, group_order=1)
        if isinstance(record, RangeMarker):
            assert again.end_of_range == record
            again.subgroup_id, again.publisher_priority = (
                prior.subgroup_id,
                prior.publisher_priority,
            )
        else:
            assert (
                again.group_id,
                again.object_id,
                again.subgroup_id,
                again.publisher_priority,
                bytes(again.payload),
            ) == record
        prior = again
    assert buffer.tell() == len(mine)


@pytest.mark.parametrize("object_id", [0, 300])
@pytest.mark.parametrize("properties", [False, True])
def test_datagrams_have_the_same_octets(object_id, properties):
    other = theirs.ObjectDatagram(
        track_alias=300,
        group_id=LARGE,
        object_id=object_id,
        publisher_priority=9,
        extensions=THEIR_PROPERTIES if properties else None,
        payload=b"payload",
        end_of_group=True,
    )
    octets = written(other.serialize(prof=PROFILE))

    ours = ObjectDatagram.decode(octets)

    assert ours.encode() == octets
    assert (ours.track_alias, ours.group_id, ours.object_id) == (300, LARGE, object_id)
