import random

import pytest

from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.track_table import TrackTable


class Named:
    """All that a table looks at of a Track."""

    def __init__(self, *fields, name=b"t"):
        self.name = FullTrackName(TrackNamespace(fields), name)


class Counted(bytes):
    """A field that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other):
        Counted.comparisons += 1
        return bytes.__eq__(self, other)

    def __lt__(self, other):
        Counted.comparisons += 1
        return bytes.__lt__(self, other)

    __hash__ = bytes.__hash__


@pytest.fixture
def table():
    return TrackTable()


def add(table, *tracks):
    for track in tracks:
        table.add(track)


def test_below_a_prefix_are_the_tracks_that_begin_with_all_its_fields(table):
    inside = [Named(b"a", b"b"), Named(b"a", b"b", name=b"u"), Named(b"a", b"b", b"c")]
    add(table, Named(b"a"), Named(b"a", b"a", b"z"), *inside, Named(b"a", b"bb"), Named(b"b"))

    assert table.below(TrackNamespace((b"a", b"b"))) == inside


def test_a_track_that_was_removed_is_found_no_more(table):
    one, other = Named(b"a", b"b"), Named(b"a", b"b", name=b"u")
    add(table, one, other)

    table.remove(one.name)

    assert table.get(one.name) is None
    assert table.below(TrackNamespace((b"a",))) == [other]
    table.remove(other.name)
    assert (len(table), table.below(TrackNamespace())) == (0, [])


def test_every_prefix_finds_what_a_look_at_all_tracks_finds(table):
    rng = random.Random(7)
    tracks = {}
    for number in range(400):
        fields = tuple(rng.choice((b"a", b"b", b"\0", b"\xff")) for _ in range(rng.randrange(5)))
        track = Named(*fields, name=b"%d" % (number % 3))
        if track.name in tracks:
            table.remove(track.name)
            del tracks[track.name]
        else:
            tracks[track.name] = track
            table.add(track)
        prefix = TrackNamespace(fields[: rng.randrange(5)])
        slow = {name for name in tracks if prefix.is_prefix_of(name.namespace)}
        assert {found.name for found in table.below(prefix)} == slow


def test_a_look_below_one_prefix_does_not_look_at_all_namespaces(table):
    for number in range(4096):
        add(table, Named(Counted(b"kvcs-1"), Counted(b"%04d" % number)))
    Counted.comparisons = 0

    (found,) = table.below(TrackNamespace((Counted(b"kvcs-1"), Counted(b"1234"))))

    assert found.name.namespace.fields[1] == b"1234"
    assert Counted.comparisons < 200
