"""From the options of a command to the configuration of a connection."""

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from kvcs.cli._options import RelaySettings
from kvcs.cli._tokens import find_tokens, following_tokens
from kvcs.endpoint.connect import ConnectConfig
from kvcs.moqt.wire.token import Token
from kvcs.transport.interface import ClientTls, TransportConfig

__all__ = ("connect_config", "renewing")

_FLAG: Final = "--token-file"


def connect_config(relay: RelaySettings) -> ConnectConfig:
    """Return how to reach a relay; connecting takes at most the command's whole time."""
    transport = TransportConfig()
    return ConnectConfig(
        tokens=find_tokens(relay.token_file, _FLAG, os.environ),
        tls=ClientTls(
            ca_file=None if relay.ca is None else str(relay.ca),
            verify=not relay.insecure_loopback,
        ),
        transport=TransportConfig(connect_timeout=min(transport.connect_timeout, relay.timeout)),
    )


def renewing(
    relay: RelaySettings, present: Callable[[tuple[Token, ...]], None]
) -> AbstractAsyncContextManager[None]:
    """Present the token in the file whenever it was written anew, until the end of the block."""
    return following_tokens(relay.token_file, _FLAG, present)
