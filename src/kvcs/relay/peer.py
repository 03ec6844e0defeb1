"""One session of a relay, and who listens to which of its requests."""

from collections.abc import Callable, Collection
from typing import Final, Protocol

from kvcs.endpoint.rate import LeakyBucket
from kvcs.errors import LocalProtocolError
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import Event
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.delivery import Delivery
from kvcs.moqt.track.outbox import Outbox
from kvcs.moqt.track.responder import TrackResponder
from kvcs.moqt.wire.token import Token
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.ancestry import Ancestry
from kvcs.relay.asker_shares import AskerShares, Stay
from kvcs.relay.auth import Access
from kvcs.relay.config import RelayLimits
from kvcs.relay.grants import Grants
from kvcs.relay.namespaces import PeerId, Route

__all__ = ("Link", "Listener", "Peer")

type Listener = Callable[[Event, float], None]
"""Takes an event and the time, monotonic seconds."""

# Of the streams that a peer lets the relay open, one in so many is left for other requests.
_RESERVED_SHARE: Final = 8
# The library gives a peer more streams only once half of those that it gave have ended: with half
# of them taken by what lasts, nothing could be asked. So PUBLISHes take less than half, and where
# a relay asks, they and announcements one in so many each.
_LASTING_SHARE: Final = 4
# A relay closes a session with far more requests than it takes of one. Each client here is
# bounded, and all of them together are not. So of what a relay that is as this one takes, one part
# in so many is for questions, and one for what is offered.
_REQUESTS_SHARE: Final = 2
# Of the questions, one client has half in the long run; at once, no more than it leaves to others.
_ASKER_SHARE: Final = 2


class Link(Protocol):
    """What a relay needs of a connection: `endpoint.Connection`, or less in tests."""

    @property
    def session(self) -> Session:
        """The session."""
        ...

    @property
    def peer(self) -> str:
        """Address of the peer, for people."""
        ...

    @property
    def outbox(self) -> Outbox:
        """What is to be sent to the peer, ranked."""
        ...

    @property
    def now(self) -> float:
        """Monotonic seconds, for the session's commands."""
        ...

    @property
    def max_request_streams(self) -> int:
        """Requests that the peer lets the relay have open; what goes beyond waits for it."""
        ...

    def wake(self) -> None:
        """Note that the session or the outbox has something to send."""
        ...


class Peer:
    """One session of a relay.

    Attributes:
        id: Number inside the relay.
        address: Where it is, for people.
        session: The session.
        mark: Tells this session from all others, also of other relays, and holds nothing.
        responder: What this peer is served.
        requests: How fast it sends requests.
        listings: How fast it has namespaces listed.
        questions: How fast it is asked about Tracks and prefixes, on behalf of all who ask.
        asked: How fast relays are asked for its sake.
        shares: For whose sake it has requests of ours.
        offers: How fast Tracks are published to it, or skipped, on behalf of all publishers.
        useless_tokens: How fast it brings tokens that are verified and cannot be used.
        withdrawals: How fast it takes namespaces back that it announced.
        going_away: The peer sent GOAWAY; it gets no new requests.
        busy_until: Until then it serves no more FETCHes than it does, as it said.
        tokens: Authorization tokens of the peer's SETUP.
        presented: Tokens of the latest request or update that was granted by some.
        granted: What each of its requests that is followed was decided by.
        withdrawn: What namespaces were announced by that it took back, and Tracks published by
            of which it ended the PUBLISH, while something from there is received.
        published: The PUBLISHes of ours that it asked for by prefix and that are not over.
        is_parent: This relay dialled it, to ask it for what it lacks.
        ancestry: Where the peer stands in a tree of relays; None if it is no relay, or does
            not say.
        told: The relays that our SETUP named to it.
    """

    __slots__ = (
        "__weakref__",
        "_link",
        "_listeners",
        "_max_published",
        "_max_questions",
        "address",
        "ancestry",
        "asked",
        "busy_until",
        "going_away",
        "granted",
        "id",
        "is_parent",
        "listings",
        "mark",
        "offers",
        "presented",
        "published",
        "questions",
        "requests",
        "responder",
        "session",
        "shares",
        "tokens",
        "told",
        "useless_tokens",
        "withdrawals",
        "withdrawn",
    )

    def __init__(
        self, peer_id: PeerId, link: Link, limits: RelayLimits, *, is_parent: bool = False
    ) -> None:
        self.id = peer_id
        self.address = link.peer
        self.session = link.session
        self.mark = object()
        max_fetches = limits.max_fetches_per_session
        self.responder = TrackResponder(link.session, link.outbox, max_fetches=max_fetches)
        self.requests = LeakyBucket(limits.max_request_rate, burst=limits.max_request_burst)
        rate = limits.max_request_rate / _REQUESTS_SHARE
        burst = max(1.0, limits.max_request_burst / _REQUESTS_SHARE)
        self.questions = LeakyBucket(rate, burst=burst)
        self.asked = LeakyBucket(rate / _ASKER_SHARE, burst=burst)
        self.shares = AskerShares()
        self.offers = LeakyBucket(rate, burst=burst)
        most_listed = limits.session.max_namespaces
        self.listings = LeakyBucket(limits.max_listing_rate, burst=most_listed)
        most_announced = limits.max_namespaces_per_session
        self.withdrawals = LeakyBucket(limits.max_withdrawal_rate, burst=most_announced)
        self.useless_tokens = LeakyBucket(
            limits.max_useless_token_rate, burst=limits.max_useless_token_burst
        )
        self.going_away = False
        self.busy_until = 0.0
        self.tokens: tuple[Token, ...] = ()
        self.presented: tuple[Token, ...] = ()
        self.granted = Grants()
        self.withdrawn: dict[TrackNamespace | FullTrackName, Access] = {}
        self.published: set[RequestId] = set()
        self.is_parent = is_parent
        self.ancestry: Ancestry | None = None
        self.told: frozenset[bytes] = frozenset()
        self._link = link
        self._max_published = limits.max_published_tracks
        self._max_questions = burst
        self._listeners: dict[RequestId, Listener] = {}

    def __repr__(self) -> str:
        return f"<Peer {self.id} requests={len(self._listeners)}>"

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        return self._link.now

    @property
    def is_available(self) -> bool:
        """Whether new requests may go to this peer."""
        return not self.going_away and not self.session.is_closed

    def takes_question(self, asker: "Peer | None", *, now: float) -> bool:
        """Whether this peer may be asked about a Track or prefix now.

        Args:
            asker: For whose sake; None for nobody in particular.
            now: Monotonic seconds.
        """
        if not self.is_relay:
            return True
        room = self.questions.room(now=now)
        return room >= 1 and (asker is None or asker.asked.level(now=now) <= room)

    def note_question(self, asker: "Peer | None", *, now: float) -> None:
        """Count what this peer is asked; arguments as in `takes_question`."""
        self.questions.admit(1, now=now)
        if asker is not None and self.is_relay:
            asker.asked.admit(1, now=now)

    def takes_repetition(self, asker: "Peer", *, now: float) -> bool:
        """Whether this peer may be asked again what it denied, with enough room for what is new.

        Arguments as in `takes_question`.
        """
        if not self.is_relay:
            return True
        is_quiet = self.questions.level(now=now) <= self._max_questions / 2
        has_rest = self.shares.has_rest(streams=self._link.max_request_streams)
        may_ask = self.has_room_for(asker, Stay.STANDING) and self.takes_question(asker, now=now)
        return is_quiet and has_rest and may_ask

    def takes_offer(self, *, now: float) -> bool:
        """Whether this peer may be told now that a Track is published, or skipped."""
        return not self.is_relay or self.offers.room(now=now) >= 1

    def has_room_for(self, asker: "Peer | None", stay: Stay) -> bool:
        """Whether this peer may have one more request for the sake of `asker`; None is nobody's."""
        if asker is None or not self.is_relay:
            return True
        streams, taken = self._link.max_request_streams, self.session.open_request_streams
        return self.shares.has_room(asker.id, stay, streams=streams, taken=taken)

    def charge(self, request_id: RequestId, asker: "Peer | None", stay: Stay) -> None:
        """Note for whose sake this peer has a request, until it is forgotten."""
        if asker is not None and self.is_relay:
            self.shares.charge(request_id, asker.id, stay)

    def count_question(self, asker: "Peer | None", stay: Stay, *, now: float) -> None:
        """Count a SUBSCRIBE, FETCH or TRACK_STATUS that is to be sent.

        Args:
            asker: For whose sake; None for nobody in particular.
            stay: How long it will have its stream.
            now: Monotonic seconds.

        Raises:
            LocalProtocolError: It is a relay that would not take so many, or not of one client.
        """
        if not self.has_room_for(asker, stay):
            raise LocalProtocolError("this peer has too many requests of one client")
        if not self.takes_question(asker, now=now):
            raise LocalProtocolError("this peer is asked about too many Tracks")
        self.note_question(asker, now=now)

    @property
    def takes_publish(self) -> bool:
        """Whether another Track may be published to this peer by its wish for a prefix."""
        streams = self._link.max_request_streams
        free = streams - self.session.open_request_streams
        has_stream = free > streams // _RESERVED_SHARE
        lasting = streams // _LASTING_SHARE if self.is_relay else (streams - 1) // 2
        most = min(self._max_published, max(1, lasting))
        return self.is_available and has_stream and len(self.published) < most

    @property
    def deliveries(self) -> Collection[Delivery]:
        """What is served to this peer now."""
        return self._link.outbox.deliveries

    @property
    def is_relay(self) -> bool:
        """Whether it is a relay next to this one in a tree."""
        return self.is_parent or self.ancestry is not None

    @property
    def max_announced(self) -> int:
        """PUBLISH_NAMESPACEs that it may have from the relay at a time: each holds a stream."""
        return self._link.max_request_streams // _LASTING_SHARE

    def may_serve(self, asker: "Peer | None") -> bool:
        """Tell whether this peer may be asked for what `asker` wants.

        A relay is never asked for its own sake: it would ask back. Other peers may subscribe
        to what they publish (Section 3.1).
        """
        return asker is not self or not self.is_relay

    def route(self, request_id: RequestId) -> Route:
        """Return the address of one request of this session."""
        return Route(self.id, request_id)

    def wake(self) -> None:
        """Have what the session or the outbox holds be sent."""
        self._link.wake()

    def follow(self, request_id: RequestId, listener: Listener) -> None:
        """Give all further events of a request to `listener`."""
        self._listeners[request_id] = listener

    def forget(self, request_id: RequestId) -> None:
        """Stop following a request; unknown ones are ignored."""
        self._listeners.pop(request_id, None)
        self.granted.pop(request_id, None)
        self.shares.end(request_id)
        self.published.discard(request_id)

    def listener(self, request_id: RequestId | None) -> Listener | None:
        """Return who follows a request, or None."""
        return None if request_id is None else self._listeners.get(request_id)

    def followed(self) -> list[RequestId]:
        """Return the requests that somebody follows."""
        return list(self._listeners)
