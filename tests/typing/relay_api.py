"""The types that users of `kvcs.relay` see; pyright checks this file, nobody runs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import assert_type

from kvcs.errors import RequestErrorCode
from kvcs.moqt import Token
from kvcs.names import TrackNamespace
from kvcs.relay import (
    Access,
    AccessAction,
    Authorize,
    DiskConfig,
    Relay,
    RelayConfig,
    RelayLimits,
    RelayStatistics,
    allow_all,
    deny_all,
)
from kvcs.testing import MemoryNetwork
from kvcs.transport import Address, ServerTls


def of_one_scope(access: Access) -> RequestErrorCode | None:
    assert_type(access.action, AccessAction)
    assert_type(access.namespace, TrackNamespace)
    assert_type(access.track_name, bytes | None)
    assert_type(access.tokens, tuple[Token, ...])
    return None if access.tokens else RequestErrorCode.UNAUTHORIZED


async def run_a_relay(tls: ServerTls) -> None:
    policies: list[Authorize] = [of_one_scope, allow_all, deny_all]
    limits = RelayLimits(max_sessions=8, fill_timeout=5.0)
    disk = DiskConfig(directory=Path("cache"), capacity_bytes=2**30)
    config = RelayConfig(tls=tls, port=0, disk=disk, authorize=policies[0], limits=limits)
    async with Relay(config, transport=MemoryNetwork()) as relay:
        assert_type(relay, Relay)
        assert_type(relay.address, Address)
        statistics = relay.statistics()

    assert_type(statistics, RelayStatistics)
    assert_type(statistics.bytes_out, int)
    assert_type(statistics.requests_refused, Mapping[str, int])
    assert_type(statistics.disk_writable, bool)
    assert_type(statistics.disk_objects_dropped, Mapping[str, int])
