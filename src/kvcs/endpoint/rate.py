"""How fast a peer may do something: a bucket that leaks.

What a peer does fills its bucket, time empties it. Up to the brim everything is admitted; more
is not, and still fills the bucket, so that a peer that goes on regardless stays shut out. Twice
full, it is a flood.
"""

__all__ = ("LeakyBucket",)


class LeakyBucket:
    """Admits so many units a second, and a burst."""

    __slots__ = ("_burst", "_level", "_rate", "_seen")

    def __init__(self, rate: float, *, burst: float) -> None:
        """Create an empty bucket.

        Args:
            rate: Units that leak in a second.
            burst: Units that it holds.
        """
        self._rate = rate
        self._burst = burst
        self._level = 0.0
        self._seen = 0.0

    def __repr__(self) -> str:
        return f"<LeakyBucket {self._level:.0f}/{self._burst:g}>"

    def admit(self, units: float, *, now: float) -> bool:
        """Pour units in; tell whether they had room.

        Args:
            units: What the peer did.
            now: Monotonic seconds.
        """
        leaked = (now - self._seen) * self._rate
        self._level = max(0.0, self._level - leaked) + units
        self._seen = now
        return self._level <= self._burst

    def take(self, units: float, *, now: float) -> bool:
        """Pour units in only if they have room, since what is refused was not done; tell whether.

        Args:
            units: What the peer wants done.
            now: Monotonic seconds.
        """
        if self.admit(units, now=now):
            return True
        self._level -= units
        return False

    def room(self, *, now: float) -> float:
        """Return how many units would be admitted now, at least 0."""
        self.admit(0, now=now)
        return max(0.0, self._burst - self._level)

    def level(self, *, now: float) -> float:
        """Return how many units have not leaked yet."""
        self.admit(0, now=now)
        return self._level

    @property
    def is_flooded(self) -> bool:
        """Whether the peer went on far beyond what was admitted."""
        return self._level > 2 * self._burst
