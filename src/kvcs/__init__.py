"""kvcs: publish the KV cache of a language model once, and take it anywhere.

The public names below are loaded when they are first used, so that `import kvcs` is fast:

    async with kvcs.connect("moqt://relay.example:4433/") as connection:
        consumer = kvcs.Consumer(connection, scope_key=scope_key, descriptor=descriptor)
        found = await consumer.discover(tokens)
        async with consumer.retrieve(found[0]) as retrieval:
            async for layer in retrieval:
                ...
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from kvcs.client import (
        Candidate,
        Consumer,
        ConsumerConfig,
        Hold,
        HostMemory,
        Layer,
        Memory,
        MissingRange,
        MissingReason,
        Publication,
        PublishedSegment,
        Publisher,
        PublisherConfig,
        Retrieval,
        Verdict,
    )
    from kvcs.endpoint.connect import ConnectConfig, connect
    from kvcs.endpoint.connection import Connection
    from kvcs.endpoint.reconnect import PersistentConnection
    from kvcs.errors import KvcsError
    from kvcs.kv import Descriptor, Dtype, ScopeKey, parse_scope_key

__all__ = (
    "Candidate",
    "ConnectConfig",
    "Connection",
    "Consumer",
    "ConsumerConfig",
    "Descriptor",
    "Dtype",
    "Hold",
    "HostMemory",
    "KvcsError",
    "Layer",
    "Memory",
    "MissingRange",
    "MissingReason",
    "PersistentConnection",
    "Publication",
    "PublishedSegment",
    "Publisher",
    "PublisherConfig",
    "Retrieval",
    "ScopeKey",
    "Verdict",
    "connect",
    "parse_scope_key",
)

# Where a public name is defined, unless it is `kvcs.client`.
_ELSEWHERE = {
    "ConnectConfig": "kvcs.endpoint.connect",
    "Connection": "kvcs.endpoint.connection",
    "Descriptor": "kvcs.kv",
    "Dtype": "kvcs.kv",
    "KvcsError": "kvcs.errors",
    "PersistentConnection": "kvcs.endpoint.reconnect",
    "ScopeKey": "kvcs.kv",
    "connect": "kvcs.endpoint.connect",
    "parse_scope_key": "kvcs.kv",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value = version("kvcs")
    elif name in __all__:
        import importlib

        value = getattr(importlib.import_module(_ELSEWHERE.get(name, "kvcs.client")), name)
    else:
        raise AttributeError(f"module 'kvcs' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
