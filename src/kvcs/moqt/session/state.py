"""The state of one request, and the rules that all kinds of requests share.

Each kind of request has two tables, one for the side that sent the request and one for
the side that answers it; they stand at the top of the file of that kind. A table maps a
state and an input to the next state; what is not in it is illegal: a violation when it
was received, a bug of the caller when it was our command.

Three rules hold for all tables and are not repeated in them:

1. A request that ended abruptly (`State.CANCELLED`) absorbs every input. What the peer
   sent before it knew is not its fault, and neither is a command that our application
   gave before it had read the event.
2. A request may be ended abruptly by either side in any state that is not final
   (`Input.CANCEL`, `Input.RECEIVE_CANCEL`); in `State.TERMINATED` that changes nothing.
3. A GOAWAY for one request (`Input.SEND_GOAWAY`) may be sent while the request is going on
   and our direction of its stream is open, and changes nothing (Section 9.2).

Source: MOQT draft 22, Sections 3.1.2 and 6.4.2.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import GroupOrder
from kvcs.moqt.session.actions import RequestId, StreamId, TrackAlias
from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.filters import RangeFilter
from kvcs.moqt.wire.parameters import NO_PARAMETERS, Parameters
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.moqt.wire.scope import Scope
from kvcs.names import FullTrackName, TrackNamespace

__all__ = ("Input", "Request", "RequestKind", "RequestRules", "State", "Table", "next_state")


class RequestKind(Enum):
    """What a request asks for."""

    SUBSCRIBE = auto()
    PUBLISH = auto()
    FETCH = auto()
    TRACK_STATUS = auto()
    PUBLISH_NAMESPACE = auto()
    SUBSCRIBE_NAMESPACE = auto()
    SUBSCRIBE_TRACKS = auto()


class State(Enum):
    """Where a request stands, seen from one side.

    ENDING: the publisher of a PUBLISH was done before the answer came.
    DRAINING: PUBLISH_DONE was received; streams may still be on their way.
    TERMINATED: ended in order. CANCELLED: ended abruptly, by either side.
    """

    PENDING = auto()
    ESTABLISHED = auto()
    ENDING = auto()
    DRAINING = auto()
    TERMINATED = auto()
    CANCELLED = auto()


class Input(Enum):
    """What can happen to a request: our commands, what we receive, what we notice."""

    SEND_OK = auto()
    SEND_ERROR = auto()
    SEND_UPDATE = auto()
    SEND_UPDATE_OK = auto()
    SEND_UPDATE_ERROR = auto()
    SEND_DATA = auto()
    SEND_DONE = auto()
    SEND_NOTIFY = auto()
    SEND_NAMESPACE = auto()
    SEND_SKIPPED = auto()
    SEND_GOAWAY = auto()
    CANCEL = auto()
    RECEIVE_OK = auto()
    RECEIVE_ERROR = auto()
    RECEIVE_UPDATE = auto()
    RECEIVE_UPDATE_OK = auto()
    RECEIVE_UPDATE_ERROR = auto()
    RECEIVE_DONE = auto()
    RECEIVE_NOTIFY = auto()
    RECEIVE_NAMESPACE = auto()
    RECEIVE_SKIPPED = auto()
    RECEIVE_GOAWAY = auto()
    RECEIVE_FIN = auto()
    RECEIVE_CANCEL = auto()
    DATA_COMPLETE = auto()

    @property
    def is_received(self) -> bool:
        """Whether the peer caused it."""
        return self.name.startswith("RECEIVE")


type Table = Mapping[tuple[State, Input], State]

_CANCELS = frozenset({Input.CANCEL, Input.RECEIVE_CANCEL})
_GOING_ON = frozenset({State.PENDING, State.ESTABLISHED})


def next_state(table: Table, state: State, step: Input) -> State | None:
    """Look up the state after `step`; None when it is illegal in `state`."""
    if state is State.CANCELLED:
        return state
    if step in _CANCELS:
        return table.get((state, step), State.CANCELLED)
    if step is Input.SEND_GOAWAY:
        return state if state in _GOING_ON else None
    return table.get((state, step))


@dataclass(frozen=True, slots=True)
class RequestRules:
    """What distinguishes one kind of request.

    Attributes:
        kind: The kind.
        requester: Table of the side that sent the request.
        responder: Table of the side that answers it.
        scope: Parameters of the request.
        ok_scope: Parameters of its REQUEST_OK; None when another message accepts it.
        update_scope: Parameters of a REQUEST_UPDATE.
    """

    kind: RequestKind
    requester: Table
    responder: Table
    scope: Scope
    ok_scope: Scope | None
    update_scope: Scope


class Request:
    """One request, on its own stream.

    Attributes:
        rules: Rules of its kind.
        request_id: Its id; updates have ids of their own.
        stream_id: Its request stream.
        is_requester: We sent it.
        state: Where it stands.
        parameters: Parameters of the request itself.
        track: Full Track Name, for kinds that name one.
        namespace: Prefix, for kinds that name one; follows TRACK_NAMESPACE_PREFIX updates.
        track_alias: Track Alias of a subscription, once known.
        properties: Track Properties, once known.
        filters: Range filters in force, on the side that applies them.
        can_send: Our direction of the stream is open.
        can_receive: The peer's direction is open.
        awaits_subscriber: PUBLISH_DONE or all of a FETCH was sent, the subscriber has not ended
            its side.
        went_away: A GOAWAY came on its stream.
        sent_away: A GOAWAY of ours went out on its stream.
        updates_sent: Our unanswered updates with their parameters, oldest first.
        updates_received: The peer's unanswered updates, likewise.
        fills: Ids that a fetch stream may name, with the order of Groups asked for there.
        outgoing: Open data streams of ours.
        incoming: Open data streams of the peer.
        streams_opened: Data streams that we opened for it.
        streams_seen: Data streams of the peer whose header was received.
        streams_announced: Count in the PUBLISH_DONE received; None when unknown.
        data_complete: The one data stream of a FETCH has ended.
        namespaces: Namespaces announced on it and not withdrawn.
        taken_from: Payloads of at least so many octets are taken while they arrive; None for none.
    """

    __slots__ = (
        "awaits_subscriber",
        "can_receive",
        "can_send",
        "data_complete",
        "fills",
        "filters",
        "incoming",
        "is_requester",
        "namespace",
        "namespaces",
        "outgoing",
        "parameters",
        "properties",
        "request_id",
        "rules",
        "sent_away",
        "state",
        "stream_id",
        "streams_announced",
        "streams_opened",
        "streams_seen",
        "taken_from",
        "track",
        "track_alias",
        "updates_received",
        "updates_sent",
        "went_away",
    )

    def __init__(
        self,
        rules: RequestRules,
        request_id: RequestId,
        stream_id: StreamId,
        *,
        is_requester: bool,
        parameters: Parameters = NO_PARAMETERS,
    ) -> None:
        self.rules = rules
        self.request_id = request_id
        self.stream_id = stream_id
        self.is_requester = is_requester
        self.state = State.PENDING
        self.parameters = parameters
        self.track: FullTrackName | None = None
        self.namespace: TrackNamespace | None = None
        self.track_alias: TrackAlias | None = None
        self.properties: Properties = EMPTY_PROPERTIES
        self.filters: tuple[RangeFilter, ...] = parameters.range_filters
        self.can_send = True
        self.can_receive = True
        self.awaits_subscriber = False
        self.went_away = False
        self.sent_away = False
        self.updates_sent: deque[tuple[RequestId, Parameters]] = deque()
        self.updates_received: deque[tuple[RequestId, Parameters]] = deque()
        self.fills: dict[RequestId, GroupOrder | None] = {}
        self.outgoing: set[StreamId] = set()
        self.incoming: set[StreamId] = set()
        self.streams_opened = 0
        self.streams_seen = 0
        self.taken_from: int | None = None
        self.streams_announced: int | None = None
        self.data_complete = False
        self.namespaces: set[TrackNamespace] = set()

    def __repr__(self) -> str:
        return (
            f"Request({self.rules.kind.name} {self.request_id} on stream {self.stream_id}, "
            f"{self.state.name}, {len(self.incoming)} streams in, {len(self.outgoing)} out)"
        )

    @property
    def kind(self) -> RequestKind:
        """What it asks for."""
        return self.rules.kind

    @property
    def is_subscription(self) -> bool:
        """Whether it is a SUBSCRIBE or a PUBLISH."""
        return self.kind is RequestKind.SUBSCRIBE or self.kind is RequestKind.PUBLISH

    @property
    def receives_data(self) -> bool:
        """Whether we are the side that data comes to."""
        if self.kind is RequestKind.PUBLISH:
            return not self.is_requester
        return self.is_requester and self.kind in {RequestKind.SUBSCRIBE, RequestKind.FETCH}

    @property
    def is_over(self) -> bool:
        """Whether it has ended, in order or abruptly."""
        return self.state is State.TERMINATED or self.state is State.CANCELLED

    @property
    def awaits_answer(self) -> bool:
        """Whether the request itself is unanswered."""
        return self.state is State.PENDING or self.state is State.ENDING

    def may(self, step: Input) -> bool:
        """Tell whether a step is legal now."""
        table = self.rules.requester if self.is_requester else self.rules.responder
        return next_state(table, self.state, step) is not None

    def advance(self, step: Input) -> None:
        """Move to the state that the table of this side gives for `step`.

        Raises:
            RemoteProtocolError: The peer caused a step that is illegal now.
            LocalProtocolError: Our command is illegal now.
        """
        table = self.rules.requester if self.is_requester else self.rules.responder
        following = next_state(table, self.state, step)
        if following is None:
            reason = f"{step.name} in {self.kind.name} {self.request_id}, {self.state.name}"
            raise violation(reason) if step.is_received else LocalProtocolError(reason)
        self.state = following
