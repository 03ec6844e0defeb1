"""The types that users of `kvcs.relay` see; pyright checks this file, nobody runs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import assert_type

from kvcs.c4m import TokenConfig, TokenKey
from kvcs.errors import RequestErrorCode
from kvcs.moqt import Token
from kvcs.names import TrackNamespace
from kvcs.relay import (
    Access,
    AccessAction,
    Authorize,
    Decision,
    DiskConfig,
    Grant,
    RefusalReasons,
    Relay,
    RelayConfig,
    RelayLimits,
    RelayStatistics,
    TokenPolicy,
    VerificationBudget,
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
    assert_type(access.budget, VerificationBudget | None)
    assert_type(access.reasons, RefusalReasons | None)
    if access.reasons is not None:
        access.reasons.add("nobody may")
    return None if access.tokens else RequestErrorCode.UNAUTHORIZED


def for_a_minute(access: Access) -> Decision:
    return Grant(60.0) if access.tokens else RequestErrorCode.UNAUTHORIZED


def by_tokens(keys: list[TokenKey]) -> TokenPolicy:
    policy = TokenPolicy(keys, TokenConfig(leeway=5.0))
    policy.replace_keys(keys)
    return policy


async def run_a_relay(tls: ServerTls) -> None:
    policies: list[Authorize] = [of_one_scope, for_a_minute, by_tokens([]), allow_all, deny_all]
    limits = RelayLimits(max_sessions=8, fill_timeout=5.0)
    disk = DiskConfig(directory=Path("cache"), capacity_bytes=2**30)
    config = RelayConfig(tls=tls, port=0, disk=disk, authorize=policies[0], limits=limits)
    async with Relay(config, transport=MemoryNetwork()) as relay:
        assert_type(relay, Relay)
        assert_type(relay.address, Address)
        relay.review()
        statistics = relay.statistics()

    assert_type(statistics, RelayStatistics)
    assert_type(statistics.bytes_out, int)
    assert_type(statistics.requests_refused, Mapping[str, int])
    assert_type(statistics.grants_ended, Mapping[str, int])
    assert_type(statistics.disk_writable, bool)
    assert_type(statistics.disk_objects_dropped, Mapping[str, int])
