"""A peer whose tracks are written by hand, and that answers as a test wants it to."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

from kvcs.client import Consumer, PublisherConfig
from kvcs.client.published import PublishedTrack, PublishedTracks
from kvcs.client.serving import Serving
from kvcs.endpoint.connect import connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.errors import PublishDoneCode
from kvcs.kv import (
    KVSP_PROVISIONAL,
    RAW,
    BlockPlace,
    Manifest,
    PublicationName,
    ScopeKey,
    encode_payload,
)
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.names import Location
from kvcs.transport.interface import ServerTls

SCOPE_KEY = ScopeKey(bytes(range(32)))
LAYERS = 6
DATA = (b"k.raw.s0", b"v.raw.s0")


class Peer(Serving):
    """A peer that answers as the shelf tells it to."""

    shelf: "Shelf"

    def _answer(self, event):
        self.shelf.asked.append(event)
        event = self.shelf.bend(event)
        code = self.shelf.refusal(event)
        if event.track.name in DATA and self.shelf.is_forgotten(event):
            end = Location(LAYERS - 1, 5)
            session, now = self.connection.session, self.connection.now
            session.accept_fetch(event.request_id, end_of_track=False, end_location=end, now=now)
        elif code is None:
            super()._answer(event)
        else:
            self._refuse(event.request_id, code, "as the test wants it")


class Shelf:
    """The tracks of one publication, written by hand, served as the test wants them."""

    def __init__(
        self,
        world,
        *,
        publication_id=b"p" * 16,
        deterministic=False,
        cut=(5,),
        signing_key=None,
    ):
        self.world = world
        self.asked = []
        self.peers = []
        self.refusals = {}
        self.bend = lambda event: event
        self.is_forgotten = lambda _: False
        scope_id = KVSP_PROVISIONAL.scope_id(SCOPE_KEY)
        compatibility_id = KVSP_PROVISIONAL.compatibility_id(SCOPE_KEY, world.descriptor)
        self.keys = KVSP_PROVISIONAL.block_keys(
            SCOPE_KEY, compatibility_id, world.tokens, block_tokens=world.descriptor.block_tokens
        )
        name = PublicationName(
            scope_id=scope_id,
            compatibility_id=compatibility_id,
            anchor_key=self.keys[cut[0] - 1],
            publication_id=publication_id,
        )
        manifest = Manifest(compat=world.descriptor, deterministic=deterministic)
        self.tracks = PublishedTracks(name, manifest, PublisherConfig(signing_key=signing_key))
        first = 0
        for blocks in cut:
            keys = self.keys[first : first + blocks]
            self.tracks.add_segment(self.tracks.with_segment(keys))
            first += blocks
        self.tracks.publish_manifest(now=0.0)

    def payloads(self, layer_index, *, lie=None):
        """The payloads of one layer; `lie` may replace one of them."""
        made = {}
        for name in self.tracks.track_names(0):
            size = self.world.layout.data_bytes(name.component, layer_index)
            data = self.world.tensor(name.component, layer_index)
            made[name] = [
                self.payload(name.component, layer_index, block, data[block * size :][:size])
                for block in range(self.tracks.manifest.segments[0].blocks)
            ]
        if lie is not None:
            lie(made)
        return made

    def zeros(self, component, layer_index):
        return bytes(self.world.layout.data_bytes(component, layer_index))

    def payload(self, component, layer_index, block, data):
        tokens = self.world.descriptor.block_tokens
        place = BlockPlace(
            component=component,
            codec=RAW.number,
            layer_index=layer_index,
            block_index=block,
            token_start=block * tokens,
            token_count=tokens,
        )
        return encode_payload(place, data)

    def add_layers(self, layers=range(LAYERS), *, lie=None):
        now = asyncio.get_running_loop().time()
        for layer_index in layers:
            self.tracks.add_layer(0, layer_index, self.payloads(layer_index, lie=lie), now=now)
        for peer in self.peers:
            if self.tracks.manifest.complete:
                self.end(peer)
            peer.connection.wake()

    def end(self, peer, code=PublishDoneCode.TRACK_ENDED, *, drain=True):
        self.tracks.manifest_track.is_ended = True
        for track in self.tracks.tracks.values():
            peer.end(track, code, drain=drain)

    def add_track(self, name, payload):
        store = TrackStore(
            self.tracks.name.track(name), properties=EMPTY_PROPERTIES, authoritative=True
        )
        self.tracks.tracks[name] = PublishedTrack(store)
        self.add_object(name, 0, payload)

    def add_object(self, name, group_id, payload, **changes):
        obj = Object(
            group_id=group_id,
            object_id=0,
            subgroup_id=0,
            publisher_priority=0,
            payload=payload,
            **changes,
        )
        self.tracks.tracks[name].store.add(obj, now=0.0)
        self.tracks.tracks[name].store.finish_subgroup(group_id, 0, end_of_group=True, now=0.0)
        for peer in self.peers:
            peer.connection.wake()

    def refusal(self, event):
        return self.refusals.get((type(event), event.track.name), self.refusals.get(type(event)))

    def of_track(self, kind, name):
        return [e for e in self.asked if isinstance(e, kind) and e.track.name == name]

    # The registry of `Serving`.

    def find(self, track):
        is_ours = track.namespace == self.tracks.name.namespace()
        return self.tracks.tracks.get(track.name) if is_ours else None

    def namespaces(self):
        return [self.tracks.name.namespace()]

    def attach(self, connection):
        peer = Peer(connection, self, PublisherConfig(), announces=False)
        peer.shelf = self
        self.peers.append(peer)

    @asynccontextmanager
    async def open(self, port=4433):
        config = ServeConfig(tls=ServerTls(certificate_file="", private_key_file=""))
        async with serve(
            "localhost", port, self.attach, config=config, transport=self.world.network
        ):
            yield self

    @asynccontextmanager
    async def consumer(self, config=None, *, ports=(4433,)):
        async with AsyncExitStack() as stack:
            first, *others = [
                await stack.enter_async_context(
                    connect(f"moqt://localhost:{port}/", transport=self.world.network)
                )
                for port in ports
            ]
            yield Consumer(
                first,
                scope_key=SCOPE_KEY,
                descriptor=self.world.descriptor,
                config=config,
                others=others,
            )

    def candidate(self, consumer):
        return consumer.candidate(self.tracks.name, self.world.tokens)


async def retrieved(shelf, *, config=None, during=None, ports=(4433,), **options):
    """Retrieve everything, compare what came, and return the verdict."""
    async with (
        shelf.consumer(config, ports=ports) as consumer,
        consumer.retrieve(shelf.candidate(consumer), **{"timeout": 60, **options}) as retrieval,
    ):
        events = asyncio.ensure_future(during()) if during is not None else None
        async for layer in retrieval:
            assert shelf.world.is_equal(layer)
        if events is not None:
            await events
        return retrieval.verdict


def assert_whole(verdict, blocks=5):
    assert verdict.complete
    assert verdict.missing == ()
    assert verdict.verified == 2 * LAYERS * blocks
