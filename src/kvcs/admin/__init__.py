"""The operations plane of a relay: status page, Prometheus metrics and health over HTTP.

It is apart from the relay, which does not know it: the relay hands out immutable reports.
"""

from kvcs.admin.config import AdminConfig, AdminLimits
from kvcs.admin.server import AdminServer
from kvcs.admin.status import NamespaceStatus, Observed, Status

__all__ = (
    "AdminConfig",
    "AdminLimits",
    "AdminServer",
    "NamespaceStatus",
    "Observed",
    "Status",
)
