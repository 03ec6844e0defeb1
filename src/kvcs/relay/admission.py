"""The one place where the relay decides what a peer may do and see.

Theory of operation. Every request comes here before anything is looked up, and so does every
update that brings new tokens, since those replace what the request was decided by. What a
policy allows for a time is decided again when the time is over (`Review`). What is
listed or published to a subscriber of a prefix is decided once more, for each namespace and
Track: that it may ask for a prefix does not mean that it may see all that is below.

A policy that refuses with DOES_NOT_EXIST hides. Then the relay behaves as if there were nothing:
the same code and words, the same wait for a publisher that does not come, and a prefix under
which nothing ever appears.

Source: MOQT draft 22, Sections 3.6, 4.2.1, 8.9 and 15; KVCS, "Relay Considerations".
"""

from dataclasses import replace
from typing import Final, Protocol

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import (
    Event,
    FetchReceived,
    PublishNamespaceReceived,
    PublishReceived,
    SubscribeNamespaceReceived,
    SubscribeReceived,
    SubscribeTracksReceived,
    TrackStatusReceived,
    UpdateReceived,
)
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.auth import (
    Access,
    AccessAction,
    Authorize,
    Decision,
    Grant,
    RefusalReasons,
    VerificationBudget,
)
from kvcs.relay.config import RelayLimits
from kvcs.relay.namespaces import reserved_code
from kvcs.relay.peer import Peer
from kvcs.relay.refusal import NOBODY_CAME, NOT_FOUND, Refusal
from kvcs.relay.review import Host, Review

__all__ = ("Admission", "NamespaceRequest", "TrackRequest")

type NamespaceRequest = (
    PublishNamespaceReceived | SubscribeNamespaceReceived | SubscribeTracksReceived
)
type TrackRequest = SubscribeReceived | FetchReceived | TrackStatusReceived | PublishReceived

_ACTIONS: Final[dict[type[Event], AccessAction]] = {
    PublishNamespaceReceived: AccessAction.PUBLISH_NAMESPACE,
    SubscribeNamespaceReceived: AccessAction.SUBSCRIBE_NAMESPACE,
    SubscribeTracksReceived: AccessAction.SUBSCRIBE_TRACKS,
    PublishReceived: AccessAction.PUBLISH,
    SubscribeReceived: AccessAction.SUBSCRIBE,
    FetchReceived: AccessAction.FETCH,
    TrackStatusReceived: AccessAction.TRACK_STATUS,
}


class _Host(Host, Protocol):
    """What admission needs of the relay around it."""

    def relay_authorized(self, relay: Peer, *, now: float) -> None:
        """Note that a relay presented other tokens."""
        ...

    @property
    def limits(self) -> RelayLimits:
        """Bounds."""
        ...

    @property
    def now(self) -> float:
        """Monotonic seconds."""
        ...


class Admission:
    """Decides every request by action, namespace and token.

    Attributes:
        review: Decides again what was allowed for a time.
    """

    __slots__ = ("_authorize", "_host", "review")

    def __init__(self, host: _Host, authorize: Authorize) -> None:
        self._host = host
        self._authorize = authorize
        self.review = Review(host, self.judge)

    def decide(self, peer: Peer, access: Access) -> RequestErrorCode | None:
        """Decide whether a peer may do something now; None allows it."""
        decision = self.judge(peer, access)
        return None if isinstance(decision, Grant) else decision

    def judge(self, peer: Peer, access: Access) -> Decision:
        """Decide whether a peer may do something, and for how long."""
        code = reserved_code(access.namespace)
        if code is not None:
            return code
        if peer.is_parent:
            # The operator named it, its certificate was checked, and it asks for its own
            # subscribers, each of which it has authorized.
            return None
        if not access.is_whole:
            access = replace(access, tokens=peer.tokens + access.tokens)
        return self._authorize(replace(access, session=peer.mark))

    def admit(self, peer: Peer, event: NamespaceRequest | TrackRequest, *, now: float) -> bool:
        """Decide a request, and answer it if it is refused; nothing is looked up before.

        Returns:
            Whether it goes on. For a prefix that is hidden it does, and nothing comes of it.
        """
        access, reasons = _access(event), RefusalReasons()
        code = self._judge_request(peer, access, reasons)
        if code is None or isinstance(code, Grant):
            self._grant(peer, event.request_id, access, code, now)
            return True
        if code is not RequestErrorCode.DOES_NOT_EXIST:
            # Taken away again with the refusal, which names it in the log.
            peer.granted[event.request_id] = access
            refusal = Refusal(code, "", note=str(reasons))
            self._host.refuse(peer, event.request_id, refusal, now=now)
            return False
        if isinstance(event, SubscribeNamespaceReceived | SubscribeTracksReceived):
            peer.granted[event.request_id] = replace(access, is_hidden=True)
            return True
        self._hide(peer, event, now)
        return False

    def update_refusal(self, peer: Peer, event: UpdateReceived, *, now: float) -> Refusal | None:
        """Decide a request anew that an update gives other tokens; None lets it go on.

        An update that gives it another prefix too is not for the old one: `move_refusal`.
        """
        tokens = event.parameters.authorization_tokens
        access = peer.granted.get(event.request_id)
        if not tokens or access is None or access.is_hidden:
            return None
        if event.parameters.track_namespace_prefix is not None:
            return None
        renewed, reasons = replace(access, tokens=tokens, is_whole=False), RefusalReasons()
        code = self._judge_request(peer, renewed, reasons)
        if code is None or isinstance(code, Grant):
            self._grant(peer, event.request_id, renewed, code, now)
            return None
        return Refusal(code, "", note=str(reasons))

    def move_refusal(
        self, peer: Peer, event: UpdateReceived, prefix: TrackNamespace, *, now: float
    ) -> Refusal | None:
        """Decide a request anew that an update gives another prefix; None lets it go on."""
        access = peer.granted.get(event.request_id)
        if access is None:
            return None
        moved = replace(access, namespace=prefix, is_hidden=False)
        if event.parameters.authorization_tokens:
            tokens = event.parameters.authorization_tokens
            moved = replace(moved, tokens=tokens, is_whole=False)
        reasons = RefusalReasons()
        code = self._judge_request(peer, moved, reasons)
        if code is None or isinstance(code, Grant):
            self._grant(peer, event.request_id, moved, code, now)
            return None
        if code is RequestErrorCode.DOES_NOT_EXIST:
            peer.granted[event.request_id] = replace(moved, is_hidden=True, until=None)
            return None
        return Refusal(code, "", note=str(reasons))

    def may_offer(self, relay: Peer, prefix: TrackNamespace) -> bool:
        """Tell whether a relay may publish all that is below a prefix, by what it has presented.

        Others are told what is wanted here only if they may give it: that a session says that it
        is a relay proves nothing.
        """
        offer = Access(
            action=AccessAction.PUBLISH_NAMESPACE,
            namespace=prefix,
            track_name=None,
            tokens=relay.presented,
        )
        # Everybody can say that it is a relay, so that its tokens are bounded as in a request.
        code = self._judge_request(relay, offer)
        return code is None or isinstance(code, Grant)

    def may_see_namespace(self, peer: Peer, request_id: RequestId, suffix: TrackNamespace) -> bool:
        """Tell whether what is below the prefix of a SUBSCRIBE_NAMESPACE may be listed there."""
        asked = peer.granted.get(request_id)
        return asked is not None and self._may_see(
            peer, replace(asked, namespace=asked.namespace.joined(suffix))
        )

    def access_to(self, peer: Peer, request_id: RequestId, track: FullTrackName) -> Access | None:
        """Return what a PUBLISH for a SUBSCRIBE_TRACKS of a peer goes by; None forbids it."""
        asked = peer.granted.get(request_id)
        if asked is None:
            return None
        access = replace(
            asked,
            action=AccessAction.SUBSCRIBE,
            namespace=track.namespace,
            track_name=track.name,
            through=request_id,
        )
        decision = RequestErrorCode.DOES_NOT_EXIST if asked.is_hidden else self.judge(peer, access)
        match decision:
            case None:
                return access
            case Grant(seconds=seconds):
                # By a token that may be over before the one that the prefix was asked for with.
                until = self._host.now + seconds
                self.review.expect(until)
                return replace(access, until=until)
            case _:
                return None

    def _judge_request(
        self, peer: Peer, access: Access, reasons: RefusalReasons | None = None
    ) -> Decision:
        """Decide what a peer asks for now; what its tokens may cost is bounded."""
        budget = VerificationBudget(peer.useless_tokens, self._host.now)
        return self.judge(peer, replace(access, budget=budget, reasons=reasons))

    def _grant(
        self,
        peer: Peer,
        request_id: RequestId,
        access: Access,
        grant: Grant | None,
        now: float,
    ) -> None:
        """Note what a request goes by; what goes by it in turn is decided again."""
        until = None if grant is None else now + grant.seconds
        brought = () if access.is_whole else access.tokens
        if grant is not None and grant.tokens is not None:
            useful = grant.tokens
            brought = tuple(token for token in brought if token in useful)
            access = replace(access, tokens=useful, is_whole=True)
        peer.granted[request_id] = replace(access, until=until)
        if until is not None:
            self.review.expect(until)
        if brought and brought != peer.presented:
            peer.presented = brought
            if peer.is_relay:
                self._host.relay_authorized(peer, now=now)
        if access.action is AccessAction.SUBSCRIBE_TRACKS:
            for other_id, other in tuple(peer.granted.items()):
                if other.through == request_id:
                    renewed = replace(other, tokens=access.tokens, is_whole=access.is_whole)
                    peer.granted[other_id] = replace(renewed, until=now)
                    self.review.expect(now)

    def _may_see(self, peer: Peer, access: Access) -> bool:
        return not access.is_hidden and self.decide(peer, access) is None

    def _hide(self, peer: Peer, event: PublishNamespaceReceived | TrackRequest, now: float) -> None:
        """Refuse a request as one for what does not exist, at once or when its time is over."""
        asked = event.parameters.rendezvous_timeout_ms or 0
        if not asked:
            self._host.refuse(peer, event.request_id, NOT_FOUND, now=now)
            return
        timeout = min(asked / 1000, self._host.limits.max_rendezvous_timeout)

        def refuse(now: float) -> None:
            self._host.refuse(peer, event.request_id, NOBODY_CAME, now=now)

        self._host.schedule(now + timeout, refuse)


def _access(event: NamespaceRequest | TrackRequest) -> Access:
    match event:
        case PublishNamespaceReceived():
            namespace, track_name = event.namespace, None
        case SubscribeNamespaceReceived() | SubscribeTracksReceived():
            namespace, track_name = event.prefix, None
        case _:
            namespace, track_name = event.track.namespace, event.track.name
    return Access(
        action=_ACTIONS[type(event)],
        namespace=namespace,
        track_name=track_name,
        tokens=event.parameters.authorization_tokens,
    )
