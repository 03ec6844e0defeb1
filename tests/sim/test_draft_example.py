"""The example of the KVCS draft: Producer, Relay A, Relay B, Consumer ("Relay Considerations").

Part of a cache is held at Relay B, part of it is still being produced. Between relays this
implementation lists namespaces with NAMESPACE, on a SUBSCRIBE_NAMESPACE of Relay B, where the
figure draws PUBLISH_NAMESPACE: draft 22 does not forward that to subscribers.
"""

import asyncio

from tests.sim.forest import A, B, assert_whole, consume, produce, publisher, relay, settled

from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.names import Location
from kvcs.relay import RelayLimits
from kvcs.testing import run

HELD = 4
TRACK = b"k.raw.s0"
LIMITS = RelayLimits(subscription_linger=0.5)


def record(name, it, log):
    """Note every message that a relay receives, with what is said of a Track."""
    receive = it._core.receive

    def note(peer, event, *, now):
        log.append((name, peer, event))
        receive(peer, event, now=now)

    it._core.receive = note


class Sequence:
    """What two relays received about one Track, as short words in order.

    Args:
        log: What `record` noted.
        upstream: Requests of the relays themselves for that Track.
    """

    def __init__(self, log, upstream):
        self.words = []
        requests = set(upstream)
        for name, peer, event in log:
            request = name, peer.id, getattr(event, "request_id", None)
            if getattr(event, "track", None) is not None and event.track.name == TRACK:
                requests.add(request)
            if request in requests:
                self.add(name, event)

    def add(self, name, event):
        match event:
            case ev.SubscribeReceived():
                self.words.append(f"{name}: SUBSCRIBE")
            case ev.FetchReceived():
                self.words.append(f"{name}: FETCH")
            case ev.SubscribeAccepted():
                self.words.append(f"{name}: SUBSCRIBE_OK")
            case ev.ObjectReceived() if event.obj.status is ObjectStatus.END_OF_TRACK:
                self.words.append(f"{name}: End of Track")
            case ev.ObjectReceived() if event.obj.status is ObjectStatus.NORMAL:
                kind = "fetched" if event.is_fetch else "group"
                self.words.append(f"{name}: {kind} {event.obj.group_id}")
            case ev.PublishDoneReceived():
                self.words.append(f"{name}: PUBLISH_DONE")


def upstream_requests(name, it):
    """Return the upstream subscriptions of one Track."""
    (track,) = [t for t in it._core._tracks.values() if t.name.name == TRACK]
    return {(name, s.peer.id, s.request_id) for s in track.supply.subscriptions}


def test_part_is_cached_at_relay_b_and_part_is_still_in_production(world):
    async def scenario():
        here, log = world(), []
        async with (
            relay(here.network, A, limits=LIMITS) as a,
            relay(here.network, B, A, limits=LIMITS) as b,
        ):
            await settled(b)
            record("A", a, log)
            record("B", b, log)
            async with publisher(here, A) as it, it.publication(here.tokens) as publication:
                segment = await publication.add_segment()
                # Somebody was here before, so that Relay B holds the first layers.
                early = asyncio.ensure_future(
                    consume(here, B, name=publication.name, layers=range(HELD))
                )
                await produce(here, publication, segment, layers=HELD)
                await early
                await asyncio.sleep(3)
                assert b.statistics().subscriptions == a.statistics().subscriptions == 0
                listed = [
                    e for n, _, e in log if (n, type(e)) == ("A", ev.PublishNamespaceReceived)
                ]
                log.clear()
                before = b.statistics()
                task = asyncio.ensure_future(consume(here, B))
                await asyncio.sleep(0.5)
                known = upstream_requests("A", a) | upstream_requests("B", b)
                for layer_index in range(HELD, 6):
                    await here.publish_layer(segment, layer_index)
                    await asyncio.sleep(0.1)
                await publication.complete()
                verdict = await task
            return verdict, listed, log, known, before, b.statistics()

    verdict, listed, log, known, before, after = run(scenario())

    assert_whole(verdict)
    assert verdict.duplicate == 0
    assert len(listed) == 1
    # The namespace: Relay B asks for what its consumer asks for, and is told.
    kinds = [(name, type(event)) for name, _, event in log]
    assert kinds.index(("B", ev.SubscribeNamespaceReceived)) < kinds.index(
        ("A", ev.SubscribeNamespaceReceived)
    )
    assert ("B", ev.NamespaceReceived) in kinds
    # The Track: requests go up, answers come down, the live part follows.
    words = Sequence(log, known).words
    assert words[:4] == ["B: SUBSCRIBE", "A: SUBSCRIBE", "A: SUBSCRIBE_OK", "B: SUBSCRIBE_OK"]
    live = [word for word in words if "group" in word or "End" in word]
    for group_id in (HELD, HELD + 1):
        places = [[i for i, w in enumerate(live) if w == f"{n}: group {group_id}"] for n in "AB"]
        assert [len(found) for found in places] == [5, 5]
        assert places[0][0] < places[1][0]
    assert live.index("A: End of Track") < live.index("B: End of Track")
    assert not any(word.startswith(("B: fetched", "A: fetched")) for word in words)
    # The consumer asked for Next Object and a fill from 0/0; Relay B for Next Object only.
    (asked,) = [
        event
        for name, _, event in log
        if isinstance(event, ev.SubscribeReceived) and event.track.name == TRACK and name == "B"
    ]
    assert asked.parameters.location_filter == LocationFilter.next_object()
    assert asked.parameters.fill.location_filter == LocationFilter.absolute_start(0, 0)
    (above,) = [
        event
        for name, _, event in log
        if isinstance(event, ev.SubscribeReceived) and event.track.name == TRACK and name == "A"
    ]
    assert above.parameters.location_filter == LocationFilter.next_object()
    assert above.parameters.fill is None
    # Layers 0..3 came from the cache of Relay B: no FETCH for them crossed the link.
    for name, _, event in log:
        if name == "A" and isinstance(event, ev.FetchReceived) and event.track.name == TRACK:
            start = event.parameters.location_filter
            assert Location(start.start_group, start.start_object) > Location(HELD - 1, 4)
    blocks = 5 * 2 * (6 - HELD)
    assert after.objects_in - before.objects_in <= blocks + 12
