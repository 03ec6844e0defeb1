"""What happens when a deadline of a session has passed.

Source: MOQT draft 22, Sections 3.5, 6.3, 9.4 and 13.
"""

from typing import Final

from kvcs.errors import RemoteProtocolError, TerminationCode
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.deadlines import Timer
from kvcs.moqt.session.parts import Parts

__all__ = ("Expiry",)

# Deadlines that end the session when they pass.
_FATAL: Final = {
    Timer.SETUP: (TerminationCode.CONTROL_MESSAGE_TIMEOUT, "no SETUP"),
    Timer.CONTROL_MESSAGE: (TerminationCode.CONTROL_MESSAGE_TIMEOUT, "unfinished message"),
    Timer.DATA_STREAM: (TerminationCode.DATA_STREAM_TIMEOUT, "unfinished header of a stream"),
    Timer.GOAWAY: (TerminationCode.GOAWAY_TIMEOUT, "requests are still open"),
}


class Expiry:
    """Applies the deadlines of one session."""

    __slots__ = ("_context", "_parts")

    def __init__(self, context: Context, parts: Parts) -> None:
        self._context = context
        self._parts = parts

    def apply(self) -> None:
        """Apply all deadlines that have passed.

        Raises:
            RemoteProtocolError: One of them ends the session.
        """
        context = self._context
        while (due := context.deadlines.pop_due(context.now)) is not None:
            self._apply(*due)

    def _apply(self, timer: Timer, subject: int) -> None:
        parts = self._parts
        match timer:
            case Timer.ANSWER:
                parts.requests.expire(RequestId(subject))
            case Timer.UPDATE_ANSWER:
                parts.updates.expire(RequestId(subject))
            case Timer.DRAIN:
                parts.subscriptions.expire(RequestId(subject))
            case Timer.REQUEST_GOAWAY:
                parts.requests.expire_goaway(RequestId(subject))
            case Timer.PENDING_STREAM:
                parts.incoming.expire_held(StreamId(subject))
            case Timer.DATA_STREAM if parts.incoming.expire(StreamId(subject)):
                pass
            case _:
                if timer is not Timer.GOAWAY or parts.registry.by_id:
                    code, reason = _FATAL[timer]
                    raise RemoteProtocolError(code, f"deadline passed: {reason} ({subject})")
