"""Delivery timeouts of one subscriber of a relay, whose link is slow (MOQT 22, Section 5.2)."""

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.sim.conftest import LAYERS
from tests.sim.forest import SCOPE_KEY, A, produce, relay, url

from kvcs.client import Publisher
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.errors import StreamResetCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import FullTrackName
from kvcs.testing import LinkProfile, run
from kvcs.transport.interface import TransportConfig
from kvcs.transport.memory_link import Conditions

BLOCKS = 5
TRACK = b"k.raw.s0"
#: Octets per second: the track needs about eight seconds.
SLOW = LinkProfile(bandwidth=800.0)
#: A window that is filled by one Object, so that there are streams of which a part has come.
SMALL = TransportConfig(max_stream_data=256)


class Subscriber:
    """Somebody who takes one Track, and what came on each of its streams."""

    def __init__(self, connection):
        self.connection = connection
        self.objects = defaultdict(list)
        self.ends = {}
        self.done = None

    def receive(self, event):
        match event:
            case ev.ObjectReceived(stream_id=stream_id, obj=obj):
                self.objects[stream_id].append(obj.location)
            case ev.StreamFinished(stream_id=stream_id):
                self.ends[stream_id] = None
            case ev.StreamAborted(stream_id=stream_id, code=code):
                self.ends[stream_id] = code
            case ev.PublishDoneReceived():
                self.done = event
            case _:
                pass

    @property
    def locations(self):
        return sorted(location for got in self.objects.values() for location in got)

    @property
    def is_whole(self):
        """Whether every Object came, and every stream ended with FIN."""
        blocks = [where for where in self.locations if where.object_id < BLOCKS]
        return len(blocks) == LAYERS * BLOCKS + 1 and set(self.ends.values()) == {None}


@asynccontextmanager
async def subscriber(here, track, *, link=None, **timeouts):
    """Subscribe at the relay, over a link of its own."""
    config = ConnectConfig() if link is None else ConnectConfig(transport=SMALL)
    async with connect(url(A), config, transport=here.network) as connection:
        if link is not None:
            connection._transport.peer._out._conditions = Conditions(0, link)
        it = Subscriber(connection)
        parameters = Parameters(location_filter=LocationFilter.next_object(), **timeouts)
        await connection.answer(connection.subscribe(track, parameters, it.receive))
        yield it


async def scenario(here, **timeouts):
    """Publish to somebody with timeouts, to a patient one on such a link, and to a fast one."""
    asked = []
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(relay(here.network, A))
        connection = await stack.enter_async_context(connect(url(A), transport=here.network))
        connection.listen(asked.append)
        source = Publisher(connection, scope_key=SCOPE_KEY, descriptor=here.descriptor)
        publication = await stack.enter_async_context(source.publication(here.tokens))
        segment = await publication.add_segment()
        track = FullTrackName(publication.name.namespace(), TRACK)
        takers = [
            await stack.enter_async_context(subscriber(here, track, **options))
            for options in ({"link": SLOW, **timeouts}, {"link": SLOW}, {})
        ]
        await produce(here, publication, segment, pace=0.01)
        await asyncio.sleep(30)
        return takers, asked


@pytest.mark.parametrize("name", ["object_delivery_timeout_ms", "subgroup_delivery_timeout_ms"])
def test_streams_of_who_sets_a_timeout_are_reset_and_those_of_nobody_else(world, name):
    (impatient, patient, fast), asked = run(scenario(world(), **{name: 2000}))

    assert patient.is_whole
    assert fast.is_whole
    assert set(impatient.ends.values()) == {None, StreamResetCode.DELIVERY_TIMEOUT}
    # No Subgroup was opened again.
    groups = [{where.group_id for where in got} for got in impatient.objects.values()]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert 0 < len(impatient.locations) < len(patient.locations)
    (upstream,) = [event for event in asked if isinstance(event, ev.SubscribeReceived)]
    assert upstream.track.name == TRACK
    assert getattr(upstream.parameters, name) is None
