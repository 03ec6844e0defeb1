"""Every state x input pair of every kind of request, driven through a real session.

The tables say what is legal. What they do not allow must close the session when the peer
did it, and raise when we did.
"""

import pytest

from kvcs.errors import LocalProtocolError, RequestErrorCode, TerminationCode
from kvcs.moqt.session import fetch, namespace, publication, subscription, track_status
from kvcs.moqt.session.actions import CloseSession
from kvcs.moqt.session.state import Input, RequestKind, State, next_state
from kvcs.moqt.wire.fetch import Fetch, FetchOk
from kvcs.moqt.wire.goaway import Goaway
from kvcs.moqt.wire.namespace import (
    Namespace,
    PublishNamespace,
    PublishSkipped,
    SubscribeNamespace,
    SubscribeTracks,
)
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.parameters import NO_PARAMETERS
from kvcs.moqt.wire.publish import Publish, PublishDone, PublishStateNotify
from kvcs.moqt.wire.request import RequestError, RequestOk, RequestUpdate
from kvcs.moqt.wire.subscribe import Subscribe, SubscribeOk
from kvcs.moqt.wire.track_status import TrackStatus
from kvcs.names import FullTrackName, Location, TrackNamespace

ALL_RULES = (
    subscription.RULES,
    publication.RULES,
    fetch.RULES,
    track_status.RULES,
    namespace.PUBLISH_NAMESPACE_RULES,
    namespace.SUBSCRIBE_NAMESPACE_RULES,
    namespace.SUBSCRIBE_TRACKS_RULES,
)
WITH_OWN_OK = {RequestKind.SUBSCRIBE, RequestKind.FETCH}
NAMESPACE = TrackNamespace((b"kvcs", b"model-a"))
TRACK = FullTrackName(NAMESPACE, b"seq-1")
SUFFIX = TrackNamespace((b"x",))
OBJ = Object(group_id=0, object_id=0, subgroup_id=None, publisher_priority=0)


class Driver:
    """A session with one request, on either side, and a raw peer."""

    def __init__(self, rules, peer, *, is_requester):
        self.kind = rules.kind
        self.peer = peer
        self.session = peer.session
        self.is_requester = is_requester
        self.stream_id = 0
        self.next_peer_id = 1 if is_requester else 0
        if is_requester:
            self.request_id = self.open()
        else:
            self.request_id = self.peer_id()
            self.say(self.request_message())

    def peer_id(self):
        self.next_peer_id += 2
        return self.next_peer_id - 2

    def say(self, *messages, fin=False):
        return self.peer.say(self.stream_id, *messages, fin=fin)

    def open(self):
        session = self.session
        match self.kind:
            case RequestKind.SUBSCRIBE:
                return session.subscribe(TRACK, now=0)
            case RequestKind.PUBLISH:
                return session.publish(TRACK, now=0)
            case RequestKind.FETCH:
                return session.fetch(TRACK, now=0)
            case RequestKind.TRACK_STATUS:
                return session.track_status(TRACK, now=0)
            case RequestKind.PUBLISH_NAMESPACE:
                return session.publish_namespace(NAMESPACE, now=0)
            case RequestKind.SUBSCRIBE_NAMESPACE:
                return session.subscribe_namespace(NAMESPACE, now=0)
            case RequestKind.SUBSCRIBE_TRACKS:
                return session.subscribe_tracks(NAMESPACE, now=0)

    def request_message(self):
        request_id = self.request_id
        match self.kind:
            case RequestKind.SUBSCRIBE:
                return Subscribe(request_id=request_id, track=TRACK)
            case RequestKind.PUBLISH:
                return Publish(request_id=request_id, track=TRACK, track_alias=7)
            case RequestKind.FETCH:
                return Fetch(request_id=request_id, track=TRACK)
            case RequestKind.TRACK_STATUS:
                return TrackStatus(request_id=request_id, track=TRACK)
            case RequestKind.PUBLISH_NAMESPACE:
                return PublishNamespace(request_id=request_id, track_namespace_prefix=NAMESPACE)
            case RequestKind.SUBSCRIBE_NAMESPACE:
                return SubscribeNamespace(request_id=request_id, track_namespace_prefix=NAMESPACE)
            case RequestKind.SUBSCRIBE_TRACKS:
                return SubscribeTracks(request_id=request_id, track_namespace_prefix=NAMESPACE)

    def ok_message(self):
        if self.kind is RequestKind.SUBSCRIBE:
            return SubscribeOk(track_alias=7)
        if self.kind is RequestKind.FETCH:
            return FetchOk(end_of_track=False, end_location=Location(0, 0))
        return RequestOk()

    def answer_ok(self):
        session, request_id = self.session, self.request_id
        if self.kind is RequestKind.SUBSCRIBE:
            session.accept_subscribe(request_id, now=0)
        elif self.kind is RequestKind.FETCH:
            location = Location(0, 0)
            session.accept_fetch(request_id, end_of_track=False, end_location=location, now=0)
        else:
            session.accept(request_id, now=0)

    def send_data(self):
        if self.kind is RequestKind.FETCH:
            self.session.open_fetch_stream(self.request_id, priority=4, now=0)
        else:
            self.session.send_datagram(self.request_id, OBJ, now=0)

    def enter(self, state):
        """Bring the request into `state`."""
        if state is State.CANCELLED:
            self.step(Input.CANCEL)
        elif state is State.TERMINATED:
            self.step(Input.RECEIVE_ERROR if self.is_requester else Input.SEND_ERROR)
        elif state is State.ENDING:
            self.step(Input.SEND_DONE if self.is_requester else Input.RECEIVE_DONE)
        elif state is not State.PENDING:
            self.step(Input.RECEIVE_OK if self.is_requester else Input.SEND_OK)
            if state is State.DRAINING:
                self.step(Input.RECEIVE_DONE)
        assert not self.session.is_closed
        self.session.take_actions()
        self.session.take_events()

    def step(self, step):
        session, request_id = self.session, self.request_id
        match step:
            case Input.SEND_OK:
                self.answer_ok()
            case Input.SEND_ERROR:
                session.reject(request_id, RequestErrorCode.INTERNAL_ERROR, now=0)
            case Input.SEND_UPDATE:
                session.update(request_id, NO_PARAMETERS, now=0)
            case Input.SEND_UPDATE_OK:
                session.accept_update(request_id, now=0)
            case Input.SEND_UPDATE_ERROR:
                session.reject_update(request_id, RequestErrorCode.INTERNAL_ERROR, now=0)
            case Input.SEND_DATA:
                self.send_data()
            case Input.SEND_DONE:
                session.publish_done(request_id, 2, now=0)
            case Input.SEND_NOTIFY:
                session.notify_state(request_id, NO_PARAMETERS, now=0)
            case Input.SEND_NAMESPACE:
                session.announce(request_id, SUFFIX, now=0)
            case Input.SEND_SKIPPED:
                session.skip_publish(request_id, SUFFIX, b"t", now=0)
            case Input.SEND_GOAWAY:
                session.goaway(request_id=request_id, now=0)
            case Input.CANCEL:
                end = session.cancel if self.is_requester else session.revoke
                end(request_id, now=0)
            case Input.RECEIVE_OK:
                self.say(self.ok_message())
            case Input.RECEIVE_ERROR | Input.RECEIVE_UPDATE_ERROR:
                self.say(RequestError(code=0))
            case Input.RECEIVE_UPDATE:
                self.say(RequestUpdate(request_id=self.peer_id()))
            case Input.RECEIVE_UPDATE_OK:
                self.say(RequestOk())
            case Input.RECEIVE_DONE:
                self.say(PublishDone(status_code=2, stream_count=5))
            case Input.RECEIVE_NOTIFY:
                self.say(PublishStateNotify())
            case Input.RECEIVE_NAMESPACE:
                self.say(Namespace(track_namespace_suffix=SUFFIX))
            case Input.RECEIVE_SKIPPED:
                self.say(PublishSkipped(track_namespace_suffix=SUFFIX, track_name=b"t"))
            case Input.RECEIVE_GOAWAY:
                self.say(Goaway())
            case Input.RECEIVE_FIN:
                self.say(fin=True)
            case Input.RECEIVE_CANCEL:
                session.receive_reset(self.stream_id, 1, now=0)


def is_another_input(rules, is_requester, state, step):
    """Tell whether the bytes of `step` mean another input in `state`.

    REQUEST_OK and REQUEST_ERROR answer the request first and updates afterwards.
    """
    is_unanswered = is_requester and state in {State.PENDING, State.ENDING}
    if step is Input.RECEIVE_UPDATE_ERROR:
        return is_unanswered
    return step is Input.RECEIVE_UPDATE_OK and is_unanswered and rules.kind not in WITH_OWN_OK


def cases():
    for rules in ALL_RULES:
        for is_requester in (True, False):
            table = rules.requester if is_requester else rules.responder
            states = {state for state, _ in table} | set(table.values()) | {State.CANCELLED}
            for state in sorted(states, key=lambda s: s.value):
                for step in Input:
                    is_internal = step is Input.DATA_COMPLETE
                    if not is_internal and not is_another_input(rules, is_requester, state, step):
                        side = "requester" if is_requester else "responder"
                        name = f"{rules.kind.name}-{side}-{state.name}-{step.name}"
                        yield pytest.param(rules, is_requester, state, step, id=name)


def prepare(driver, table, state, step):
    """Make the update that `step` answers, where the table allows one."""
    before = {
        Input.SEND_UPDATE_OK: Input.RECEIVE_UPDATE,
        Input.SEND_UPDATE_ERROR: Input.RECEIVE_UPDATE,
        Input.RECEIVE_UPDATE_OK: Input.SEND_UPDATE,
        Input.RECEIVE_UPDATE_ERROR: Input.SEND_UPDATE,
    }.get(step)
    if before is None:
        return
    if state is State.TERMINATED and step.is_received and (state, step) in table:
        # Only an update from before the end can still be answered.
        driver.session._registry.by_stream[0].updates_sent.append((99, NO_PARAMETERS))
    elif next_state(table, state, before) is state:
        driver.step(before)
        driver.session.take_actions()


@pytest.mark.parametrize(("rules", "is_requester", "state", "step"), list(cases()))
def test_pair_is_accepted_or_refused_as_the_table_says(
    rules, is_requester, state, step, to_client, to_server
):
    table = rules.requester if is_requester else rules.responder
    driver = Driver(rules, (to_client if is_requester else to_server)(), is_requester=is_requester)
    driver.enter(state)
    request = driver.session._registry.by_stream.get(0) or driver.session._registry.by_id[0]
    assert request.state is state
    prepare(driver, table, state, step)
    expected = next_state(table, state, step)
    opens = step is Input.SEND_DATA and rules.kind is RequestKind.FETCH and state is State.CANCELLED
    is_mute = step is Input.SEND_GOAWAY and state is State.PENDING and not request.can_send

    if (expected is None and not step.is_received) or opens or is_mute:
        with pytest.raises(LocalProtocolError):
            driver.step(step)
        assert request.state is state
        assert not driver.session.is_closed
    elif expected is None:
        driver.step(step)
        (action,) = driver.session.take_actions()
        assert isinstance(action, CloseSession)
        assert action.code == TerminationCode.PROTOCOL_VIOLATION
    else:
        driver.step(step)
        assert not driver.session.is_closed
        # A publisher that refuses an update ends the subscription in the same turn.
        ends = step is Input.SEND_UPDATE_ERROR and Input.SEND_DONE in {i for _, i in table}
        after_done = next_state(table, expected, Input.SEND_DONE)
        assert request.state is (after_done if ends else expected)


@pytest.mark.parametrize("rules", ALL_RULES, ids=lambda rules: rules.kind.name)
def test_tables_reach_every_state_they_name_and_an_end(rules):
    for table in (rules.requester, rules.responder):
        reached = {State.PENDING}
        while grown := {after for (before, _), after in table.items() if before in reached}:
            if grown <= reached:
                break
            reached |= grown

        assert {state for state, _ in table} <= reached
        assert reached & {State.TERMINATED, State.CANCELLED}
