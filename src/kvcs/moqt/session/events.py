"""Events: what the application should know about a session.

Every event about a request names it with `request_id`: the id of the SUBSCRIBE, PUBLISH,
FETCH, ... itself, also where a REQUEST_UPDATE or a fill is concerned. Parameters carry
authorization tokens in resolved form (USE_VALUE). A payload is `bytes` that the
receiver owns. Only the parts of a payload that is taken while it arrives are views: they
stay valid as long as they are kept, and each keeps alive the bytes that came with it.

After RequestRejected, RequestCancelled, SubscriptionDrained, SubscriberFinished or
SessionClosed nothing more is said about a request, and its id is of no further use.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kvcs import errors
from kvcs.errors import KvcsError
from kvcs.moqt.codepoints import RangeMarker
from kvcs.moqt.session.actions import RequestId, StreamId
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import Parameters
from kvcs.moqt.wire.properties import Properties
from kvcs.moqt.wire.request import Redirect
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, Location, TrackNamespace

__all__ = (
    "DatagramReceived",
    "Event",
    "FetchAccepted",
    "FetchOpened",
    "FetchReceived",
    "GoawayReceived",
    "NamespaceDoneReceived",
    "NamespaceReceived",
    "ObjectBegun",
    "ObjectPayload",
    "ObjectReceived",
    "PublishDoneReceived",
    "PublishNamespaceReceived",
    "PublishReceived",
    "PublishSkippedReceived",
    "RangeEnded",
    "RequestAccepted",
    "RequestCancelled",
    "RequestRejected",
    "SessionClosed",
    "SetupComplete",
    "StateNotified",
    "StreamAborted",
    "StreamFinished",
    "StreamStopped",
    "SubgroupOpened",
    "SubscribeAccepted",
    "SubscribeNamespaceReceived",
    "SubscribeReceived",
    "SubscribeTracksReceived",
    "SubscriberFinished",
    "SubscriptionDrained",
    "TrackStatusReceived",
    "Unheard",
    "UpdateAccepted",
    "UpdateReceived",
    "UpdateRejected",
)


# The session as a whole.


@dataclass(frozen=True, slots=True)
class SetupComplete:
    """The peer's SETUP arrived; `options` are the peer's."""

    options: SetupOptions


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session is over; always the last event.

    Attributes:
        error: RemoteProtocolError when the peer broke a rule, a TransportError otherwise.
    """

    error: KvcsError


@dataclass(frozen=True, slots=True)
class GoawayReceived:
    """The peer asks to move elsewhere (Section 9.2).

    Attributes:
        uri: Where to; empty means the same URI.
        timeout: Seconds until the peer ends it; 0 means unspecified.
        request_id: The one request that should move, or None for the whole session.
    """

    uri: str
    timeout: float
    request_id: RequestId | None


# Requests of the peer.


@dataclass(frozen=True, slots=True)
class SubscribeReceived:
    """SUBSCRIBE; answer with `accept_subscribe` or `reject`."""

    request_id: RequestId
    track: FullTrackName
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class FetchReceived:
    """FETCH; answer with `accept_fetch` or `reject`, before or after the data."""

    request_id: RequestId
    track: FullTrackName
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class TrackStatusReceived:
    """TRACK_STATUS; answer with `accept` or `reject`."""

    request_id: RequestId
    track: FullTrackName
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class PublishReceived:
    """PUBLISH; answer with `accept` or `reject`. Objects may already follow."""

    request_id: RequestId
    track: FullTrackName
    parameters: Parameters
    properties: Properties


@dataclass(frozen=True, slots=True)
class PublishNamespaceReceived:
    """PUBLISH_NAMESPACE; answer with `accept` or `reject`."""

    request_id: RequestId
    namespace: TrackNamespace
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class SubscribeNamespaceReceived:
    """SUBSCRIBE_NAMESPACE; answer with `accept` or `reject`, then `announce`."""

    request_id: RequestId
    prefix: TrackNamespace
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class SubscribeTracksReceived:
    """SUBSCRIBE_TRACKS; answer with `accept` or `reject`, then `publish` each track."""

    request_id: RequestId
    prefix: TrackNamespace
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    """REQUEST_UPDATE; answer with `accept_update` or `reject_update`, in order.

    Attributes:
        request_id: The request that it changes.
        update_id: Its own id, which a fill that it asks for names.
        parameters: Only what changes.
    """

    request_id: RequestId
    update_id: RequestId
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Unheard:
    """A request or update that the session has refused or passed over by itself.

    It names no request, since none is concerned: who bounds how fast a peer asks counts it.
    """


# Answers to our requests.


@dataclass(frozen=True, slots=True)
class SubscribeAccepted:
    """SUBSCRIBE_OK."""

    request_id: RequestId
    parameters: Parameters
    properties: Properties


@dataclass(frozen=True, slots=True)
class FetchAccepted:
    """FETCH_OK; `end_location` is inclusive. Data may have come before it."""

    request_id: RequestId
    end_of_track: bool
    end_location: Location
    properties: Properties


@dataclass(frozen=True, slots=True)
class RequestAccepted:
    """REQUEST_OK to PUBLISH, TRACK_STATUS, *_NAMESPACE or SUBSCRIBE_TRACKS."""

    request_id: RequestId
    parameters: Parameters
    properties: Properties


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """REQUEST_ERROR, or no answer within the deadline (code TIMEOUT).

    Attributes:
        request_id: The request that failed.
        code: Code of Section 12.3 as received; unknown ones mean INTERNAL_ERROR.
        reason: Text of the peer, not sanitized, or ours.
        retry_after: Seconds to wait before trying again; None when retrying is futile.
        redirect: Where to ask instead, with code REDIRECT.
    """

    request_id: RequestId
    code: int
    reason: str
    retry_after: float | None = None
    redirect: Redirect | None = None

    def error(self) -> errors.RequestRejected:
        """Return it as an exception."""
        target = None if self.redirect is None else str(self.redirect)
        return errors.RequestRejected(
            self.code, self.reason, retry_after=self.retry_after, target=target
        )


@dataclass(frozen=True, slots=True)
class UpdateAccepted:
    """REQUEST_OK to our REQUEST_UPDATE `update_id`."""

    request_id: RequestId
    update_id: RequestId
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class UpdateRejected:
    """REQUEST_ERROR to our REQUEST_UPDATE `update_id`; the request usually ends with it."""

    request_id: RequestId
    update_id: RequestId
    code: int
    reason: str


# Life of a request.


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """A request ended abruptly; its data streams are gone with it.

    The peer cancelled its request or revoked ours, ended its stream before it had sent
    what it owed (code INTERNAL_ERROR), or an update could not be applied.

    Attributes:
        request_id: The request that ended.
        code: Code of Section 12.5.
    """

    request_id: RequestId
    code: int


@dataclass(frozen=True, slots=True)
class PublishDoneReceived:
    """PUBLISH_DONE: no new stream will be opened; open ones go on until they end.

    Attributes:
        request_id: The subscription.
        status_code: Code of Section 12.4 as received.
        stream_count: Streams that were opened for it; None when the publisher does not know.
        reason: Text of the peer, not sanitized.
    """

    request_id: RequestId
    status_code: int
    stream_count: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SubscriberFinished:
    """The subscriber has ended its side of a request of which everything was sent.

    That is a subscription after our PUBLISH_DONE, or a FETCH after its data stream.

    Attributes:
        request_id: The request, which is forgotten now.
        in_order: It sent FIN, as a subscriber does that has everything, although it may do so
            earlier (Section 6.4.2.2); False after a reset.
    """

    request_id: RequestId
    in_order: bool


@dataclass(frozen=True, slots=True)
class SubscriptionDrained:
    """Nothing more comes after a PUBLISH_DONE.

    Attributes:
        request_id: The subscription, which is forgotten now.
        complete: All announced streams were seen to their end; False when the time for
            it ran out, so that some may be missing.
    """

    request_id: RequestId
    complete: bool


@dataclass(frozen=True, slots=True)
class StateNotified:
    """PUBLISH_STATE_NOTIFY: the publisher changed something by itself."""

    request_id: RequestId
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class NamespaceReceived:
    """NAMESPACE: a namespace under our prefix exists."""

    request_id: RequestId
    suffix: TrackNamespace


@dataclass(frozen=True, slots=True)
class NamespaceDoneReceived:
    """NAMESPACE_DONE: a namespace under our prefix is gone."""

    request_id: RequestId
    suffix: TrackNamespace


@dataclass(frozen=True, slots=True)
class PublishSkippedReceived:
    """PUBLISH_SKIPPED: a track under our prefix will not be published to us."""

    request_id: RequestId
    suffix: TrackNamespace
    track_name: bytes


# Data.


@dataclass(frozen=True, slots=True)
class SubgroupOpened:
    """A subgroup stream of a subscription began."""

    request_id: RequestId
    stream_id: StreamId
    header: SubgroupHeader


@dataclass(frozen=True, slots=True)
class FetchOpened:
    """A fetch stream began: the answer to FETCH, or a fill.

    Attributes:
        request_id: The FETCH, or the subscription that is filled.
        stream_id: The stream.
        trigger_id: The id that the stream names: `request_id`, or that of the
            REQUEST_UPDATE which asked for the fill.
    """

    request_id: RequestId
    stream_id: StreamId
    trigger_id: RequestId


class ObjectReceived(NamedTuple):
    """A whole Object; a tuple, as `Object` is.

    Attributes:
        request_id: The subscription or FETCH.
        stream_id: The stream on which it came.
        obj: The Object; its payload is one `bytes`.
        is_fetch: It came on a fetch stream, not on a subgroup stream.
        began_at: When its first octet came, monotonic seconds; None if that is now.
    """

    request_id: RequestId
    stream_id: StreamId
    obj: Object
    is_fetch: bool
    began_at: float | None = None


class ObjectBegun(NamedTuple):
    """An Object began whose payload is taken while it arrives.

    Attributes:
        request_id: The subscription or FETCH.
        stream_id: The stream on which it comes.
        obj: The Object, with an empty payload.
        payload_length: Octets of the payload, at least one.
        data: The first of them; none or all may be here already.
        is_fetch: It comes on a fetch stream.
    """

    request_id: RequestId
    stream_id: StreamId
    obj: Object
    payload_length: int
    data: memoryview
    is_fetch: bool


class ObjectPayload(NamedTuple):
    """The next octets of the Object that has begun on a stream; it ends with the last of them."""

    request_id: RequestId
    stream_id: StreamId
    data: memoryview


@dataclass(frozen=True, slots=True)
class RangeEnded:
    """An End of Range record on a fetch stream (Section 11.4.1.2).

    Attributes:
        request_id: The FETCH, or the subscription that is filled.
        stream_id: The fetch stream.
        marker: What is known about the Locations after the previous record.
        location: Last Location of that range, inclusive.
    """

    request_id: RequestId
    stream_id: StreamId
    marker: RangeMarker
    location: Location


@dataclass(frozen=True, slots=True)
class StreamFinished:
    """A data stream of the peer ended with FIN: all that belongs on it was received."""

    request_id: RequestId
    stream_id: StreamId


@dataclass(frozen=True, slots=True)
class StreamAborted:
    """A data stream of the peer ended early.

    Attributes:
        request_id: The subscription or FETCH.
        stream_id: The stream.
        code: The peer's reset code, or EXCESSIVE_LOAD when a limit of ours ended it.
    """

    request_id: RequestId
    stream_id: StreamId
    code: int


@dataclass(frozen=True, slots=True)
class DatagramReceived:
    """An Object in a datagram.

    Attributes:
        request_id: The subscription.
        obj: The Object, of no Subgroup.
        end_of_group: Its Group has no larger Object.
    """

    request_id: RequestId
    obj: Object
    end_of_group: bool = False


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """The peer does not want a data stream of ours; the session has reset it."""

    request_id: RequestId
    stream_id: StreamId
    code: int


type Event = (
    SetupComplete
    | SessionClosed
    | GoawayReceived
    | SubscribeReceived
    | FetchReceived
    | TrackStatusReceived
    | PublishReceived
    | PublishNamespaceReceived
    | SubscribeNamespaceReceived
    | SubscribeTracksReceived
    | UpdateReceived
    | Unheard
    | SubscribeAccepted
    | FetchAccepted
    | RequestAccepted
    | RequestRejected
    | UpdateAccepted
    | UpdateRejected
    | RequestCancelled
    | PublishDoneReceived
    | SubscriberFinished
    | SubscriptionDrained
    | StateNotified
    | NamespaceReceived
    | NamespaceDoneReceived
    | PublishSkippedReceived
    | SubgroupOpened
    | FetchOpened
    | ObjectReceived
    | ObjectBegun
    | ObjectPayload
    | RangeEnded
    | StreamFinished
    | StreamAborted
    | DatagramReceived
    | StreamStopped
)
