"""Why a subscriber is refused: what a publisher said, as far as it is the subscriber's business.

Codes are hop by hop. That the relay may not ask, or that the publisher is about to leave, says
nothing about the subscriber. A parent that does not trust the relay is as good as none: what the
relay has by itself is served, and its operator is told (`kvcs.relay.parent_refusals`). A Track
that does not exist is refused with the same words whoever found that out, so that a policy can
hide one behind them.

Source: MOQT draft 22, Sections 7.4, 9.4 and 12.3.
"""

from dataclasses import dataclass
from typing import Final, Self

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.events import RequestRejected
from kvcs.moqt.wire.request import Redirect

__all__ = (
    "ASKED_MUCH",
    "NOBODY_CAME",
    "NOT_FOUND",
    "NO_PARENT",
    "UNINTERESTED",
    "UNTRUSTED",
    "Refusal",
)

_ABSENT: Final = frozenset({RequestErrorCode.DOES_NOT_EXIST, RequestErrorCode.GOING_AWAY})
UNTRUSTED: Final = frozenset(
    {
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.MALFORMED_AUTH_TOKEN,
        RequestErrorCode.EXPIRED_AUTH_TOKEN,
    }
)
"""Codes of who does not trust the relay, or its token."""

# What is true of the Track, whoever asks for it.
_PASSED_ON: Final = frozenset(
    {
        RequestErrorCode.TIMEOUT,
        RequestErrorCode.NOT_SUPPORTED,
        RequestErrorCode.EXCESSIVE_LOAD,
        RequestErrorCode.INVALID_RANGE,
        RequestErrorCode.MALFORMED_TRACK,
        RequestErrorCode.UNSUPPORTED_EXTENSION,
    }
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A REQUEST_ERROR to be sent.

    Attributes:
        code: Code of Section 12.3.
        reason: Text for people.
        redirect: Where to ask instead, with code REDIRECT and only with it.
        note: What the log says besides; the peer is not told.
    """

    code: RequestErrorCode
    reason: str
    redirect: Redirect | None = None
    note: str = ""

    @classmethod
    def of(cls, rejection: RequestRejected, *, is_parent: bool) -> Self:
        """Return what the REQUEST_ERROR of a publisher means for a subscriber.

        Args:
            rejection: What it said.
            is_parent: It is a parent of this relay.
        """
        code = rejection.code
        if code in _ABSENT:
            return cls(NOT_FOUND.code, NOT_FOUND.reason)
        if is_parent and code in UNTRUSTED:
            return cls(NO_PARENT.code, NO_PARENT.reason, note=NO_PARENT.note)
        if code == RequestErrorCode.REDIRECT and rejection.redirect is not None:
            return cls(RequestErrorCode.REDIRECT, rejection.reason, rejection.redirect)
        if code in _PASSED_ON:
            return cls(RequestErrorCode(code), rejection.reason)
        return cls(RequestErrorCode.INTERNAL_ERROR, "the publisher refused this relay")


NOT_FOUND: Final = Refusal(RequestErrorCode.DOES_NOT_EXIST, "no publisher")
"""Nobody publishes the Track, or nobody may know."""

NO_PARENT: Final = Refusal(NOT_FOUND.code, NOT_FOUND.reason, note="a parent refuses this relay")
"""Nobody publishes the Track here, and a parent that may have it does not trust this relay."""

NOBODY_CAME: Final = Refusal(RequestErrorCode.TIMEOUT, "no publisher appeared")
"""Nobody published the Track within RENDEZVOUS_TIMEOUT, or nobody may know."""

ASKED_MUCH: Final = Refusal(RequestErrorCode.EXCESSIVE_LOAD, "too much is asked of the publisher")
"""Whoever could be asked was asked too much just before."""

UNINTERESTED: Final = Refusal(RequestErrorCode.UNINTERESTED, "nobody wants it from here")
"""A relay publishes what nobody asked for any more, or what comes from elsewhere."""
