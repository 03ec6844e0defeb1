"""What a token allows: actions under names, compared octet by octet.

A scope says which actions are allowed, on which Track Namespaces and Tracks. Its n-th namespace
match applies to the n-th field. A list that ends in null ends the namespace there; any other one
covers longer namespaces too. Where nothing is said, everything is meant; what no scope allows is
refused. What the draft leaves open is refused:

* a prefix that is shorter than the list of matches reaches beyond it;
* PUBLISH_NAMESPACE offers every Track of the namespace, so a scope with a Track match, which is
  for some, does not cover it. Other requests without a Track Name only list, and what they
  list is decided by its own name.

Source: draft-ietf-moq-c4m-01, Section 2.1.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kvcs.cose.cbor import CborValue
from kvcs.names import MAX_FIELDS, MAX_NAME_BYTES, TrackNamespace

__all__ = ("MAX_ACTIONS", "MAX_SCOPES", "Action", "Match", "MatchKind", "Scope", "ScopeError")

MAX_SCOPES: Final = 64
"""Scopes of one token."""
MAX_ACTIONS: Final = 32
"""Actions of one scope; nine have a number."""


class Action(IntEnum):
    """What a peer may be allowed to do (Section 2.1.1)."""

    CLIENT_SETUP = 0
    SERVER_SETUP = 1
    PUBLISH_NAMESPACE = 2
    SUBSCRIBE_NAMESPACE = 3
    SUBSCRIBE = 4
    REQUEST_UPDATE = 5
    PUBLISH = 6
    FETCH = 7
    TRACK_STATUS = 8


class MatchKind(IntEnum):
    """How octets are compared (Section 2.1.2)."""

    EXACT = 0
    PREFIX = 1
    SUFFIX = 2


# Kinds that a claim names; octets by themselves are exact.
_MARKED: Final = frozenset({MatchKind.PREFIX, MatchKind.SUFFIX})


class ScopeError(ValueError):
    """A scope has a form that is not understood."""


@dataclass(frozen=True, slots=True)
class Match:
    """What octets must be.

    Attributes:
        kind: How they are compared.
        octets: With what.

    Raises:
        ScopeError: `octets` are more than a name may have.
    """

    kind: MatchKind
    octets: bytes

    def __post_init__(self) -> None:
        if len(self.octets) > MAX_NAME_BYTES:
            raise ScopeError("a match that is longer than any name")

    @classmethod
    def exact(cls, octets: bytes) -> "Match":
        """Return the match of these octets alone."""
        return cls(MatchKind.EXACT, octets)

    @classmethod
    def prefix(cls, octets: bytes) -> "Match":
        """Return the match of all that begins so."""
        return cls(MatchKind.PREFIX, octets)

    @classmethod
    def suffix(cls, octets: bytes) -> "Match":
        """Return the match of all that ends so."""
        return cls(MatchKind.SUFFIX, octets)

    def covers(self, octets: bytes) -> bool:
        """Tell whether `octets` are what they must be."""
        match self.kind:
            case MatchKind.EXACT:
                return octets == self.octets
            case MatchKind.PREFIX:
                return octets.startswith(self.octets)
            case MatchKind.SUFFIX:
                return octets.endswith(self.octets)

    def to_claim(self) -> CborValue:
        """Return the value of the claim."""
        return self.octets if self.kind is MatchKind.EXACT else [int(self.kind), self.octets]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Some actions on some names.

    Attributes:
        actions: Numbers of the actions; those without a name here allow nothing.
        namespace: One match for each field; empty for every namespace.
        is_exact: The namespace has no more fields than `namespace`.
        track: What the Track Name must be; None for every Track.

    Raises:
        ScopeError: There are no actions, or more actions or fields than there can be.
    """

    actions: frozenset[int]
    namespace: tuple[Match, ...] = ()
    is_exact: bool = False
    track: Match | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.actions) <= MAX_ACTIONS:
            raise ScopeError(f"a scope has 1..{MAX_ACTIONS} actions")
        if len(self.namespace) > MAX_FIELDS:
            raise ScopeError(f"a scope has at most {MAX_FIELDS} namespace matches")

    def allows(
        self, action: Action, namespace: TrackNamespace, track_name: bytes | None = None
    ) -> bool:
        """Tell whether an action is allowed.

        Args:
            action: What is asked.
            namespace: Track Namespace, or the prefix that a namespace request names.
            track_name: Track Name; None for a namespace request.
        """
        return (
            action in self.actions
            and self._covers_namespace(namespace)
            and self._covers_track(action, track_name)
        )

    def _covers_namespace(self, namespace: TrackNamespace) -> bool:
        fields, matches = namespace.fields, self.namespace
        if len(fields) < len(matches) or (self.is_exact and len(fields) > len(matches)):
            return False
        return all(match.covers(field) for match, field in zip(matches, fields, strict=False))

    def _covers_track(self, action: Action, track_name: bytes | None) -> bool:
        if self.track is None:
            return True
        if track_name is None:
            return action is not Action.PUBLISH_NAMESPACE
        return self.track.covers(track_name)

    def to_claim(self) -> CborValue:
        """Return the value of the claim."""
        parts: list[CborValue] = [[*sorted(self.actions)]]
        if self.namespace or self.is_exact:
            matches: list[CborValue] = [match.to_claim() for match in self.namespace]
            parts.append([*matches, None] if self.is_exact else matches)
        if self.track is not None:
            parts.append(self.track.to_claim())
        return parts

    @classmethod
    def from_claim(cls, value: CborValue) -> "Scope":
        """Read a scope.

        Raises:
            ScopeError: It has a form that is not understood.
        """
        if not isinstance(value, list) or not 1 <= len(value) <= 3:
            raise ScopeError("a scope is a list of actions, then names")
        actions, *names = value
        namespace: tuple[Match, ...] = ()
        is_exact, track = False, None
        if names and not _is_match(names[0]):
            namespace, is_exact = _namespace(names.pop(0))
        if names:
            track = _match(names.pop(0))
        if names:
            raise ScopeError("a scope with more than one Track match")
        return cls(actions=_actions(actions), namespace=namespace, is_exact=is_exact, track=track)


def _actions(value: CborValue) -> frozenset[int]:
    if not isinstance(value, list) or len(value) > MAX_ACTIONS:
        raise ScopeError(f"a scope begins with a list of at most {MAX_ACTIONS} actions")
    actions = {item for item in value if isinstance(item, int) and not isinstance(item, bool)}
    if len(actions) != len(value):
        raise ScopeError("an action is a number, and stands once")
    return frozenset(actions)


def _namespace(value: CborValue) -> tuple[tuple[Match, ...], bool]:
    if not isinstance(value, list) or not value:
        raise ScopeError("namespace matches are a list with one at least")
    is_exact = value[-1] is None
    return tuple(map(_match, value[:-1] if is_exact else value)), is_exact


def _is_match(value: CborValue) -> bool:
    """Tell a single match from a list of them."""
    return isinstance(value, bytes) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], int)
    )


def _match(value: CborValue) -> Match:
    match value:
        case bytes():
            return Match.exact(value)
        case [int(kind), bytes(octets)] if kind in _MARKED and not isinstance(kind, bool):
            return Match(MatchKind(kind), octets)
        case _:
            raise ScopeError("a match of a form that is not understood")
