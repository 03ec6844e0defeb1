"""Who may do what: one function decides every request of the relay.

The relay asks before any look-up, so that a refused peer learns nothing of what exists,
and asks for every subscriber on its own even when the upstream subscription is shared.

Source: MOQT draft 22, Sections 8.9 and 15; KVCS, "Relay Considerations".
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from kvcs.endpoint.rate import LeakyBucket
from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.wire.token import Token
from kvcs.names import TrackNamespace

__all__ = (
    "Access",
    "AccessAction",
    "Authorize",
    "Decision",
    "Grant",
    "RefusalReasons",
    "VerificationBudget",
    "allow_all",
    "deny_all",
)


class AccessAction(StrEnum):
    """What a peer asks to do."""

    PUBLISH_NAMESPACE = "publish-namespace"
    SUBSCRIBE_NAMESPACE = "subscribe-namespace"
    SUBSCRIBE_TRACKS = "subscribe-tracks"
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    FETCH = "fetch"
    TRACK_STATUS = "track-status"


class VerificationBudget:
    """Useless tokens that one session may have verified: some at once, and so many a second.

    Verifying costs the relay far more than making a token that is useless.
    """

    __slots__ = ("_bucket", "_now")

    def __init__(self, bucket: LeakyBucket, now: float) -> None:
        """Ask for a session.

        Args:
            bucket: What its useless tokens fill.
            now: Monotonic seconds.
        """
        self._bucket = bucket
        self._now = now

    def __repr__(self) -> str:
        return f"<VerificationBudget {self._bucket}>"

    @property
    def is_left(self) -> bool:
        """Whether one more token may be verified."""
        return self._bucket.admit(0, now=self._now)

    def note_useless(self) -> None:
        """Count a token that was verified and cannot be used."""
        self._bucket.admit(1, now=self._now)


class RefusalReasons:
    """Why a policy refuses something, for the log of the relay; the peer is told none of it."""

    __slots__ = ("_texts",)

    def __init__(self) -> None:
        # Ordered, and each once.
        self._texts: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<RefusalReasons {self}>"

    def __str__(self) -> str:
        return "; ".join(self._texts)

    def add(self, text: str) -> None:
        """Add a reason in words: nothing that is secret, and nothing that the peer has written."""
        self._texts[text] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One request to be decided.

    Attributes:
        action: What is asked.
        namespace: Track Namespace, or the prefix of a namespace request.
        track_name: Track Name, or None for namespace requests.
        tokens: Tokens of the SETUP, then those of the request.
        is_hidden: A policy hid what is below this prefix; for the relay's own use.
        until: When it is to be decided again, in monotonic seconds; None for never. For the
            relay's own use, as are the next two.
        through: The SUBSCRIBE_TRACKS that a PUBLISH of the relay answers.
        session: Tells the session that asks from all others, by identity; None where there is none.
        is_whole: Those of the SETUP that count are among the tokens (`Grant.tokens`).
        budget: What its tokens may cost. A policy that verifies tokens asks it before it verifies
            one that it does not know, and where nothing is left refuses with EXCESSIVE_LOAD; None
            where a decision is made again, and nobody asked for it.
        reasons: Where a policy says why it refuses; None where nobody wants to know.
    """

    action: AccessAction
    namespace: TrackNamespace
    track_name: bytes | None
    tokens: tuple[Token, ...]
    is_hidden: bool = False
    until: float | None = None
    through: RequestId | None = None
    is_whole: bool = False
    session: object = field(default=None, compare=False, repr=False)
    budget: VerificationBudget | None = field(default=None, compare=False, repr=False)
    reasons: RefusalReasons | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Grant:
    """A policy allows something for a time; then it is asked again.

    Attributes:
        seconds: How long.
        tokens: Those of `Access.tokens` that it is to be decided by again; the others are
            forgotten, since nobody bounds what they cost then. None for all.
    """

    seconds: float
    tokens: tuple[Token, ...] | None = field(default=None, compare=False)


type Decision = RequestErrorCode | Grant | None
"""None allows for good, a `Grant` for a time, a code refuses: UNAUTHORIZED,
MALFORMED_AUTH_TOKEN, EXPIRED_AUTH_TOKEN, EXCESSIVE_LOAD where `Access.budget` has nothing left, or
DOES_NOT_EXIST to hide that there is anything."""

type Authorize = Callable[[Access], Decision]
"""A policy. It is asked before anything is looked up, and knows nothing of what exists."""


def allow_all(access: Access) -> RequestErrorCode | None:  # noqa: ARG001 - a policy's signature
    """Allow everything; for one machine and for tests."""
    return None


def deny_all(access: Access) -> RequestErrorCode | None:
    """Refuse everything; the default, so that a policy must be chosen."""
    if access.reasons is not None:
        access.reasons.add("this relay has no policy, and refuses everything")
    return RequestErrorCode.UNAUTHORIZED
