"""From the options of a command to the configuration of a connection."""

from kvcs.cli._options import RelaySettings
from kvcs.endpoint.connect import ConnectConfig
from kvcs.transport.interface import ClientTls, TransportConfig

__all__ = ("connect_config",)


def connect_config(relay: RelaySettings) -> ConnectConfig:
    """Return how to reach a relay; connecting takes at most the command's whole time."""
    transport = TransportConfig()
    return ConnectConfig(
        tls=ClientTls(
            ca_file=None if relay.ca is None else str(relay.ca),
            verify=not relay.insecure_loopback,
        ),
        transport=TransportConfig(connect_timeout=min(transport.connect_timeout, relay.timeout)),
    )
