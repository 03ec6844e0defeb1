"""What publisher and consumer ask a peer for, as the peer sees it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from kvcs.client import Consumer, ConsumerConfig, Publisher, PublisherConfig
from kvcs.endpoint.connect import connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.errors import LocalProtocolError, RequestErrorCode, RequestRejected
from kvcs.kv import ScopeKey
from kvcs.moqt.codepoints import ParameterType
from kvcs.moqt.session.events import (
    FetchReceived,
    PublishNamespaceReceived,
    PublishReceived,
    SetupComplete,
    SubscribeNamespaceReceived,
    SubscribeReceived,
)
from kvcs.moqt.wire import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.request import Redirect
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.testing import run
from kvcs.transport.interface import ServerTls

URL = "moqt://localhost:4433/"
SCOPE_KEY = ScopeKey(bytes(range(32)))
TOKEN = Token(token_type=1, value=b"of the scope")


@asynccontextmanager
async def listener(world, on_event):
    """A server that shows every event, with its connection, to a function."""

    def accept(connection):
        connection.listen(lambda event: on_event(connection, event))

    async with serve(
        "localhost",
        4433,
        accept,
        config=ServeConfig(tls=ServerTls(certificate_file="", private_key_file="")),
        transport=world.network,
    ):
        yield


@pytest.mark.parametrize("push", [False, True])
def test_publication_is_announced_by_its_full_namespace_after_its_manifest(world, push):
    async def scenario():
        here = world()
        seen, manifests = [], []

        def on_event(connection, event):
            seen.append(event)
            if isinstance(event, PublishNamespaceReceived | PublishReceived):
                connection.session.accept(event.request_id, now=connection.now)
                connection.wake()
            if isinstance(event, PublishNamespaceReceived):
                manifests.append(publication.tracks.manifest_track.store.largest)

        async with listener(here, on_event), connect(URL, transport=here.network) as connection:
            config = PublisherConfig(push=push, authorization=(TOKEN,))
            publisher = Publisher(
                connection, scope_key=SCOPE_KEY, descriptor=here.descriptor, config=config
            )
            async with publisher.publication(here.tokens) as publication:
                segment = await publication.add_segment()
                await here.publish_all(segment)
                await publication.complete()
                return publication.name, seen, manifests

    name, seen, manifests = run(scenario())

    (announced,) = [event for event in seen if isinstance(event, PublishNamespaceReceived)]
    pushed = [event for event in seen if isinstance(event, PublishReceived)]
    assert announced.namespace == name.namespace()
    assert len(announced.namespace.fields) == 5
    assert manifests == [Location(0, 0)]
    assert len(pushed) == (3 if push else 0)
    for event in (announced, *pushed):
        assert event.parameters.authorization_tokens == (TOKEN,)
        assert event.parameters.object_delivery_timeout_ms is None
        assert event.parameters.subgroup_delivery_timeout_ms is None


async def asked(here, *, layers=None, blocks=None, production=0):
    """Return the requests for data tracks that a publisher sees, and the track's Largest."""
    requests = []
    async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
        segment = await publication.add_segment()
        for layer_index in range(production):
            await here.publish_layer(segment, layer_index)
        if production == here.descriptor.layers:
            await publication.complete()
        async with here.consumer(ConsumerConfig(authorization=(TOKEN,))) as consumer:
            serving = publisher.servings[0]
            serving.connection.listen(requests.append)
            candidate = consumer.candidate(publication.name, here.tokens)
            async with consumer.retrieve(candidate, layers=layers, blocks=blocks, timeout=2):
                await asyncio.sleep(0.5)
    return [
        event
        for event in requests
        if isinstance(event, SubscribeReceived | FetchReceived)
        and event.track.name in {b"k.raw.s0", b"v.raw.s0"}
    ]


def test_live_retrieval_is_a_subscription_from_now_on_and_a_fill_of_what_was(world):
    requests = run(asked(world(), production=3))

    assert [type(event) for event in requests] == [SubscribeReceived, SubscribeReceived]
    for event in requests:
        assert event.parameters.location_filter == LocationFilter.next_object()
        fill = event.parameters.fill
        assert fill is not None
        assert fill.location_filter == LocationFilter.absolute_start(0, 0)
        assert event.parameters.authorization_tokens == (TOKEN,)
        assert event.parameters.object_delivery_timeout_ms is None
        assert event.parameters.subgroup_delivery_timeout_ms is None


def test_layers_of_a_complete_publication_are_fetched_in_ascending_order(world):
    here = world()

    requests = run(asked(here, layers=range(1, 4), production=here.descriptor.layers))

    assert [type(event) for event in requests] == [FetchReceived, FetchReceived]
    for event in requests:
        wanted = LocationFilter.absolute_start_group_end(1, 0, 2)
        assert event.parameters.location_filter == wanted
        assert event.parameters.group_order == 1
        assert event.parameters.range_filters == ()


@pytest.mark.parametrize("filter_ranges", [16, 0])
def test_first_blocks_are_filtered_where_the_peer_takes_filters(world, filter_ranges):
    here = world(filter_ranges=filter_ranges)
    blocks = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 1),))

    requests = run(asked(here, blocks=2, production=here.descriptor.layers))

    assert [type(event) for event in requests] == [FetchReceived, FetchReceived]
    for event in requests:
        assert event.parameters.range_filters == ((blocks,) if filter_ranges else ())


def test_discovery_asks_for_the_anchor_keys_of_the_prompt_only(world):
    async def scenario():
        here = world()
        prefixes = []

        def on_event(connection, event):
            if isinstance(event, SubscribeNamespaceReceived):
                prefixes.append(event.prefix)
                connection.session.accept(event.request_id, now=connection.now)
                connection.wake()

        async with listener(here, on_event), connect(URL, transport=here.network) as connection:
            consumer = Consumer(connection, scope_key=SCOPE_KEY, descriptor=here.descriptor)
            assert await consumer.discover(here.tokens) == []
            keys = consumer.block_keys(here.tokens)
        return prefixes, keys

    prefixes, keys = run(scenario())

    assert {prefix.fields[0] for prefix in prefixes} == {b"kvcs-1"}
    assert [len(prefix.fields) for prefix in prefixes] == [4] * len(keys)
    assert [prefix.fields[3] for prefix in prefixes] == list(reversed(keys))


@pytest.mark.parametrize("uri", ["moqt://elsewhere:4433/kv", ""])
@pytest.mark.parametrize("kind", [SubscribeReceived, SubscribeNamespaceReceived])
def test_redirect_is_an_error_that_names_where_to_go(world, kind, uri):
    target = FullTrackName(TrackNamespace((b"kvcs-1", b"other")), b"")

    async def scenario():
        here = world()
        asked = []

        def on_event(connection, event):
            if isinstance(event, kind):
                asked.append(event)
                connection.session.reject(
                    event.request_id,
                    RequestErrorCode.REDIRECT,
                    reason="moved",
                    redirect=Redirect(uri, target),
                    now=connection.now,
                )
                connection.wake()

        async with listener(here, on_event), connect(URL, transport=here.network) as connection:
            consumer = Consumer(connection, scope_key=SCOPE_KEY, descriptor=here.descriptor)
            fields = (b"kvcs-1", bytes(16), bytes(32), bytes(32), bytes(16))
            candidate = consumer.candidate(TrackNamespace(fields))

            async def ask():
                if kind is SubscribeNamespaceReceived:
                    return await consumer.discover(here.tokens)
                async with consumer.retrieve(candidate) as retrieval:
                    return retrieval

            with pytest.raises(RequestRejected) as caught:
                await ask()
        return caught.value, asked

    error, asked = run(scenario())

    assert error.code == RequestErrorCode.REDIRECT
    assert str(error).endswith(f"moved; it names {target} at {uri or 'the same address'}")
    # It is not followed: what is elsewhere is another publication, or needs another session.
    assert asked


def test_publication_that_is_over_takes_no_further_segment(world):
    async def scenario():
        here = world()
        async with here.publisher() as publisher, publisher.publication(here.tokens) as publication:
            segment = await publication.add_segment(2)
            await here.publish_all(segment)
            await publication.complete()
            with pytest.raises(LocalProtocolError):
                await publication.add_segment()

    run(scenario())


def test_both_ends_name_the_implementation_and_nothing_more(world):
    async def scenario():
        here = world()
        heard = []
        async with (
            listener(here, lambda _, event: heard.append(event)),
            connect(
                URL,
                transport=here.network,
                on_connection=lambda connection: connection.listen(heard.append),
            ),
        ):
            return heard

    setups = [event for event in run(scenario()) if isinstance(event, SetupComplete)]

    assert [setup.options.implementation for setup in setups] == ["kvcs", "kvcs"]
