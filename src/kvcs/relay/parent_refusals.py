"""What parents do not let this relay do: its tokens are missing, worn out, or for too little.

Theory of operation. A client can do nothing about that, and is told that there is nothing, as while
there is no parent (`kvcs.relay.refusal`). The operator can, and finds it in the log, in the report
of the parents, and in a counter. Clients can cause such refusals, so the log has a line a minute
for each code.
"""

import logging
from typing import Final

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.events import RequestRejected, UpdateRejected
from kvcs.relay.peer import Peer
from kvcs.relay.refusal import UNTRUSTED
from kvcs.relay.statistics import Metrics

__all__ = ("SHOWN_SECONDS", "ParentRefusals")

#: Seconds for which a refusal is shown as a fault, and in which the log has one line of them.
SHOWN_SECONDS: Final = 60.0

_logger = logging.getLogger("kvcs.relay")


class ParentRefusals:
    """Notes what parents refuse since they do not trust this relay that far."""

    __slots__ = ("_code", "_log_at", "_metrics", "_refused_at")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._code = ""
        self._refused_at: float | None = None
        self._log_at: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<ParentRefusals {self._code or 'none'}>"

    def note(self, peer: Peer, event: RequestRejected | UpdateRejected, *, now: float) -> None:
        """Take a REQUEST_ERROR of a parent; others than those for want of a token are ignored."""
        if event.code not in UNTRUSTED:
            return
        self._code = RequestErrorCode(event.code).name
        self._metrics.upstream_refused[self._code] += 1
        self._refused_at = now
        if now < self._log_at.get(self._code, now):
            return
        self._log_at[self._code] = now + SHOWN_SECONDS
        _logger.warning(
            "the parent %s refuses what this relay asks for: %s; clients are told that there is "
            "nothing. Its token (--upstream-token-file) has to be good there, for every scope of "
            "its clients",
            peer.address,
            self._code,
            extra={"event": "parent-refused", "session": peer.id, "code": self._code},
        )

    def forget(self) -> None:
        """Show nothing of a parent that is not asked any more."""
        self._refused_at = None

    def error(self, *, now: float) -> str:
        """Return what was refused a moment ago, in a few words; nothing if all is well."""
        if self._refused_at is None or now >= self._refused_at + SHOWN_SECONDS:
            return ""
        return f"it refuses requests of this relay: {self._code}"
