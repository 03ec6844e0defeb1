"""The relay under examination, and sessions with it that end with their probe.

Every probe has sessions and a random publication of its own, so that what one probe leaves
behind cannot change what another one finds.
"""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvcs.cli.doctor.reader import Reader
from kvcs.cli.doctor.source import Source
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.endpoint.connection import Connection
from kvcs.kv.descriptor import Descriptor, Dtype
from kvcs.kv.identity import (
    KVSP_PROVISIONAL,
    BlockKey,
    PublicationId,
    ScopeKey,
)
from kvcs.kv.naming import PublicationName
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.transport.interface import TransportFactory

__all__ = ("DESCRIPTOR", "Site")

#: A small model: six layers, Objects of 32 KiB.
DESCRIPTOR = Descriptor(
    layers=6,
    block_tokens=16,
    dtype=Dtype.FLOAT16,
    position="rope-applied",
    weights_sha256="0" * 64,
    tokenizer_sha256="0" * 64,
    kv_heads=8,
    head_dim=128,
)


@dataclass(slots=True)
class Site:
    """One relay, and how it is reached.

    Attributes:
        url: Where it is.
        config: How to connect.
        silence: Seconds without an answer or an octet after which nothing more is expected.
        transport: What carries the sessions; None for QUIC.
        scope_key: A random scope, in which nobody else publishes.
        options: What the relay's SETUP said, once it is known.
    """

    url: str
    config: ConnectConfig
    silence: float = 3.0
    transport: TransportFactory | None = None
    scope_key: ScopeKey = field(default_factory=lambda: ScopeKey(secrets.token_bytes(32)))
    options: SetupOptions = field(default_factory=SetupOptions)

    def name(self) -> PublicationName:
        """Return a new name in the scope of this examination."""
        profile = KVSP_PROVISIONAL
        return PublicationName(
            scope_id=profile.scope_id(self.scope_key),
            compatibility_id=profile.compatibility_id(self.scope_key, DESCRIPTOR),
            anchor_key=BlockKey(secrets.token_bytes(32)),
            publication_id=PublicationId(secrets.token_bytes(16)),
        )

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Connection]:
        """Connect, and close at the end."""
        async with connect(self.url, self.config, transport=self.transport) as connection:
            yield connection

    @asynccontextmanager
    async def reader(self) -> AsyncGenerator[Reader]:
        """Connect as a consumer."""
        async with self.session() as connection:
            yield Reader(connection, silence=self.silence)

    @asynccontextmanager
    async def source(self, *, is_announced: bool = True) -> AsyncGenerator[Source]:
        """Connect as a publisher with a new publication.

        Raises:
            RequestFailed: It may not be announced.
        """
        async with self.session() as connection:
            source = Source(connection, self.name())
            try:
                if is_announced:
                    await source.announce(self.silence)
                yield source
            finally:
                source.close()
