"""What waits for subscribers, in all sessions together.

Theory of operation. Each session may have octets waiting up to its transport's high-water
mark; that is what a stalled subscriber costs. `EgressBudget` bounds the sum: as long as there is
room in it, a session gets what its own transport has room for. When there is none, each session
still gets enough to have `MIN_SHARE_BYTES` under way, so that those who read go on, however many
do not. It also knows who has taken nothing for a long time.

Answers and announcements are not granted: who asks for many and reads none makes the sum exceed
the budget. At twice of it `greediest` names the session that has to go; Objects alone exceed it by
one for each session at most.

What waits for a session is noted whenever its outbox sends, so the figure of one that drains
may be too high until its next turn, and never too low. Where a session gets less than its transport
would take, the figures of all others are looked at anew (`recount`), and it comes back soon: no
transport tells that so little has drained.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = ("LOOK_INTERVAL", "MAX_LOOK_INTERVAL", "MIN_SHARE_BYTES", "EgressBudget")

LOOK_INTERVAL: Final = 0.02
"""Seconds after which a session that got too little looks again, and all are counted anew."""
MAX_LOOK_INTERVAL: Final = 1.0
"""The same for a session that takes nothing: the interval doubles up to this."""

# Two Objects of 128 KiB, or the piece in which the transport takes larger ones.
MIN_SHARE_BYTES: Final = 256 * 1024


@dataclass(slots=True)
class _Share:
    """What waits for one session, and since when it has taken nothing; None if nothing waits."""

    queued_bytes: int = 0
    stalled_since: float | None = None


class EgressBudget[Key]:
    """Octets that wait for subscribers, by session.

    Attributes:
        capacity_bytes: What all sessions together may have.
        queued_bytes: What they have, as far as is known.
    """

    def __init__(self, capacity_bytes: int) -> None:
        """Create a budget of which nothing is used."""
        self.capacity_bytes = capacity_bytes
        self.queued_bytes = 0
        self._shares: dict[Key, _Share] = {}
        self._recounted_at = -LOOK_INTERVAL

    def __repr__(self) -> str:
        return f"<EgressBudget {self.queued_bytes}/{self.capacity_bytes} of {len(self._shares)}>"

    def grant(self, key: Key, queued_bytes: int, room: int) -> int:
        """Return how much more may be handed to a session.

        Args:
            key: The session.
            queued_bytes: What waits for it now.
            room: What its transport would take.
        """
        share = self._shares.setdefault(key, _Share())
        self._note(share, queued_bytes)
        least = max(0, MIN_SHARE_BYTES - queued_bytes)
        left = max(0, self.capacity_bytes - self.queued_bytes)
        return min(room, max(least, left))

    def share(self, key: Key) -> int:
        """Return what is known to wait for a session."""
        share = self._shares.get(key)
        return 0 if share is None else share.queued_bytes

    def sent(self, key: Key, size_bytes: int) -> None:
        """Count what was handed to a session."""
        share = self._shares[key]
        self._note(share, share.queued_bytes + size_bytes)

    def greediest(self) -> Key | None:
        """Return the session with most waiting, if all together have twice what is granted."""
        granted = self.capacity_bytes + len(self._shares) * MIN_SHARE_BYTES
        if self.queued_bytes <= 2 * granted:
            return None
        return max(self._shares, key=lambda key: self._shares[key].queued_bytes)

    def recount(self, queued_bytes: Callable[[Key], int], *, now: float) -> None:
        """Note what waits for every session, but for what was looked at a moment ago.

        Args:
            queued_bytes: Tells it of one session.
            now: Monotonic seconds.
        """
        if now >= self._recounted_at + LOOK_INTERVAL:
            self._recounted_at = now
            for key, share in self._shares.items():
                self._note(share, queued_bytes(key))

    def forget(self, key: Key) -> None:
        """Note that a session is over; unknown ones are ignored."""
        share = self._shares.pop(key, None)
        if share is not None:
            self.queued_bytes -= share.queued_bytes

    def look(self, key: Key, queued_bytes: int, *, now: float) -> float:
        """Return for how many seconds a session has taken nothing of what waits for it.

        It is looked at from time to time, so the answer is exact to that interval.
        """
        share = self._shares.setdefault(key, _Share())
        took = queued_bytes < share.queued_bytes
        self._note(share, queued_bytes)
        if not queued_bytes:
            share.stalled_since = None
        elif took or share.stalled_since is None:
            share.stalled_since = now
        return 0.0 if share.stalled_since is None else now - share.stalled_since

    def _note(self, share: _Share, queued_bytes: int) -> None:
        self.queued_bytes += queued_bytes - share.queued_bytes
        if queued_bytes < share.queued_bytes:
            share.stalled_since = None
        share.queued_bytes = queued_bytes
