"""Request IDs, ours and the peer's.

Source: MOQT draft 22, Section 6.4.2.1.
"""

from typing import Final

from kvcs.errors import RemoteProtocolError, TerminationCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.limits import Side

__all__ = ("LocalRequestIds", "PeerRequestIds")

_STEP: Final = 2


class LocalRequestIds:
    """Our ids: even for a client, odd for a server."""

    __slots__ = ("_following",)

    def __init__(self, side: Side) -> None:
        self._following = side.value

    def take(self) -> RequestId:
        """Return a new id."""
        request_id = RequestId(self._following)
        self._following += _STEP
        return request_id


class PeerRequestIds:
    """The peer's ids, each to be used once.

    They come out of order, since streams overtake each other. All below a mark are used;
    a peer that leaves more than `max_ahead` of them out loses the lowest.
    """

    __slots__ = ("_ahead", "_mark", "_max_ahead", "_parity")

    def __init__(self, side: Side, max_ahead: int) -> None:
        self._parity = 1 - side.value
        self._mark = self._parity
        self._ahead: set[int] = set()
        self._max_ahead = max_ahead

    def __repr__(self) -> str:
        return f"PeerRequestIds(all below {self._mark}, {len(self._ahead)} above)"

    def claim(self, number: int) -> RequestId:
        """Accept an id.

        Raises:
            RemoteProtocolError: Its parity is ours, or it was used before.
        """
        if number % _STEP != self._parity:
            raise _invalid(f"Request ID {number} has our parity")
        if number < self._mark or number in self._ahead:
            raise _invalid(f"Request ID {number} is used twice")
        self._ahead.add(number)
        if len(self._ahead) > self._max_ahead:
            self._mark = min(self._ahead)
        while self._mark in self._ahead:
            self._ahead.remove(self._mark)
            self._mark += _STEP
        return RequestId(number)


def _invalid(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(TerminationCode.INVALID_REQUEST_ID, reason)
