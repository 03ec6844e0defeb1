"""The parts of a session, and which message goes to which of them."""

from kvcs.moqt.session.aliases import Aliases
from kvcs.moqt.session.arrivals import Arrivals
from kvcs.moqt.session.context import Context
from kvcs.moqt.session.fetch import Fetches
from kvcs.moqt.session.incoming import IncomingStreams
from kvcs.moqt.session.namespace import Namespaces
from kvcs.moqt.session.outgoing import OutgoingStreams
from kvcs.moqt.session.publication import Publications
from kvcs.moqt.session.registry import Registry
from kvcs.moqt.session.request_streams import Openers, RequestStreams, Routes
from kvcs.moqt.session.requests import Requests
from kvcs.moqt.session.setup import ControlStreams
from kvcs.moqt.session.state import Request, RequestKind
from kvcs.moqt.session.subscription import Subscriptions
from kvcs.moqt.session.tokens import TokenCache
from kvcs.moqt.session.track_status import TrackStatuses
from kvcs.moqt.session.updates import Updates
from kvcs.moqt.wire.fetch import Fetch, FetchOk
from kvcs.moqt.wire.goaway import Goaway
from kvcs.moqt.wire.namespace import (
    Namespace,
    NamespaceDone,
    PublishNamespace,
    PublishSkipped,
    SubscribeNamespace,
    SubscribeTracks,
)
from kvcs.moqt.wire.publish import Publish, PublishDone, PublishStateNotify
from kvcs.moqt.wire.request import RequestError, RequestOk, RequestUpdate
from kvcs.moqt.wire.subscribe import Subscribe, SubscribeOk
from kvcs.moqt.wire.track_status import TrackStatus

__all__ = ("Parts",)


class Parts:
    """All parts of one session, wired together."""

    def __init__(self, context: Context) -> None:
        limits = context.limits
        tokens = TokenCache(context.config.options.max_auth_token_cache_size)
        aliases = Aliases(limits.max_tombstones)
        registry = Registry(limits.max_tombstones)
        incoming = IncomingStreams(context, aliases, registry, self._data_ended)
        outgoing = OutgoingStreams(context, registry, self._data_ended)
        requests = Requests(
            context, registry, tokens, aliases, incoming=incoming, outgoing=outgoing
        )
        self.registry = registry
        self.incoming = incoming
        self.outgoing = outgoing
        self.requests = requests
        self.subscriptions = Subscriptions(context, registry, requests, aliases, incoming)
        self.publications = Publications(
            context,
            registry,
            requests,
            aliases,
            incoming=incoming,
            subscriptions=self.subscriptions,
        )
        self.fetches = Fetches(context, registry, requests)
        self.track_statuses = TrackStatuses(context, requests)
        self.namespaces = Namespaces(context, registry, requests)
        self.updates = Updates(context, registry, requests, outgoing, self.namespaces.overlaps)
        self.control = ControlStreams(context, tokens)
        streams = RequestStreams(context, registry, requests, self._openers(), self._routes())
        self.arrivals = Arrivals(context, self.control, streams, incoming, outgoing)

    def _openers(self) -> Openers:
        return {
            Subscribe: self.subscriptions.receive,
            Publish: self.publications.receive,
            Fetch: self.fetches.receive,
            TrackStatus: self.track_statuses.receive,
            PublishNamespace: self.namespaces.receive_publish,
            SubscribeNamespace: self.namespaces.receive_subscribe,
            SubscribeTracks: self.namespaces.receive_subscribe_tracks,
        }

    def _routes(self) -> Routes:
        return {
            SubscribeOk: self.subscriptions.receive_ok,
            FetchOk: self.fetches.receive_ok,
            RequestOk: self._receive_ok,
            RequestError: self._receive_error,
            RequestUpdate: self.updates.receive,
            PublishDone: self.subscriptions.receive_done,
            PublishStateNotify: self.subscriptions.receive_notify,
            Namespace: self.namespaces.receive_namespace,
            NamespaceDone: self.namespaces.receive_namespace_done,
            PublishSkipped: self.namespaces.receive_skipped,
            Goaway: self.requests.receive_goaway,
        }

    def _receive_ok(self, request: Request, message: RequestOk) -> None:
        # Answers are ordered: the first one is to the request itself.
        if request.is_requester and request.awaits_answer:
            self.requests.receive_ok(request, message)
        else:
            self.updates.receive_ok(request, message)

    def _receive_error(self, request: Request, message: RequestError) -> None:
        if request.is_requester and request.awaits_answer:
            self.requests.receive_error(request, message)
        else:
            self.updates.receive_error(request, message)

    def _data_ended(self, request: Request) -> None:
        if request.kind is RequestKind.FETCH:
            self.fetches.data_ended(request)
        else:
            self.subscriptions.data_ended(request)
