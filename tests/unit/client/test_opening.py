"""Sealed Objects are opened in batches, in a thread when it pays, and every one is answered."""

import asyncio
import threading

import pytest

from kvcs.client import ConsumerConfig
from kvcs.client.opening import BATCH_BYTES, Opening, TrackOpening, clear_payload, key_id_of
from kvcs.errors import IntegrityError, KeyMissing
from kvcs.kv.sealing import ObjectKey, ObjectKeys, SealReason, TrackOpener, TrackSealer
from kvcs.moqt.codepoints import PropertyType
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import Properties
from kvcs.names import FullTrackName, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"kvcs-1", b"publication")), b"k.raw.s0")
KEY = ObjectKey(key_id=7, secret=bytes(range(16)))
KEYS = ObjectKeys([KEY])
PROPERTY = 0x78
PAYLOAD = bytes(100) + b"some octets"


def sealed(object_id=0, payload=PAYLOAD):
    sealer = TrackSealer(KEY, TRACK)
    return Object(
        group_id=1,
        object_id=object_id,
        subgroup_id=0,
        publisher_priority=3,
        properties=Properties.of((PropertyType.IMMUTABLE_PROPERTIES, sealer.immutable)),
        payload=sealer.seal(1, object_id, 3, payload),
    )


class Desk:
    """Hands Objects in, and notes what comes back, where it was opened, and when."""

    def __init__(self, **options):
        self.opened = {}
        self.threads = {}
        self.changes = 0
        self.opening = Opening(ConsumerConfig(object_keys=KEYS, **options), self.change)
        self.track = TrackOpening(self.opening, KEYS, TRACK, key_id_property=PROPERTY)
        opener, opened_in = self.track._opener, self.threads

        class Watched:
            def open(self, obj, buffer_of):
                opened_in[obj.object_id] = threading.get_ident()
                return opener.open(obj, buffer_of)

        self.track._opener = Watched()

    def change(self):
        self.changes += 1

    def take(self, object_id=0, obj=None):
        obj = obj or sealed(object_id)
        parts = [memoryview(obj.payload)[:10], memoryview(obj.payload)[10:]]
        self.track.take(obj, parts, len(obj.payload), lambda it: self.note(object_id, it))

    def note(self, object_id, outcome):
        """A payload is there only while it is answered with."""
        is_error = isinstance(outcome, IntegrityError)
        self.opened[object_id] = outcome if is_error else bytes(outcome.payload)

    async def until(self, number):
        async with asyncio.timeout(5):
            # A thread answers: there is no event to wait for.
            while len(self.opened) < number:  # noqa: ASYNC110
                await asyncio.sleep(0)

    @property
    def in_loop(self):
        return [thread == threading.get_ident() for _, thread in sorted(self.threads.items())]


async def test_few_octets_are_opened_in_the_event_loop_after_the_turn():
    desk = Desk()
    desk.take(0)
    desk.take(1)
    before = dict(desk.opened)
    await desk.until(2)

    assert before == {}
    assert desk.in_loop == [True, True]
    assert list(desk.opened.values()) == [PAYLOAD, PAYLOAD]
    assert desk.changes == 1


async def test_many_octets_are_opened_in_a_thread_and_the_next_ones_together():
    desk = Desk(open_threshold_bytes=200)
    desk.take(0)
    desk.take(1)
    await asyncio.sleep(0)
    desk.take(2)
    desk.take(3)
    await desk.until(4)

    assert desk.in_loop == [False] * 4
    assert desk.changes == 2


async def test_no_threshold_means_the_event_loop():
    desk = Desk(open_threshold_bytes=None)
    for object_id in range(10):
        desk.take(object_id, sealed(object_id, bytes(100_000)))
    await desk.until(10)

    assert desk.in_loop == [True] * 10


async def test_what_exceeds_the_budget_is_opened_at_once():
    desk = Desk(open_threshold_bytes=0, max_sealed_bytes=2 * len(sealed().payload))
    for object_id in range(4):
        desk.take(object_id)
    at_once = sorted(desk.opened)
    await desk.until(4)
    desk.take(4)
    after = sorted(desk.opened)

    assert at_once == [2, 3]
    assert desk.in_loop == [False, False, True, True]
    assert 4 not in after
    await desk.until(5)


async def test_a_broken_seal_is_an_answer():
    desk = Desk()
    desk.take(0, sealed(0)._replace(publisher_priority=4))
    await desk.until(1)

    assert isinstance(desk.opened[0], IntegrityError)
    assert desk.opened[0].reason == SealReason.SEAL


async def test_a_thread_that_fails_answers_everyone():
    desk = Desk(open_threshold_bytes=0)
    loop = asyncio.get_running_loop()

    def fail(*_):
        raise MemoryError

    desk.track._opener.open = fail
    desk.take(0)
    desk.take(1)
    await desk.until(2)

    assert [outcome.reason for outcome in desk.opened.values()] == [SealReason.SEAL] * 2
    assert desk.opening._sealed_bytes == 0
    assert not loop.is_closed()


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({}, None),
        ({"properties": Properties()}, SealReason.UNSEALED),
        (
            {"properties": Properties.of((PropertyType.IMMUTABLE_PROPERTIES, b"\x78\x08"))},
            SealReason.UNKNOWN_KEY,
        ),
        ({"properties": Properties.of((PROPERTY, 7))}, SealReason.UNSEALED),
    ],
)
async def test_what_cannot_be_opened_is_known_before_it_is_kept(changes, refusal):
    assert Desk().track.refusal(sealed()._replace(**changes)) == refusal


def test_a_key_id_of_octets_is_none():
    properties = Properties.of((PropertyType.IMMUTABLE_PROPERTIES, b"\x79\x01a"))

    assert key_id_of(properties, 0x79) is None


def test_a_payload_in_clear_is_taken_by_who_has_no_keys():
    obj = sealed()._replace(properties=Properties(), payload=b"{}")

    assert clear_payload(obj, None, PROPERTY) == b"{}"


def test_a_sealed_payload_is_opened_or_names_its_key():
    assert clear_payload(sealed(), TrackOpener(KEYS, TRACK), PROPERTY) == PAYLOAD
    for opener in (None, TrackOpener(ObjectKeys(), TRACK)):
        with pytest.raises(KeyMissing, match="Key ID 7"):
            clear_payload(sealed(), opener, PROPERTY)


def test_who_has_keys_takes_no_payload_in_clear():
    obj = sealed()._replace(properties=Properties(), payload=b"{}")

    with pytest.raises(IntegrityError) as caught:
        clear_payload(obj, TrackOpener(KEYS, TRACK), PROPERTY)

    assert caught.value.reason == SealReason.UNSEALED


async def test_memory_is_used_again_unless_somebody_keeps_a_view():
    desk = Desk()
    seen, kept = [], []

    def note(outcome):
        seen.append(id(outcome.payload.obj))
        kept.append(outcome.payload[3:7] if len(seen) == 1 else None)
        desk.opened[len(seen)] = outcome

    for object_id in range(4):
        obj = sealed(object_id, b"abc%d" % object_id * 100)
        desk.track.take(obj, [obj.payload], len(obj.payload), note)
        await desk.until(object_id + 1)

    assert bytes(kept[0]) == b"0abc"
    assert seen[0] != seen[1] == seen[2] == seen[3]


async def test_a_large_heap_is_opened_batch_by_batch():
    desk = Desk()
    size = BATCH_BYTES // 4
    for object_id in range(10):
        desk.take(object_id, sealed(object_id, bytes(size)))
    await desk.until(10)

    assert desk.in_loop == [False] * 10
    assert desk.changes == 3
    assert desk.opening._workspace._free_bytes <= BATCH_BYTES + size
