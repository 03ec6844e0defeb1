"""Which parent is dialled next, and when: the order of preference and the waits of each.

The first parent of the list that may be dialled is taken. One that could not be reached, was
lost or cannot be used is left alone for a while, longer each time, and meanwhile the next one
has its turn. One that closed its session in an orderly way is waited for a little: it restarts,
or has something to say in SETUP. A parent that works is kept, also when one that is preferred
comes back: a change costs every Track in production a gap.
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kvcs.endpoint.reconnect import Backoff

__all__ = ("Parents",)


@dataclass(slots=True)
class _Record:
    """What happened with one parent."""

    failures: int = 0
    not_before: float = 0.0
    patience: float = 0.0


class Parents:
    """The parents that a relay may have."""

    __slots__ = ("_backoff", "_records", "_rng")

    def __init__(self, urls: Sequence[str], *, backoff: Backoff, rng: random.Random) -> None:
        """Know nothing of any of them.

        Args:
            urls: Parents in order of preference, at least one.
            backoff: Waits between attempts at one of them.
            rng: Chance of the waits.
        """
        self._records = {url: _Record() for url in urls}
        self._backoff = backoff
        self._rng = rng

    def __repr__(self) -> str:
        return f"<Parents {self._records}>"

    def choose(self, leaving: Collection[str] = (), *, now: float) -> tuple[str, float] | None:
        """Return which parent to dial next, and how many seconds to wait before that.

        Args:
            leaving: Parents that have announced their end, and are not dialled.
            now: Monotonic seconds.

        Returns:
            None if there is no other one.
        """
        records = {url: record for url, record in self._records.items() if url not in leaving}
        for url, record in records.items():
            if record.not_before <= now + record.patience:
                return url, max(0.0, record.not_before - now)
        if not records:
            return None
        url = min(records, key=lambda url: records[url].not_before)
        return url, records[url].not_before - now

    def ended(self, url: str, *, lived: float, is_clean: bool = False, now: float) -> None:
        """Note that a session with a parent ended, or never began.

        Args:
            url: The parent.
            lived: Seconds for which it was used; 0 if it could not be.
            is_clean: The parent closed it in an orderly way.
            now: Monotonic seconds.
        """
        record = self._records[url]
        record.failures = 1 if lived > self._backoff.maximum else record.failures + 1
        record.patience = self._backoff.initial if is_clean else 0.0
        record.not_before = now + self._backoff.delay(record.failures, self._rng)
