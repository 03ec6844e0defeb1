"""Two sessions joined by perfect streams, and helpers to speak to one as a raw peer."""

from dataclasses import dataclass, field

import pytest

from kvcs.moqt.session.actions import (
    CloseSession,
    ResetStream,
    SendDatagram,
    SendStream,
    SetPriority,
    StopSending,
)
from kvcs.moqt.session.events import Unheard
from kvcs.moqt.session.limits import SessionConfig, SessionLimits, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.setup import Setup, SetupOptions
from kvcs.names import FullTrackName, TrackNamespace

NAMESPACE = TrackNamespace((b"kvcs", b"model-a"))
TRACK = FullTrackName(NAMESPACE, b"seq-1")
OPTIONS = SetupOptions(max_filter_ranges=8)


def config(*, options=OPTIONS, **limits):
    return SessionConfig(options=options, limits=SessionLimits(**limits))


def heard(events):
    """What an application hears of; the rest only counts."""
    return [event for event in events if not isinstance(event, Unheard)]


def apply(actions, receiver, now):
    """Do what `actions` say, as a transport without delay would."""
    for action in actions:
        match action:
            case SendStream(stream_id, data, fin):
                receiver.receive_stream(stream_id, data, fin, now=now)
            case ResetStream(stream_id, code):
                receiver.receive_reset(stream_id, code, now=now)
            case StopSending(stream_id, code):
                receiver.receive_stop_sending(stream_id, code, now=now)
            case SendDatagram(data):
                receiver.receive_datagram(data, now=now)
            case SetPriority() | CloseSession():
                pass


@dataclass
class Pair:
    """A client and a server session, and what each was told."""

    client: Session
    server: Session
    now: float = 0.0
    client_events: list = field(default_factory=list)
    server_events: list = field(default_factory=list)
    client_actions: list = field(default_factory=list)
    server_actions: list = field(default_factory=list)

    def run(self):
        """Exchange bytes until nothing is left to say; return the new events of both."""
        before = len(self.client_events), len(self.server_events)
        while True:
            out, back = self.client.take_actions(), self.server.take_actions()
            self.client_actions += out
            self.server_actions += back
            apply(out, self.server, self.now)
            apply(back, self.client, self.now)
            self.client_events += heard(self.client.take_events())
            self.server_events += heard(self.server.take_events())
            if not out and not back:
                break
        return self.client_events[before[0] :], self.server_events[before[1] :]

    def pass_time(self, seconds):
        """Let both clocks go on."""
        self.now += seconds
        self.client.advance(now=self.now)
        self.server.advance(now=self.now)
        return self.run()

    def connect(self):
        self.client.start(now=self.now)
        self.server.start(now=self.now)
        self.run()
        return self


@dataclass
class Peer:
    """One session, and a hand-written peer that speaks bytes to it."""

    session: Session
    now: float = 0.0
    unheard: int = 0

    def setup(self, options=OPTIONS):
        self.session.start(now=self.now)
        control = 2 if self.is_client else 3
        self.say(control, Setup(options).encode())
        self.session.take_actions()
        self.session.take_events()
        return self

    @property
    def is_client(self):
        """Whether the hand-written side is the client."""
        return "server" in repr(self.session)

    def say(self, stream_id, *parts, fin=False):
        data = b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
        self.session.receive_stream(stream_id, data, fin, now=self.now)
        events = self.session.take_events()
        self.unheard += len(events) - len(heard(events))
        return heard(events)


@pytest.fixture
def make_pair():
    def make(client=None, server=None):
        return Pair(
            Session(Side.CLIENT, client or config()), Session(Side.SERVER, server or config())
        )

    return make


@pytest.fixture
def pair(make_pair):
    """Two sessions with SETUP done."""
    return make_pair().connect()


@pytest.fixture
def to_server():
    """A raw client in front of a server session with SETUP done."""

    def make(**settings):
        return Peer(Session(Side.SERVER, config(**settings))).setup()

    return make


@pytest.fixture
def to_client():
    """A raw server in front of a client session with SETUP done."""

    def make(**settings):
        return Peer(Session(Side.CLIENT, config(**settings))).setup()

    return make
