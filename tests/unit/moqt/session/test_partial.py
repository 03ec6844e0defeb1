"""Sessions that share a bound on what they hold of Objects that are not whole."""

import pytest

from kvcs.errors import StreamResetCode
from kvcs.moqt.session.actions import ResetStream, StopSending
from kvcs.moqt.session.events import ObjectReceived, StreamAborted, SubgroupOpened
from kvcs.moqt.session.limits import SessionConfig, Side
from kvcs.moqt.session.partial import PartialBudget
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.setup import Setup, SetupOptions
from kvcs.moqt.wire.subscribe import SubscribeOk
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.varint import encode_vi64

TRACK = FullTrackName(TrackNamespace((b"kvcs",)), b"t")
CAPACITY = 1000
# Track Alias 7, Groups 1 and 2, Subgroup 0, priorities 5 and 200.
HEADER = bytes.fromhex("50070105")
LESS_URGENT = bytes.fromhex("500702c8")
UNKNOWN = bytes.fromhex("50090105")


def begun(size, whole=5000):
    """The first octets of a payload, with what stands before it."""
    return b"\x00" + encode_vi64(whole) + bytes(size)


class Sharing:
    """A session in a budget, and a raw publisher that speaks to it."""

    def __init__(self, budget, *, is_set_up=True):
        self.woken = 0
        self.now = 0.0
        self.session = Session(Side.CLIENT, SessionConfig())
        self.session.share_partials(budget, self.wake)
        self.session.start(now=0)
        if is_set_up:
            self.session.receive_stream(3, Setup(SetupOptions()).encode(), False, now=0)
            self.session.subscribe(TRACK, now=0)
            self.session.receive_stream(0, SubscribeOk(track_alias=7).encode(), False, now=0)
        self.session.take_actions()
        self.session.take_events()

    def wake(self):
        self.woken += 1

    def say(self, stream_id, *parts, fin=False):
        self.session.receive_stream(stream_id, b"".join(parts), fin, now=self.now)
        return self.session.take_events()

    @property
    def refused(self):
        return [a.stream_id for a in self.session.take_actions() if isinstance(a, StopSending)]


@pytest.fixture
def budget():
    return PartialBudget(CAPACITY)


@pytest.fixture
def sessions(budget):
    return [Sharing(budget) for _ in range(3)]


def test_what_has_cost_the_most_gives_way(sessions, budget):
    idle, other, busy = sessions
    idle.say(7, HEADER, begun(300))
    other.now = busy.now = 10.0
    other.say(7, HEADER, begun(600))

    busy.say(7, HEADER, begun(500))

    assert idle.refused == [7]
    assert idle.woken == 1
    assert [type(e) for e in idle.session.take_events()] == [StreamAborted]
    # At the same moment the larger one.
    assert other.refused == [7]
    assert busy.refused == []
    assert budget.size_bytes == 500
    assert budget.streams_given_up == 2


def test_the_session_that_costs_the_most_gives_way_itself(sessions, budget):
    greedy, other, _ = sessions
    greedy.say(7, HEADER, begun(600))
    other.now = 1.0
    other.say(7, HEADER, begun(300))
    greedy.now = 2.0

    events = greedy.say(11, HEADER, begun(300))

    assert events[-1] == StreamAborted(0, 11, StreamResetCode.EXCESSIVE_LOAD)
    assert greedy.refused == [11]
    assert (other.refused, other.woken) == ([], 0)
    assert (budget.size_bytes, budget.streams_given_up) == (900, 1)


def test_its_less_urgent_streams_give_way_first(sessions):
    greedy, other, _ = sessions
    greedy.say(7, LESS_URGENT, begun(200))
    greedy.say(11, HEADER, begun(400))
    other.now = greedy.now = 1.0
    other.say(7, HEADER, begun(350))

    greedy.say(11, bytes(200))
    other.say(7, bytes(400))

    assert greedy.refused == [7, 11]
    assert other.refused == []


def test_no_more_is_given_up_than_is_needed(sessions, budget):
    idle, busy, _ = sessions
    for number in range(4):
        idle.say(4 * number + 7, HEADER, begun(200))
    idle.say(23, LESS_URGENT, begun(150))
    busy.now = 5.0

    busy.say(7, HEADER, begun(400))

    assert idle.refused == [23, 19]
    assert budget.size_bytes == 3 * 200 + 400


def test_streams_that_nothing_explains_go_first_and_their_request_learns_of_it(sessions, budget):
    idle, busy, _ = sessions
    idle.say(7, HEADER, begun(300))
    idle.say(11, UNKNOWN, bytes(300))
    idle.say(15, UNKNOWN, bytes(200), fin=True)
    busy.now = 1.0

    busy.say(7, HEADER, begun(600))

    # That of stream 15 had come whole: there is nothing to refuse.
    assert idle.refused == [11]
    second = idle.session.subscribe(FullTrackName(TRACK.namespace, b"u"), now=1)
    events = idle.say(4, SubscribeOk(track_alias=9).encode())
    assert [e.stream_id for e in events if isinstance(e, StreamAborted)] == [15, 11]
    assert {e.request_id for e in events} == {second}
    assert budget.size_bytes == 300 + 600


def test_what_came_before_setup_counts(sessions, budget):
    early, busy = Sharing(budget, is_set_up=False), sessions[0]
    early.say(1, bytes(400))
    early.say(7, HEADER, bytes(400))
    assert budget.size_bytes == 804
    busy.now = 1.0

    busy.say(7, HEADER, begun(900))

    actions = early.session.take_actions()
    assert [a.stream_id for a in actions if isinstance(a, StopSending)] == [7, 1]
    assert [a.stream_id for a in actions if isinstance(a, ResetStream)] == [1]
    assert budget.size_bytes == 900


def test_records_before_a_payload_count(sessions, budget):
    session = sessions[0]
    # An Object with properties of 600 octets, of which half come.
    with_properties = bytes.fromhex("51070105")

    session.say(7, with_properties, b"\x00", encode_vi64(600), bytes(300))
    held = budget.size_bytes
    refused = session.say(11, HEADER, begun(900))

    assert held > 300
    assert isinstance(refused[-1], StreamAborted)
    assert budget.size_bytes == held


def test_what_is_whole_or_over_counts_no_longer(sessions, budget):
    whole, cut, gone = sessions
    for each in sessions:
        each.say(7, HEADER, begun(50, whole=100))
    assert budget.size_bytes == 150

    (received,) = whole.say(7, bytes(50))
    cut.session.receive_reset(7, 0, now=1)
    gone.session.close(0, now=1)

    assert isinstance(received, ObjectReceived)
    assert budget.size_bytes == 0
    assert budget.streams_given_up == 0
    assert repr(budget) == f"<PartialBudget 0/{CAPACITY} of 2>"


def test_session_that_is_over_gives_nothing_up(sessions, budget):
    gone, other, _ = sessions
    gone.say(7, HEADER, begun(900))
    gone.session.close(0, now=1)
    gone.session.take_actions()

    events = other.say(7, HEADER, begun(900))

    assert [type(event) for event in events] == [SubgroupOpened]
    assert gone.session.take_actions() == []
    assert budget.size_bytes == 900


def test_more_than_there_is_in_all_is_refused(sessions, budget):
    events = sessions[0].say(7, HEADER, begun(CAPACITY + 1))

    assert isinstance(events[-1], StreamAborted)
    assert budget.size_bytes == 0
