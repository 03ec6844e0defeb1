"""A subscriber of a prefix that lets fewer streams begin than Tracks are published below it."""

import asyncio

import pytest
from tests.attacks.liar import TLS, URL

from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.errors import RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.testing import MemoryNetwork, run
from kvcs.transport.interface import TransportConfig

PREFIX = TrackNamespace((b"pushed",))
NAMES = [b"%d" % number for number in range(6)]


class Subscriber:
    """Subscribes to the prefix, and notes what it is offered and told."""

    def __init__(self, connection):
        self.connection = connection
        self.offers, self.skipped = [], []
        connection.listen(self.take)
        self.request_id = connection.session.subscribe_tracks(PREFIX, now=connection.now)
        connection.on_request(self.request_id, self.take)
        connection.wake()

    def take(self, event):
        match event:
            case ev.PublishReceived():
                self.offers.append(event)
            case ev.PublishSkippedReceived():
                self.skipped.append(event.track_name)

    def refuse_all(self):
        for offer in self.offers:
            self.connection.session.reject(
                offer.request_id, RequestErrorCode.UNINTERESTED, now=self.connection.now
            )
        self.connection.wake()

    @property
    def offered(self):
        return [offer.track.name for offer in self.offers]


async def scenario(*, comes_first):
    network = MemoryNetwork()
    async with (
        Relay(RelayConfig(tls=TLS, authorize=allow_all), transport=network),
        connect(URL, transport=network) as publisher,
        connect(
            URL, ConnectConfig(transport=TransportConfig(max_bidi_streams=5)), transport=network
        ) as connection,
    ):
        subscriber = Subscriber(connection) if comes_first else None
        await asyncio.sleep(1)
        for name in NAMES:
            publisher.session.publish(FullTrackName(PREFIX, name), now=publisher.now)
        publisher.wake()
        await asyncio.sleep(1)
        subscriber = subscriber or Subscriber(connection)
        await asyncio.sleep(1)
        before = subscriber.offered, list(subscriber.skipped)

        subscriber.refuse_all()  # whose streams may begin again
        await asyncio.sleep(5)
        return *before, subscriber.offered


@pytest.mark.parametrize("comes_first", [True, False])
def test_tracks_for_which_no_stream_can_begin_are_skipped_and_never_published(comes_first):
    offered, skipped, later = run(scenario(comes_first=comes_first))

    assert offered == later == NAMES[:2]
    assert skipped == NAMES[2:]
