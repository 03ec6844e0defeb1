"""A peer that says whatever it is told to: raw Objects, raw answers, no checks of its own.

`Copy` is one publication as plain Objects, to be falsified before it is served. `Liar` serves
copies to everyone who connects; its answers are methods, so that a lie is a small subclass.
Both know the draft well enough to lie in every place, and keep to it everywhere else.
"""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from kvcs.client import Consumer, PublisherConfig
from kvcs.client.layer_encoding import LayerSeal, encode_layer
from kvcs.client.published import PublishedTracks
from kvcs.endpoint.connect import connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.errors import KvcsError, PublishDoneCode, RequestErrorCode
from kvcs.kv import (
    KVSP_PROVISIONAL,
    MANIFEST,
    RAW,
    SIGNED_MANIFEST,
    BlockPlace,
    Component,
    Descriptor,
    Dtype,
    Layout,
    Manifest,
    PublicationName,
    ScopeKey,
    encode_payload,
    publisher_priority,
)
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, Location
from kvcs.testing import MemoryNetwork
from kvcs.transport.interface import ServerTls

URL = "moqt://localhost:4433/"
SCOPE_KEY = ScopeKey(bytes(range(32)))
TLS = ServerTls(certificate_file="", private_key_file="")
LAYERS, BLOCKS, BLOCK_TOKENS = 4, 3, 4
TOKENS = [token * 7 for token in range(BLOCKS * BLOCK_TOKENS + 1)]
DESCRIPTOR = Descriptor(
    layers=LAYERS,
    block_tokens=BLOCK_TOKENS,
    dtype=Dtype.FLOAT16,
    position="rope-applied",
    weights_sha256="11" * 32,
    tokenizer_sha256="22" * 32,
    kv_heads=2,
    head_dim=8,
)
LAYOUT = Layout(DESCRIPTOR)
K, V = b"k.raw.s0", b"v.raw.s0"
TRACKS = {K: Component.K, V: Component.V}


def tensor(component, layer_index, blocks=BLOCKS):
    """Data of one layer, every block different from all others."""
    size = LAYOUT.data_bytes(component, layer_index)
    return b"".join(
        bytes([component, layer_index, block, 0xA5]) * (size // 4) for block in range(blocks)
    )


def is_genuine(layer):
    """Compare a received layer with what was computed."""
    k, v = (tensor(component, layer.layer_index) for component in (Component.K, Component.V))
    return bytes(layer.k) == k and bytes(layer.v) == v


def payload(component, layer_index, block, /, data=None, **changes):
    """One payload and its Data Digest; `changes` are lies about its place."""
    if data is None:
        size = LAYOUT.data_bytes(component, layer_index)
        data = tensor(component, layer_index)[block * size :][:size]
    return encode_payload(replace(place(component, layer_index, block), **changes), data)


def place(component, layer_index, block):
    """What the Object of one block is."""
    return BlockPlace(
        component=component,
        codec=RAW.number,
        layer_index=layer_index,
        block_index=block,
        token_start=block * BLOCK_TOKENS,
        token_count=BLOCK_TOKENS,
    )


@lru_cache
def published(publication_id, layers, config):
    """The name of a publication, and the Objects of all its tracks."""
    compatibility_id = KVSP_PROVISIONAL.compatibility_id(SCOPE_KEY, DESCRIPTOR)
    keys = KVSP_PROVISIONAL.block_keys(
        SCOPE_KEY, compatibility_id, TOKENS, block_tokens=BLOCK_TOKENS
    )
    name = PublicationName(
        scope_id=KVSP_PROVISIONAL.scope_id(SCOPE_KEY),
        compatibility_id=compatibility_id,
        anchor_key=keys[-1],
        publication_id=publication_id,
    )
    made = PublishedTracks(name, Manifest(compat=DESCRIPTOR), config)
    made.add_segment(made.with_segment(keys))
    made.publish_manifest(now=0.0)
    for layer_index in range(layers):
        payloads = {track: layer_of(made, track, layer_index) for track in made.track_names(0)}
        made.add_layer(0, layer_index, payloads, now=0.0)
    return name, {n: tuple(t.store.objects()) for n, t in made.tracks.items()}


def layer_of(made, track, layer_index):
    """Payloads and digests of one layer of one track, sealed if the publication is."""
    sealer = made.tracks[track.format()].sealer
    priority = publisher_priority(layer_index, LAYERS)
    padding = made._config.objects_of(BLOCKS) - BLOCKS
    seal = None if sealer is None else LayerSeal(sealer, priority, padding)
    size = LAYOUT.data_bytes(track.component, layer_index)
    data = tensor(track.component, layer_index)
    blocks = [(data[block * size :][:size],) for block in range(BLOCKS)]
    return encode_layer(place(track.component, layer_index, 0), blocks, seal)


@dataclass
class Copy:
    """One publication as Objects by Track Name, in the order in which they are sent.

    Attributes:
        name: What it is called.
        tracks: Its Objects, to be falsified.
        config: How it was published; None for what nobody published so.
    """

    name: PublicationName
    tracks: dict[bytes, list[Object]] = field(default_factory=dict)
    config: PublisherConfig | None = None

    @classmethod
    def genuine(cls, *, publication_id=b"p" * 16, layers=LAYERS, config=None):
        """A copy of a publication of which `layers` are published."""
        config = config or PublisherConfig()
        name, tracks = published(publication_id, layers, config)
        return cls(name, {track: list(objects) for track, objects in tracks.items()}, config)

    def sibling(self, publication_id=b"q" * 16):
        """Another publication of the same tokens, published in the same way."""
        return self.genuine(publication_id=publication_id, config=self.config)

    @property
    def manifest_name(self):
        """The name of its one manifest track."""
        return SIGNED_MANIFEST if SIGNED_MANIFEST in self.tracks else MANIFEST

    @cached_property
    def namespace(self):
        return self.name.namespace()

    def find(self, track, group_id, object_id):
        location = Location(group_id, object_id)
        return next(obj for obj in self.tracks[track] if obj.location == location)

    def replace(self, track, target, **changes):
        """Falsify one Object."""
        self.tracks[track] = [
            obj._replace(**changes) if obj is target else obj for obj in self.tracks[track]
        ]

    def remove(self, track, is_removed):
        self.tracks[track] = [obj for obj in self.tracks[track] if not is_removed(obj)]

    def add(self, track, group_id, object_id, data=b"", status=ObjectStatus.NORMAL, at=None):
        obj = Object(
            group_id=group_id,
            object_id=object_id,
            subgroup_id=0,
            publisher_priority=128,
            status=status,
            payload=data,
        )
        objects = self.tracks.setdefault(track, [])
        objects.insert(len(objects) if at is None else at, obj)

    def manifest(self, data, version=-1):
        """Put other octets in the place of one version of the manifest."""
        objects = self.tracks[self.manifest_name]
        objects[version] = objects[version]._replace(payload=data)


class Liar:
    """Serves copies to everyone who connects.

    Attributes:
        copies: What it has.
        lies: Functions that answer a kind of request for a track in our place, called with
            the liar, the connection, the event and the Objects of the track.
        asked: Requests that it got.
        connections: Sessions with those who connected.
    """

    def __init__(self, *copies):
        self.copies = copies
        self.lies = {}
        self.asked = []
        self.connections = []

    def attach(self, connection):
        self.connections.append(connection)
        connection.listen(lambda event: self.receive(connection, event))

    def receive(self, connection, event):
        request_id = getattr(event, "request_id", None)
        if request_id is not None and not connection.session.is_active(request_id):
            # Cancelled in the same breath.
            return
        match event:
            case ev.SubscribeNamespaceReceived():
                self.asked.append(event)
                self.list_namespaces(connection, event)
            case ev.SubscribeReceived():
                self.answer(connection, event, type(self).answer_subscribe)
            case ev.FetchReceived():
                self.answer(connection, event, type(self).answer_fetch)
            case ev.UpdateReceived():
                connection.session.accept_update(event.request_id, now=connection.now)
            case _:
                pass
        connection.wake()

    def answer(self, connection, event, answer):
        self.asked.append(event)
        lie = self.lies.get((type(event), event.track.name), answer)
        lie(self, connection, event, self.objects(event.track))

    def lying(self, kind, lie, tracks=(K, V)):
        """Answer requests of one kind for some tracks by `lie`; return the liar."""
        self.lies.update(((kind, track), lie) for track in tracks)
        return self

    def objects(self, track: FullTrackName):
        for copy in self.copies:
            if copy.namespace == track.namespace:
                return copy.tracks.get(track.name)
        return None

    # Answers, to be replaced by lies.

    def list_namespaces(self, connection, event):
        session, now = connection.session, connection.now
        session.accept(event.request_id, now=now)
        for copy in self.copies:
            if event.prefix.is_prefix_of(copy.namespace):
                session.announce(event.request_id, copy.namespace.suffix_of(event.prefix), now=now)

    def answer_subscribe(self, connection, event, objects):
        if objects is None:
            self.reject(connection, event)
            return
        self.accept_subscribe(connection, event, max(obj.location for obj in objects))
        self.fill(connection, event, objects)
        self.done(connection, event)

    def answer_fetch(self, connection, event, objects):
        if objects is None:
            self.reject(connection, event)
            return
        largest = max(obj.location for obj in objects)
        span = (event.parameters.location_filter or LocationFilter.none()).fetch_range(largest)
        if span is None:
            self.reject(connection, event, RequestErrorCode.INVALID_RANGE)
            return
        self.accept_fetch(connection, event, span.end)
        asked = [obj for obj in objects if obj.location in span]
        self.fetch_stream(connection, event.request_id, asked)

    # What answers are made of.

    def reject(self, connection, event, code=RequestErrorCode.DOES_NOT_EXIST):
        connection.session.reject(event.request_id, code, now=connection.now)

    def accept_subscribe(self, connection, event, largest):
        parameters = Parameters(largest_object=largest)
        connection.session.accept_subscribe(event.request_id, parameters, now=connection.now)

    def accept_fetch(self, connection, event, end, *, end_of_track=False):
        connection.session.accept_fetch(
            event.request_id, end_of_track=end_of_track, end_location=end, now=connection.now
        )

    def fill(self, connection, event, objects):
        if event.parameters.fill is None:
            return
        largest = max(obj.location for obj in objects)
        span = event.parameters.fill.location_filter.fetch_range(largest)
        wanted = [obj for obj in objects if span is not None and obj.location in span]
        self.fetch_stream(connection, event.request_id, wanted)

    def marker_stream(self, connection, request_id, marker, location):
        """Send a fetch stream of one End of Range record."""
        session, now = connection.session, connection.now
        stream_id = self.fetch_stream(connection, request_id, [], finish=False)
        session.send_marker(stream_id, marker, location, now=now)
        session.finish_stream(stream_id, now=now)

    def fetch_stream(self, connection, request_id, objects, *, finish=True):
        """Send Objects on a fetch stream; it has no place for status Objects."""
        session, now = connection.session, connection.now
        stream_id = session.open_fetch_stream(
            request_id, order=GroupOrder.ASCENDING, priority=4, now=now
        )
        for obj in objects:
            if obj.status is ObjectStatus.NORMAL:
                session.send_object(stream_id, obj, now=now)
        if finish:
            session.finish_stream(stream_id, now=now)
        return stream_id

    def subgroup_stream(self, connection, request_id, objects, *, finish=True):
        """Send Objects of one Group on a Subgroup stream."""
        session, now = connection.session, connection.now
        header = SubgroupHeader(
            track_alias=0,
            group_id=objects[0].group_id,
            subgroup_id=0,
            publisher_priority=objects[0].publisher_priority,
            has_properties=any(obj.properties for obj in objects),
        )
        stream_id = session.open_subgroup(request_id, header, priority=4, now=now)
        for obj in objects:
            session.send_object(stream_id, obj, now=now)
        if finish:
            session.finish_stream(stream_id, now=now)
        return stream_id

    def done(self, connection, event, code=PublishDoneCode.TRACK_ENDED):
        if not connection.session.open_streams(event.request_id):
            connection.session.publish_done(event.request_id, code, now=connection.now)

    def reset_later(self, connection, stream_id, code=0):
        """Reset a stream when its first bytes have arrived: a reset overtakes what is queued."""

        def reset():
            if connection.session.is_open(stream_id):
                connection.session.reset_stream(stream_id, code, now=connection.now)
                connection.wake()

        asyncio.get_running_loop().call_later(0.05, reset)

    # Being served.

    @asynccontextmanager
    async def open(self, network):
        async with serve(
            "localhost", 4433, self.attach, config=ServeConfig(tls=TLS), transport=network
        ):
            yield self


@dataclass
class Outcome:
    """What became of a retrieval: a verdict, or the error that it began with."""

    verdict: object = None
    error: KvcsError | None = None
    layers: int = 0
    forged: int = 0
    seconds: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def is_whole(self):
        return self.verdict is not None and self.verdict.complete and self.layers == LAYERS


async def retrieve(
    liar,
    *,
    network=None,
    timeout=20.0,  # noqa: ASYNC109 - that of the retrieval
    config=None,
    discovering=False,
    **options,
):
    """Retrieve everything from a liar, and see that nothing wrong stays unnoticed.

    Every layer that is given must be genuine. Only a liar that computes the digests of its
    forgeries anew can pass one, while no manifest lists that layer: it stays unconfirmed, and
    is discarded with all others as soon as one does.

    Returns within the deadline, whatever the peer does; raises only what is no KvcsError.
    """
    network = network or MemoryNetwork()
    loop = asyncio.get_running_loop()
    outcome = Outcome()
    async with liar.open(network), asyncio.timeout(timeout + 30):
        started = loop.time()
        try:
            async with connect(URL, transport=network) as connection:
                consumer = Consumer(
                    connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=config
                )
                outcome.refused = consumer.refused
                if discovering:
                    candidates = await consumer.discover(TOKENS, timeout=timeout)
                    if not candidates:
                        return outcome
                else:
                    candidates = [consumer.candidate(liar.copies[0].name, TOKENS)]
                async with consumer.retrieve(
                    candidates[0], timeout=timeout, **options
                ) as retrieval:
                    async for layer in retrieval:
                        outcome.layers += 1
                        outcome.forged += not is_genuine(layer)
                    outcome.verdict = retrieval.verdict
        except KvcsError as error:
            outcome.error = error
        outcome.seconds = loop.time() - started
    assert outcome.seconds <= timeout + 10, "the deadline was not kept"
    assert_counted(outcome)
    if outcome.forged:
        verdict = outcome.verdict
        assert verdict.error is not None or verdict.unconfirmed_layers, "wrong bytes"
        assert not verdict.complete
    return outcome


def assert_counted(outcome):
    """A verdict adds up: what was wanted is verified or missing."""
    verdict = outcome.verdict
    if verdict is None or verdict.error is not None:
        return
    assert verdict.verified + verdict.missing_objects == 2 * LAYERS * BLOCKS
    assert not verdict.complete or not verdict.missing


class LiveLiar(Liar):
    """A liar whose copies are joined in the middle of production.

    What is published at the join comes in the fill, the rest on Subgroup streams, `pace`
    seconds later; the manifest of the join lists the layers before `joined`.
    """

    def __init__(self, *copies, joined=2, pace=0.5):
        super().__init__(*copies)
        self.joined = joined
        self.pace = pace

    def is_old(self, track, obj):
        # Manifest versions come with the segment and after layers 1, 2 and 4.
        return obj.group_id < self.joined + (track.name in (MANIFEST, SIGNED_MANIFEST))

    def answer_subscribe(self, connection, event, objects):
        if objects is None:
            self.reject(connection, event)
            return
        old = [obj for obj in objects if self.is_old(event.track, obj)]
        new = [obj for obj in objects if not self.is_old(event.track, obj)]
        self.accept_subscribe(connection, event, max((obj.location for obj in old), default=None))
        if old:
            self.fill(connection, event, old)
        loop = asyncio.get_running_loop()
        loop.call_later(self.pace, self.go_on, connection, event, new)

    def answer_fetch(self, connection, event, objects):
        if objects is not None and connection.now < self.pace:
            objects = [obj for obj in objects if self.is_old(event.track, obj)]
        super().answer_fetch(connection, event, objects or None)

    def go_on(self, connection, event, objects):
        if connection.closed or not connection.session.is_active(event.request_id):
            return
        for group_id in dict.fromkeys(obj.group_id for obj in objects):
            group = [obj for obj in objects if obj.group_id == group_id]
            self.subgroup_stream(connection, event.request_id, group)
        self.done(connection, event)
        connection.wake()
