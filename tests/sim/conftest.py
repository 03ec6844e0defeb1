"""A small model, its cache, and a publisher and consumers on a network in memory."""

from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

import pytest

from kvcs.client import Consumer, ConsumerConfig, Publisher, PublisherConfig
from kvcs.endpoint.connect import connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.kv import Component, Descriptor, Dtype, Layout, ScopeKey
from kvcs.testing import MemoryNetwork
from kvcs.transport.interface import ServerTls, TransportConfig

URL = "moqt://localhost:4433/"
SCOPE_KEY = ScopeKey(bytes(range(32)))
LAYERS = 6
BLOCK_TOKENS = 4


@dataclass
class World:
    """One model, the cache of one prompt, and where they are exchanged."""

    network: MemoryNetwork
    descriptor: Descriptor
    tokens: list[int]
    filter_ranges: int = 16

    @property
    def layout(self):
        return Layout(self.descriptor)

    @property
    def blocks(self):
        return len(self.tokens) // BLOCK_TOKENS

    def tensor(self, component, layer_index, first_block=0, blocks=None):
        """Keys or values of one layer, every block different from all others."""
        blocks = self.blocks - first_block if blocks is None else blocks
        size = self.layout.data_bytes(component, layer_index)
        return b"".join(
            bytes([component, layer_index, block % 256, block // 256]) * (size // 4)
            for block in range(first_block, first_block + blocks)
        )

    async def publish_layer(self, segment, layer_index):
        k, v = (
            self.tensor(component, layer_index, segment.first_block, segment.blocks)
            for component in (Component.K, Component.V)
        )
        await segment.publish_layer(layer_index, k, v)

    async def publish_all(self, segment):
        for layer_index in range(LAYERS):
            await self.publish_layer(segment, layer_index)

    def is_equal(self, layer, blocks=None):
        """Compare a received layer with what was computed."""
        blocks = self.blocks if blocks is None else blocks
        k, v = (
            self.tensor(component, layer.layer_index, 0, blocks)
            for component in (Component.K, Component.V)
        )
        return bytes(layer.k) == k and bytes(layer.v) == v

    @asynccontextmanager
    async def publisher(self, config=None, *, transport=None):
        """A publisher that consumers connect to directly."""
        numbers = count()
        publisher = Publisher(
            scope_key=SCOPE_KEY,
            descriptor=self.descriptor,
            config=config or PublisherConfig(),
            random_bytes=lambda size: next(numbers).to_bytes(size),
        )
        serve_config = ServeConfig(
            tls=ServerTls(certificate_file="", private_key_file=""),
            transport=transport or TransportConfig(),
            max_filter_ranges=self.filter_ranges,
        )
        async with serve(
            "localhost",
            4433,
            lambda connection: publisher.attach(connection, announces=False),
            config=serve_config,
            transport=self.network,
        ):
            yield publisher

    @asynccontextmanager
    async def consumer(self, config=None, *, scope_key=SCOPE_KEY.octets, **options):
        async with connect(URL, transport=self.network) as connection:
            yield Consumer(
                connection,
                scope_key=ScopeKey(scope_key),
                config=config or ConsumerConfig(),
                **{"descriptor": self.descriptor, **options},
            )


@pytest.fixture
def world():
    descriptor = Descriptor(
        layers=LAYERS,
        block_tokens=BLOCK_TOKENS,
        dtype=Dtype.FLOAT16,
        position="rope-applied",
        weights_sha256="11" * 32,
        tokenizer_sha256="22" * 32,
        kv_heads=2,
        head_dim=8,
    )
    tokens = [token * 7 for token in range(5 * BLOCK_TOKENS + 1)]

    def make(*, filter_ranges=16, **options):
        return World(MemoryNetwork(**options), descriptor, tokens, filter_ranges)

    return make
