"""What the three kinds of parties of KVCS need to be allowed.

REQUEST_UPDATE has a number of its own and is in no role: an update that brings a token is decided
as the request that it updates.

Source: KVCS, "Relay Considerations"; draft-ietf-moq-c4m-01, Section 2.1.1.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from kvcs.c4m.scope import Action, Match, Scope
from kvcs.names import TrackNamespace

__all__ = ("Role", "role_scopes")

_PRODUCER: Final = frozenset({Action.PUBLISH_NAMESPACE, Action.PUBLISH})
_CONSUMER: Final = frozenset(
    {Action.SUBSCRIBE_NAMESPACE, Action.SUBSCRIBE, Action.FETCH, Action.TRACK_STATUS}
)


class Role(StrEnum):
    """A party; a relay is one towards its parents, for all that are behind it."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    RELAY = "relay"

    @property
    def actions(self) -> frozenset[Action]:
        """What it does."""
        match self:
            case Role.PRODUCER:
                return _PRODUCER
            case Role.CONSUMER:
                return _CONSUMER
            case Role.RELAY:
                return _PRODUCER | _CONSUMER


def role_scopes(role: Role, namespaces: Iterable[TrackNamespace]) -> tuple[Scope, ...]:
    """Return one scope for each namespace: the role, there and below it.

    Args:
        role: The party.
        namespaces: Where.
    """
    actions = frozenset(map(int, role.actions))
    return tuple(
        Scope(actions=actions, namespace=tuple(map(Match.exact, namespace.fields)))
        for namespace in namespaces
    )
