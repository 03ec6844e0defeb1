"""Our publisher pushes its tracks with PUBLISH; aiomoqt takes them without asking for each."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiomoqt.types import MOQTMessageType, ObjectStatus, SubscribeDoneCode
from tests.interop.sites import (
    BLOCKS,
    LAYERS,
    PATIENCE,
    K,
    V,
    client,
    client_config,
    relay_of,
    server,
    url,
)
from tests.interop.subscriber import Arrivals, by_location

from kvcs.client import Publisher, PublisherConfig
from kvcs.client.signal import Signal
from kvcs.endpoint.connect import connect
from kvcs.kv import MANIFEST, parse_manifest, publisher_priority

FIRST_FIELD = (b"kvcs-1",)


class Taker:
    """Accepts every PUBLISH, and writes down what comes.

    Attributes:
        tracks: What came, by Track Name.
        handlers: For the aiomoqt client or server.
    """

    def __init__(self):
        self.tracks = {}
        self.handlers = [(MOQTMessageType.PUBLISH, self._accept)]
        self._signal = Signal()

    async def _accept(self, session, msg):
        arrivals = self.tracks[msg.track_name] = Arrivals()
        session.register_publish_done_handler(msg.request_id, arrivals.receive_done)
        session.register_object_handler(msg.track_alias, arrivals.receive_object)
        session.register_stream_end_handler(msg.track_alias, arrivals.receive_end)
        session.publish_ok(msg)
        self._signal.set()

    async def finished(self, name):
        await self._signal.until(lambda: name in self.tracks)
        arrivals = self.tracks[name]
        await arrivals.signal.until(
            lambda: arrivals.done and len(arrivals.ended) >= arrivals.done.stream_count
        )
        return arrivals


@asynccontextmanager
async def to_aiomoqt(taker, certificate):
    """Our publisher dials an aiomoqt server; gives the port to dial."""
    async with server(certificate, taker.handlers) as port:
        yield port


@asynccontextmanager
async def through_our_relay(taker, certificate):
    """An aiomoqt client subscribes to all tracks of a prefix at our relay; gives its port."""
    async with (
        relay_of(certificate) as relay,
        client(relay.address.port, certificate, taker.handlers) as session,
    ):
        await session.subscribe_tracks(FIRST_FIELD, wait_response=True)
        yield relay.address.port


@pytest.mark.parametrize("route", [to_aiomoqt, through_our_relay])
async def test_pushed_tracks_arrive_from_their_first_object(route, prompt, certificate):
    taker = Taker()
    async with (
        asyncio.timeout(PATIENCE),
        route(taker, certificate) as port,
        connect(url(port), client_config(certificate)) as connection,
    ):
        publisher = Publisher(
            connection,
            scope_key=prompt.scope_key,
            descriptor=prompt.descriptor,
            config=PublisherConfig(push=True),
        )
        async with publisher.publication(prompt.tokens) as publication:
            segment = await publication.add_segment()
            await prompt.publish(segment, range(LAYERS))
            await publication.complete()
            pushed = {name: await taker.finished(name.format()) for name in (K, V)}
            manifest = await taker.finished(MANIFEST)

    assert taker.tracks.keys() == {MANIFEST, K.format(), V.format()}
    for name, arrivals in pushed.items():
        assert by_location(arrivals.live) == prompt.objects(name)
        assert sorted(arrivals.statuses) == [
            *(
                ((layer, BLOCKS), ObjectStatus.END_OF_GROUP, publisher_priority(layer, LAYERS))
                for layer in range(LAYERS)
            ),
            ((LAYERS, 0), ObjectStatus.END_OF_TRACK, 128),
        ]
        assert arrivals.done.status_code == SubscribeDoneCode.TRACK_ENDED
    (_, (_, last)) = max(by_location(manifest.live).items())
    assert parse_manifest(last) == publication.manifest
