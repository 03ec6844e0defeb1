"""Publishers that lie: about payloads, digests, places, priorities, properties, and who they are.

Each forgery is a publication of a prompt that honest publishers publish as well, so that what
is true can be computed. It is announced under a Publication ID of its own, or under that of a
publication that is being served by somebody else; and what is sent live may be another lie
than what is fetched.
"""

import asyncio
import re
from dataclasses import replace
from math import inf

from tests.attacks.liar import Copy, Liar, LiveLiar
from tests.chaos.material import (
    BLOCK_TOKENS,
    BLOCKS,
    DESCRIPTOR,
    LAYERS,
    LAYOUT,
    PROMPTS,
    SCOPE_KEY,
    tensor,
    tokens,
)

from kvcs.client import Consumer, PublisherConfig
from kvcs.client.published import PublishedTracks
from kvcs.endpoint.connect import connect
from kvcs.kv import (
    KVSP_PROVISIONAL,
    RAW,
    BlockPlace,
    Component,
    Manifest,
    PublicationName,
    encode_payload,
)
from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties

_DIGEST = re.compile(rb'"[0-9a-f]{64}"')


def place_of(component, layer_index, block):
    """Return what the Object of one block is."""
    return BlockPlace(
        component=component,
        codec=RAW.number,
        layer_index=layer_index,
        block_index=block,
        token_start=block * BLOCK_TOKENS,
        token_count=BLOCK_TOKENS,
    )


def genuine(prompt, publication_id):
    """Return a publication as its honest publisher would serve it when it is complete."""
    compatibility_id = KVSP_PROVISIONAL.compatibility_id(SCOPE_KEY, DESCRIPTOR)
    keys = KVSP_PROVISIONAL.block_keys(
        SCOPE_KEY, compatibility_id, tokens(prompt), block_tokens=BLOCK_TOKENS
    )
    name = PublicationName(
        scope_id=KVSP_PROVISIONAL.scope_id(SCOPE_KEY),
        compatibility_id=compatibility_id,
        anchor_key=keys[-1],
        publication_id=publication_id,
    )
    published = PublishedTracks(name, Manifest(compat=DESCRIPTOR), PublisherConfig())
    published.add_segment(published.with_segment(keys))
    published.publish_manifest(now=0.0)
    for layer_index in range(LAYERS):
        payloads = {
            track: [payload(prompt, track.component, layer_index, block) for block in range(BLOCKS)]
            for track in published.track_names(0)
        }
        published.add_layer(0, layer_index, payloads, now=0.0)
    return Copy(name, {n: list(track.store.objects()) for n, track in published.tracks.items()})


def payload(prompt, component, layer_index, block, /, data=None, **changes):
    """Return one payload with its digest; `changes` are lies about its place."""
    if data is None:
        size = LAYOUT.data_bytes(component, layer_index)
        data = tensor(prompt, component, layer_index)[block * size :][:size]
    return encode_payload(replace(place_of(component, layer_index, block), **changes), data)


# Lies: each gets its chance, a copy and the number of the prompt, and falsifies a few Objects.


def some_object(chance, copy):
    track = chance.choice([name for name in copy.tracks if name != copy.manifest_name])
    return track, chance.choice([obj for obj in copy.tracks[track] if obj.payload])


def component_of(track):
    return Component.K if track.startswith(b"k") else Component.V


def bit(chance, copy, _prompt):
    """A payload with a bit turned round, under the digest of what it was."""
    track, obj = some_object(chance, copy)
    data = bytearray(obj.payload)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    copy.replace(track, obj, payload=bytes(data))


def size(chance, copy, _prompt):
    """A payload that is cut short, or goes on."""
    track, obj = some_object(chance, copy)
    short = obj.payload[: chance.randrange(len(obj.payload))]
    copy.replace(track, obj, payload=chance.choice([short, obj.payload + chance.randbytes(9)]))


def other_data(chance, copy, prompt):
    """Data of somebody else with a digest that fits, and a place that does."""
    track, obj = some_object(chance, copy)
    data = chance.randbytes(LAYOUT.data_bytes(component_of(track), obj.group_id))
    forged, _ = payload(prompt, component_of(track), obj.group_id, obj.object_id, data)
    copy.replace(track, obj, payload=forged)


def other_prompt(chance, copy, prompt):
    """Genuine Data of another prompt."""
    track, obj = some_object(chance, copy)
    other = (prompt + 1) % PROMPTS
    forged, _ = payload(other, component_of(track), obj.group_id, obj.object_id)
    copy.replace(track, obj, payload=forged)


def swap(chance, copy, _prompt):
    """Two payloads in each other's place."""
    (one, first), (other, second) = some_object(chance, copy), some_object(chance, copy)
    if first is not second:
        copy.replace(one, first, payload=second.payload)
        copy.replace(other, second, payload=first.payload)


def header(chance, copy, prompt):
    """A header that says another place than the Location."""
    track, obj = some_object(chance, copy)
    field = chance.choice(["layer_index", "block_index", "token_start", "token_count", "codec"])
    component = component_of(track)
    right = getattr(place_of(component, obj.group_id, obj.object_id), field)
    lie = {field: right + chance.randrange(1, 100)}
    forged, _ = payload(prompt, component, obj.group_id, obj.object_id, **lie)
    copy.replace(track, obj, payload=forged)


def digests(chance, copy, _prompt):
    """A manifest that lists a digest that no Object has."""
    for obj in list(copy.tracks[copy.manifest_name]):
        head, name, listed = obj.payload.partition(b'"object_digests"')
        if found := list(_DIGEST.finditer(listed)):
            place = chance.choice(found)
            lie = b'"%s"' % chance.randbytes(32).hex().encode()
            listed = listed[: place.start()] + lie + listed[place.end() :]
            copy.replace(copy.manifest_name, obj, payload=head + name + listed)


def priority(chance, copy, _prompt):
    """Objects that say that they are more urgent, or less, than they are."""
    for track, objects in copy.tracks.items():
        for obj in list(objects):
            if chance.random() < 0.3:
                other = (obj.publisher_priority + chance.randrange(1, 256)) % 256
                copy.replace(track, obj, publisher_priority=other)


def properties(chance, copy, _prompt):
    """Object Properties that the publication does not have."""
    pair = chance.choice([(0x3FF0, 7), (0x3FF1, b"note"), (PropertyType.IMMUTABLE_PROPERTIES, b"")])
    for _ in range(3):
        track, obj = some_object(chance, copy)
        copy.replace(track, obj, properties=Properties.of(pair))


def end(chance, copy, _prompt):
    """The end of a Group, or of the Track, where there is an Object."""
    track, obj = some_object(chance, copy)
    status = chance.choice([ObjectStatus.END_OF_GROUP, ObjectStatus.END_OF_TRACK])
    copy.replace(track, obj, status=status, payload=b"", properties=EMPTY_PROPERTIES)


def absence(chance, copy, _prompt):
    """An Object that is not there, in a Group that says that it is whole."""
    track, gone = some_object(chance, copy)
    copy.remove(track, lambda obj: obj is gone)


LIES = {
    lie.__name__: lie
    for lie in (
        bit, size, other_data, other_prompt, swap, header, digests, priority, properties, end,
        absence,
    )
}  # fmt: skip


class Forger(LiveLiar):
    """Serves a forgery to a relay, and counts the false Objects that it sends.

    Args:
        true: What the publication is.
        live: What subscribers get, in fills and as it is produced.
        fetched: What FETCHes get.
        joined: Layers that are there when somebody subscribes; the others come `pace` later.

    Attributes:
        told: Objects that were sent and are not those of `true`.
        complete_at: When all was published, in monotonic seconds.
    """

    def __init__(self, true, live, fetched, **options):
        super().__init__(live, **options)
        self.told = 0
        self.complete_at = inf
        # Kept, since Objects are known by their identity.
        self._true = {id(obj): obj for objects in true.tracks.values() for obj in objects}
        self._fetched = fetched

    def receive(self, connection, event):
        if not isinstance(event, ev.TrackStatusReceived):
            super().receive(connection, event)
        elif connection.session.is_active(event.request_id):
            there = self._there(connection, event, self.objects(event.track))
            if there is None:
                self.reject(connection, event)
            else:
                largest = max((obj.location for obj in there), default=None)
                parameters = Parameters(largest_object=largest)
                connection.session.accept(event.request_id, parameters, now=connection.now)
            connection.wake()

    def answer_fetch(self, connection, event, objects):
        false = None if objects is None else self._fetched.tracks.get(event.track.name)
        there = self._there(connection, event, false)
        Liar.answer_fetch(self, connection, event, there or None)

    def _there(self, connection, event, objects):
        """Return those of a Track's Objects that are published by now."""
        if objects is None or connection.now >= self.complete_at:
            return objects
        return [obj for obj in objects if self.is_old(event.track, obj)]

    def go_on(self, connection, event, objects):
        self.complete_at = min(self.complete_at, connection.now)
        super().go_on(connection, event, objects)

    def fetch_stream(self, connection, request_id, objects, *, finish=True):
        self._count(objects)
        return super().fetch_stream(connection, request_id, objects, finish=finish)

    def subgroup_stream(self, connection, request_id, objects, *, finish=True):
        self._count(objects)
        return super().subgroup_stream(connection, request_id, objects, finish=finish)

    def _count(self, objects):
        self.told += sum(id(obj) not in self._true for obj in objects)


async def forge(settings, config, chance, tell):
    """Serve one forgery for a while.

    Args:
        settings: Those of the process.
        config: How it connects.
        chance: Its own chance.
        tell: Called with the lies in it when it begins, and then, without any, with how many
            false Objects were sent since.
    """
    prompt = chance.randrange(PROMPTS)
    async with connect(settings["url"], config) as connection:
        publication_id = await borrowed_id(connection, prompt, chance)
        true = await asyncio.to_thread(genuine, prompt, publication_id)
        lies = chance.sample(sorted(LIES), chance.choice([1, 1, 2, 3]))
        live = falsified(true, lies, prompt, chance)
        fetched = falsified(true, lies, prompt, chance) if chance.random() < 0.3 else live
        joined, pace = chance.randrange(LAYERS + 1), chance.uniform(0, 2)
        forger = Forger(true, live, fetched, joined=joined, pace=pace)
        forger.attach(connection)
        connection.publish_namespace(true.namespace)
        tell(lies, 0)
        told = 0
        for _ in range(chance.randrange(6, 24)):
            await asyncio.sleep(0.5)
            tell([], forger.told - told)
            told = forger.told


def falsified(true, lies, prompt, chance):
    copy = Copy(true.name, {name: list(objects) for name, objects in true.tracks.items()})
    for lie in lies:
        LIES[lie](chance, copy, prompt)
    return copy


async def borrowed_id(connection, prompt, chance):
    """Return the Publication ID of somebody else, or a new one."""
    if chance.random() < 0.5:
        consumer = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
        if found := await consumer.discover(tokens(prompt), timeout=2.0):
            return chance.choice(found).name.publication_id
    return chance.randbytes(16)
