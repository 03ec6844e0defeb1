"""From the options of a command to the configuration of a connection."""

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from kvcs.cli._options import RelaySettings
from kvcs.cli._tokens import find_tokens, following_tokens
from kvcs.endpoint.connect import ConnectConfig
from kvcs.errors import ConfigError
from kvcs.moqt.wire.token import Token
from kvcs.transport.certificates import authorities_fault
from kvcs.transport.interface import ClientTls, TransportConfig

__all__ = ("connect_config", "renewing")

_FLAG: Final = "--token-file"
_AUTHORITY_FLAG: Final = "--ca"


def connect_config(relay: RelaySettings) -> ConnectConfig:
    """Return how to reach a relay; connecting takes at most the command's whole time.

    Raises:
        ConfigError: A file that was named holds no token, or no certificates.
    """
    _check_authority(relay.ca)
    transport = TransportConfig()
    return ConnectConfig(
        tokens=find_tokens(relay.token_file, _FLAG, os.environ),
        tls=ClientTls(
            ca_file=None if relay.ca is None else str(relay.ca),
            verify=not relay.insecure_loopback,
        ),
        transport=TransportConfig(connect_timeout=min(transport.connect_timeout, relay.timeout)),
    )


def _check_authority(path: Path | None) -> None:
    """Refuse a file without certificates under the name that the person has for it."""
    fault = None if path is None else authorities_fault(path)
    if fault is not None:
        raise ConfigError(_AUTHORITY_FLAG, "a PEM file with certificates", f"{path}: {fault}")


def renewing(
    relay: RelaySettings, present: Callable[[tuple[Token, ...]], None]
) -> AbstractAsyncContextManager[None]:
    """Present the token in the file whenever it was written anew, until the end of the block."""
    return following_tokens(relay.token_file, _FLAG, present)
