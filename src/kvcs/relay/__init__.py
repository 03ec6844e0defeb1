"""A caching relay for MOQT: it moves and keeps Objects without understanding them."""

from kvcs.relay.arrival import Arrival
from kvcs.relay.auth import (
    Access,
    AccessAction,
    Authorize,
    Decision,
    Grant,
    RefusalReasons,
    VerificationBudget,
    allow_all,
    deny_all,
)
from kvcs.relay.config import RelayConfig, RelayLimits
from kvcs.relay.disk import DiskConfig
from kvcs.relay.relay import Relay
from kvcs.relay.report import (
    NamespacePage,
    NamespaceReport,
    Reporter,
    SessionReport,
    TrackReport,
    UpstreamReport,
)
from kvcs.relay.statistics import RelayStatistics
from kvcs.relay.token_policy import TokenPolicy

__all__ = (
    "Access",
    "AccessAction",
    "Arrival",
    "Authorize",
    "Decision",
    "DiskConfig",
    "Grant",
    "NamespacePage",
    "NamespaceReport",
    "RefusalReasons",
    "Relay",
    "RelayConfig",
    "RelayLimits",
    "RelayStatistics",
    "Reporter",
    "SessionReport",
    "TokenPolicy",
    "TrackReport",
    "UpstreamReport",
    "VerificationBudget",
    "allow_all",
    "deny_all",
)
