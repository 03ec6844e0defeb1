import pytest

from kvcs.moqt.track.late_streams import LateStreams


class Transport:
    """What waits on streams, and who was told that it is late."""

    def __init__(self):
        self.unsent = {}
        self.late = LateStreams(lambda stream_id: self.unsent.get(stream_id, 0))
        self.told = []

    def write(self, stream_id, size_bytes, due_at, now=0.0):
        self.unsent[stream_id] = self.unsent.get(stream_id, 0) + size_bytes
        self.late.watch(stream_id, size_bytes, due_at=due_at, on_late=self.note, now=now)

    def note(self, session, stream_id, now):
        assert session is self
        self.told.append((stream_id, now))

    def pass_time(self, until):
        while (deadline := self.late.next_deadline) is not None and deadline <= until:
            self.late.check(self, now=deadline)


@pytest.fixture
def transport():
    return Transport()


def test_what_waits_beyond_its_time_is_late_once(transport):
    transport.write(2, 100, 0.5)
    transport.write(2, 100, 0.6)
    transport.write(6, 100, 0.7)
    transport.unsent[6] = 0

    transport.pass_time(9.0)

    assert transport.told == [(2, 0.5)]
    assert len(transport.late) == 0


def test_object_that_has_left_is_not_late_although_later_ones_wait(transport):
    transport.write(2, 100, 0.5)
    transport.write(2, 30, 1.5)
    transport.unsent[2] = 30

    transport.pass_time(1.0)
    assert transport.told == []

    transport.pass_time(2.0)
    assert transport.told == [(2, 1.5)]


def test_octets_without_a_timeout_count_behind_those_that_have_one(transport):
    transport.write(2, 100, 0.5)
    transport.write(2, 30, None)
    transport.unsent[2] = 30

    transport.pass_time(9.0)

    assert transport.told == []


def test_end_of_a_stream_is_due_with_all_that_is_on_it(transport):
    transport.unsent[2] = 1
    transport.write(2, 0, 0.5)

    transport.pass_time(1.0)

    assert transport.told == [(2, 0.5)]


def test_earlier_time_of_a_later_object_holds(transport):
    transport.write(2, 100, 1.5)
    transport.write(2, 100, 0.5)

    transport.pass_time(9.0)

    assert transport.told == [(2, 0.5)]


def test_stream_that_is_forgotten_is_never_late(transport):
    transport.write(2, 100, 0.5)
    transport.late.forget(2)
    transport.late.forget(6)

    transport.pass_time(9.0)

    assert transport.told == []


def test_timeout_of_years_keeps_nothing_that_was_sent(transport):
    for number in range(100):
        transport.write(2 + 4 * number, 100, 1e9)
    transport.unsent.clear()

    transport.pass_time(10.0)

    assert len(transport.late) == 0
    assert transport.late.next_deadline is None
    assert transport.told == []
