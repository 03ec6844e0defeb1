"""Who may do what: one function decides every request of the relay.

The relay asks before any look-up, so that a refused peer learns nothing of what exists,
and asks for every subscriber on its own even when the upstream subscription is shared.

Source: MOQT draft 22, Sections 8.9 and 15; KVCS, "Relay Considerations".
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kvcs.errors import RequestErrorCode
from kvcs.moqt.wire.token import Token
from kvcs.names import TrackNamespace

__all__ = ("Access", "AccessAction", "Authorize", "allow_all", "deny_all")


class AccessAction(StrEnum):
    """What a peer asks to do."""

    PUBLISH_NAMESPACE = "publish-namespace"
    SUBSCRIBE_NAMESPACE = "subscribe-namespace"
    SUBSCRIBE_TRACKS = "subscribe-tracks"
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    FETCH = "fetch"
    TRACK_STATUS = "track-status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One request to be decided.

    Attributes:
        action: What is asked.
        namespace: Track Namespace, or the prefix of a namespace request.
        track_name: Track Name, or None for namespace requests.
        tokens: Tokens of the SETUP, then those of the request.
        is_hidden: A policy hid what is below this prefix; for the relay's own use.
    """

    action: AccessAction
    namespace: TrackNamespace
    track_name: bytes | None
    tokens: tuple[Token, ...]
    is_hidden: bool = False


type Authorize = Callable[[Access], RequestErrorCode | None]
"""Returns None to allow, or the code that refuses: UNAUTHORIZED, MALFORMED_AUTH_TOKEN,
EXPIRED_AUTH_TOKEN, or DOES_NOT_EXIST to hide that there is anything."""


def allow_all(access: Access) -> RequestErrorCode | None:  # noqa: ARG001 - a policy's signature
    """Allow everything; for one machine and for tests."""
    return None


def deny_all(access: Access) -> RequestErrorCode | None:  # noqa: ARG001 - a policy's signature
    """Refuse everything; the default, so that a policy must be chosen."""
    return RequestErrorCode.UNAUTHORIZED
