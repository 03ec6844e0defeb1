"""Where a Track Namespace goes: who publishes under it, and who wants to hear of it.

Theory of operation. `Namespaces` owns the advertisements of all publishers
(PUBLISH_NAMESPACE), the prefixes of all subscribers (SUBSCRIBE_NAMESPACE), and the number
of complete Tracks that the cache holds below each prefix. A Track Namespace is *listed*
while a publisher advertises it, and after the last one has gone for as long as the cache
holds a complete Track below it, or while the parent lists it. A publisher that leaves may say so
before its last Objects have arrived, on other streams: what then becomes complete is listed
again, but nothing that nobody ever advertised. Every method that may change
the list returns the `Change` values to be sent, in order; nothing is sent from here. A prefix
is a tuple of fields, so that a lookup costs one dictionary access for each field, whatever the
number of namespaces.

What this relay itself can serve, without the parent, is *local*, and announced to the parent:
what a publisher below advertises, and what the cache goes on serving when its publisher, or
the parent that listed it, is gone. It is local until the cache loses it: the parent's list
holds it again as soon as it was announced, which says nothing of anybody else who has it.

Source: MOQT draft 22, Sections 2.4.2, 3.6 and 4; KVCS, "Discovering Publications".
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType

from kvcs.errors import KvcsError, RequestErrorCode
from kvcs.moqt.session.actions import RequestId
from kvcs.names import TrackNamespace

__all__ = (
    "MAX_ENDED",
    "Change",
    "Namespaces",
    "PeerId",
    "PrefixRefused",
    "PrefixTable",
    "Route",
    "reserved_code",
)

type _Fields = tuple[bytes, ...]

PeerId = NewType("PeerId", int)
"""Number of a session inside one relay; never reused."""

_PERIOD: Final = b"."
_SESSION: Final = b".session"
# Namespaces that were listed and are remembered, the last ones to end: Objects are on their way
# for seconds, and a name has up to 4,096 octets.
MAX_ENDED: Final = 1024


class Route(NamedTuple):
    """One request of one peer: the address of an answer."""

    peer: PeerId
    request_id: RequestId


class PrefixRefused(KvcsError):
    """A prefix cannot be subscribed to.

    Attributes:
        code: Code of the REQUEST_ERROR.
    """

    def __init__(self, code: RequestErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Change:
    """One NAMESPACE or NAMESPACE_DONE that is due.

    Attributes:
        route: The SUBSCRIBE_NAMESPACE to tell.
        suffix: Fields after the prefix of that request.
        listed: True for NAMESPACE, False for NAMESPACE_DONE.
    """

    route: Route
    suffix: TrackNamespace
    listed: bool


def reserved_code(namespace: TrackNamespace) -> RequestErrorCode | None:
    """Return the code that refuses a request for a reserved namespace, else None.

    Source: MOQT draft 22, Section 2.4.3: ``.`` is never usable, ``.session`` is the
    stack's own and defines no tracks; other fields that start with a period pass.
    """
    if namespace.fields and namespace.fields[0] in {_PERIOD, _SESSION}:
        return RequestErrorCode.DOES_NOT_EXIST
    return None


class PrefixTable:
    """Prefixes that peers subscribed to, without overlap inside one session.

    SUBSCRIBE_NAMESPACE and SUBSCRIBE_TRACKS have one table each, since their prefixes
    may overlap each other (Section 9.17).
    """

    __slots__ = ("_peers", "_prefixes", "_routes")

    def __init__(self) -> None:
        self._prefixes: dict[Route, TrackNamespace] = {}
        self._peers: dict[PeerId, dict[Route, None]] = {}
        self._routes: dict[_Fields, dict[Route, None]] = {}

    def __len__(self) -> int:
        return len(self._prefixes)

    def __contains__(self, route: Route) -> bool:
        return route in self._prefixes

    def add(self, route: Route, prefix: TrackNamespace) -> None:
        """Add a prefix, or move an existing one.

        Raises:
            PrefixRefused: Another prefix of the same session is a prefix of this one, or
                the other way round; the table is unchanged.
        """
        for other in self._peers.get(route.peer, ()):
            if other != route and _overlap(prefix, self._prefixes[other]):
                reason = f"overlaps {self._prefixes[other]}"
                raise PrefixRefused(RequestErrorCode.PREFIX_OVERLAP, reason)
        self.remove(route)
        self._prefixes[route] = prefix
        self._peers.setdefault(route.peer, {})[route] = None
        self._routes.setdefault(prefix.fields, {})[route] = None

    def remove(self, route: Route) -> None:
        """Forget a prefix; unknown routes are ignored."""
        prefix = self._prefixes.pop(route, None)
        if prefix is None:
            return
        _discard(self._routes, prefix.fields, route)
        _discard(self._peers, route.peer, route)

    def prefix(self, route: Route) -> TrackNamespace:
        """Return the prefix of a route that is in the table."""
        return self._prefixes[route]

    def of_peer(self, peer: PeerId) -> list[Route]:
        """Return the routes of one session."""
        return list(self._peers.get(peer, ()))

    def matching(self, namespace: TrackNamespace) -> Iterator[tuple[Route, TrackNamespace]]:
        """Yield every route whose prefix matches, with the suffix after that prefix."""
        for length in range(len(namespace) + 1):
            routes = self._routes.get(namespace.fields[:length])
            if routes:
                suffix = TrackNamespace(namespace.fields[length:])
                for route in tuple(routes):
                    yield route, suffix


class Namespaces:
    """The list of Track Namespaces that this relay can serve."""

    __slots__ = (
        "_advertised",
        "_complete",
        "_ended",
        "_limit",
        "_local",
        "_on_local",
        "_peers",
        "_remote",
        "_sources",
        "_subscribers",
        "_under",
    )

    def __init__(
        self,
        *,
        max_matches: int = 100_000,
        on_local: Callable[[TrackNamespace, bool], None] = lambda _, __: None,
    ) -> None:
        """Create an empty list.

        Args:
            max_matches: Most namespaces below one subscribed prefix; above, the
                subscription is refused with NAMESPACE_TOO_LARGE.
            on_local: Called with a namespace that becomes local, and True, or no longer
                is, and False.
        """
        self._on_local = on_local
        self._local: dict[TrackNamespace, None] = {}
        self._remote: dict[TrackNamespace, None] = {}
        self._limit = max_matches
        self._advertised: dict[Route, TrackNamespace] = {}
        self._sources: dict[_Fields, dict[Route, None]] = {}
        self._under: dict[_Fields, dict[TrackNamespace, None]] = {}
        self._peers: dict[PeerId, dict[Route, None]] = {}
        self._complete: Counter[_Fields] = Counter()
        self._ended: dict[_Fields, None] = {}
        self._subscribers = PrefixTable()

    def __len__(self) -> int:
        return len(self._under.get((), ()))

    def __repr__(self) -> str:
        return f"<Namespaces listed={len(self)} subscribers={len(self._subscribers)}>"

    # Publishers

    def publish(self, route: Route, namespace: TrackNamespace) -> list[Change]:
        """Record an accepted PUBLISH_NAMESPACE."""
        changes = self.withdraw(route)
        self._advertised[route] = namespace
        self._peers.setdefault(route.peer, {})[route] = None
        self._sources.setdefault(namespace.fields, {})[route] = None
        self._localize(namespace)
        return changes + self._list(namespace)

    def withdraw(self, route: Route) -> list[Change]:
        """Forget a PUBLISH_NAMESPACE; unknown routes are ignored."""
        namespace = self._advertised.pop(route, None)
        if namespace is None:
            return []
        _discard(self._sources, namespace.fields, route)
        _discard(self._peers, route.peer, route)
        return self._unlist_if_gone(namespace)

    def publishers(self, namespace: TrackNamespace) -> list[Route]:
        """Return every advertisement that matches, the longest prefix first."""
        lengths = range(len(namespace), -1, -1)
        return [
            route
            for length in lengths
            for route in self._sources.get(namespace.fields[:length], ())
        ]

    def advertisements(self, peer: PeerId) -> int:
        """Return how many namespaces one session advertises."""
        return len(self._peers.get(peer, ()))

    def advertised_by(self, peer: PeerId) -> list[Route]:
        """Return the advertisements of one session."""
        return list(self._peers.get(peer, ()))

    # Parent

    def list_remote(self, namespace: TrackNamespace) -> list[Change]:
        """Record that the parent lists a namespace."""
        self._remote[namespace] = None
        return self._list(namespace)

    def unlist_remote(self, namespace: TrackNamespace) -> list[Change]:
        """Record that the parent lists a namespace no more; unknown ones are ignored."""
        if namespace not in self._remote:
            return []
        del self._remote[namespace]
        if self._complete[namespace.fields]:
            self._localize(namespace)
        return self._unlist_if_gone(namespace)

    def local(self) -> list[TrackNamespace]:
        """Return what this relay can serve without its parent, in the order it appeared."""
        return list(self._local)

    # Cache

    def track_completed(self, namespace: TrackNamespace) -> list[Change]:
        """Count one more complete Track of exactly `namespace`; list again what has just ended."""
        changes: list[Change] = []
        for length in range(len(namespace) + 1):
            fields = namespace.fields[:length]
            self._complete[fields] += 1
            if fields in self._ended:
                changes += self.list_complete(TrackNamespace(fields))
        return changes

    def list_complete(self, namespace: TrackNamespace) -> list[Change]:
        """List a namespace of which complete Tracks were found, without any publisher."""
        if not self._complete[namespace.fields]:
            return []
        self._localize(namespace)
        return self._list(namespace)

    def track_lost(self, namespace: TrackNamespace) -> list[Change]:
        """Count one complete Track less; namespaces without publisher may end."""
        changes: list[Change] = []
        for length in range(len(namespace) + 1):
            fields = namespace.fields[:length]
            self._complete[fields] -= 1
            if not self._complete[fields]:
                del self._complete[fields]
                changes += self._unlist_if_gone(TrackNamespace(fields))
        return changes

    # Subscribers

    def subscribe(self, route: Route, prefix: TrackNamespace) -> list[Change]:
        """Record a SUBSCRIBE_NAMESPACE, or the new prefix of one; list what matches.

        After a change of prefix everything is listed anew, relative to the new prefix
        (Section 9.20.20).

        Raises:
            PrefixRefused: The prefix overlaps another of the session, or matches too many
                namespaces.
        """
        matches = self._under.get(prefix.fields, {})
        if len(matches) > self._limit:
            reason = f"more than {self._limit} namespaces below {prefix}"
            raise PrefixRefused(RequestErrorCode.NAMESPACE_TOO_LARGE, reason)
        self.subscribe_hidden(route, prefix)
        return [Change(route, namespace.suffix_of(prefix), listed=True) for namespace in matches]

    def subscribe_hidden(self, route: Route, prefix: TrackNamespace) -> None:
        """Record a prefix below which nothing is listed; arguments and errors as in `subscribe`."""
        self._subscribers.add(route, prefix)

    def matches(self, prefix: TrackNamespace) -> int:
        """Return how many listed namespaces are below a prefix."""
        return len(self._under.get(prefix.fields, ()))

    def unsubscribe(self, route: Route) -> None:
        """Forget a SUBSCRIBE_NAMESPACE; unknown routes are ignored."""
        self._subscribers.remove(route)

    def subscribed_by(self, peer: PeerId) -> list[Route]:
        """Return the namespace subscriptions of one session."""
        return self._subscribers.of_peer(peer)

    # The list

    def listed(self) -> list[TrackNamespace]:
        """Return the listed namespaces, in the order they appeared."""
        return list(self._under.get((), ()))

    def is_listed(self, namespace: TrackNamespace) -> bool:
        """Tell whether a namespace is listed."""
        return namespace in self._under.get(namespace.fields, {})

    def _list(self, namespace: TrackNamespace) -> list[Change]:
        if namespace in self._under.get(namespace.fields, {}):
            return []
        self._ended.pop(namespace.fields, None)
        for length in range(len(namespace) + 1):
            self._under.setdefault(namespace.fields[:length], {})[namespace] = None
        return self._changes(namespace, listed=True)

    def _localize(self, namespace: TrackNamespace) -> None:
        if namespace not in self._local:
            self._local[namespace] = None
            self._on_local(namespace, True)

    def _unlist_if_gone(self, namespace: TrackNamespace) -> list[Change]:
        fields = namespace.fields
        if fields in self._sources or self._complete[fields]:
            return []
        if namespace in self._local:
            del self._local[namespace]
            self._on_local(namespace, False)
        if namespace in self._remote:
            return []
        if namespace not in self._under.get(fields, {}):
            return []
        for length in range(len(namespace) + 1):
            _discard(self._under, fields[:length], namespace)
        self._ended[fields] = None
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return self._changes(namespace, listed=False)

    def _changes(self, namespace: TrackNamespace, *, listed: bool) -> list[Change]:
        return [
            Change(route, suffix, listed) for route, suffix in self._subscribers.matching(namespace)
        ]


def _discard[K, M](index: dict[K, dict[M, None]], key: K, member: M) -> None:
    members = index[key]
    del members[member]
    if not members:
        del index[key]


def _overlap(one: TrackNamespace, other: TrackNamespace) -> bool:
    return one.is_prefix_of(other) or other.is_prefix_of(one)
