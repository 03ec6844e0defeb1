"""MOQT over a transport, with asyncio: connect, serve, and connections that come back.

The public names are loaded when they are first used. The functions `connect` and `serve` have the
names of their modules, `kvcs.endpoint.connect` and `kvcs.endpoint.serve`, and stay there.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kvcs.endpoint.certificate import (
        DevCertificate,
        create_dev_certificate,
    )
    from kvcs.endpoint.connect import (
        ConnectConfig,
        dial,
    )
    from kvcs.endpoint.connection import (
        Connection,
    )
    from kvcs.endpoint.reconnect import (
        Backoff,
        PersistentConnection,
    )
    from kvcs.endpoint.serve import (
        ServeConfig,
        Server,
    )
    from kvcs.endpoint.url import (
        Url,
        parse_url,
    )

__all__ = (
    "Backoff",
    "ConnectConfig",
    "Connection",
    "DevCertificate",
    "PersistentConnection",
    "ServeConfig",
    "Server",
    "Url",
    "create_dev_certificate",
    "dial",
    "parse_url",
)

_WHERE: Final = {
    "DevCertificate": "kvcs.endpoint.certificate",
    "create_dev_certificate": "kvcs.endpoint.certificate",
    "ConnectConfig": "kvcs.endpoint.connect",
    "dial": "kvcs.endpoint.connect",
    "Connection": "kvcs.endpoint.connection",
    "Backoff": "kvcs.endpoint.reconnect",
    "PersistentConnection": "kvcs.endpoint.reconnect",
    "ServeConfig": "kvcs.endpoint.serve",
    "Server": "kvcs.endpoint.serve",
    "Url": "kvcs.endpoint.url",
    "parse_url": "kvcs.endpoint.url",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
