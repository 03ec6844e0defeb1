import pytest

from kvcs.relay.disk.clock import DiskClock


class Wall:
    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self):
        return self.seconds


@pytest.fixture
def wall():
    return Wall(1_000_000.0)


def test_stamps_are_wall_clock_seconds_and_come_back(wall):
    clock = DiskClock(wall, now=50.0)

    assert clock.stamp(50.0) == 1_000_000.0
    assert clock.stamp(60.0) == 1_000_010.0
    assert clock.instant(clock.stamp(60.0)) == 60.0


def test_clock_that_runs_along_changes_nothing(wall):
    clock = DiskClock(wall, now=50.0)
    wall.seconds += 9.5

    assert clock.adjust(now=60.0) == 0.0
    assert clock.stamp(60.0) == 1_000_010.0


def test_clock_set_forward_makes_time_pass(wall):
    clock = DiskClock(wall, now=50.0)
    wall.seconds += 500.0

    assert clock.adjust(now=60.0) == 0.0
    assert clock.stamp(60.0) == 1_000_500.0


def test_clock_set_back_moves_the_stamps_along(wall):
    clock = DiskClock(wall, now=50.0)
    written = clock.stamp(50.0)
    wall.seconds -= 500.0

    shift = clock.adjust(now=60.0)

    assert shift == -510.0
    assert clock.instant(written + shift) == 50.0
