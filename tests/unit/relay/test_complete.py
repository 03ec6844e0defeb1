import pytest

from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.complete import CompleteTracks, Tier

NAMESPACE = TrackNamespace((b"one",))
K, V = (FullTrackName(NAMESPACE, name) for name in (b"k", b"v"))


@pytest.fixture
def news():
    return []


@pytest.fixture
def complete(news):
    return CompleteTracks(
        on_complete=lambda namespace: news.append(("complete", namespace)),
        on_lost=lambda namespace: news.append(("lost", namespace)),
    )


def test_first_tier_makes_a_track_complete_and_the_last_one_loses_it(complete, news):
    complete.add(Tier.MEMORY, K)
    complete.add(Tier.DISK, K)
    complete.add(Tier.DISK, K)
    assert news == [("complete", NAMESPACE)]

    complete.discard(Tier.MEMORY, K)
    assert K in complete
    complete.discard(Tier.DISK, K)

    assert news == [("complete", NAMESPACE), ("lost", NAMESPACE)]
    assert K not in complete


def test_tracks_count_each_and_unknown_ones_are_ignored(complete, news):
    complete.discard(Tier.DISK, K)
    complete.add(Tier.DISK, K)
    complete.add(Tier.DISK, V)

    assert complete.count(Tier.DISK) == 2
    assert complete.count(Tier.MEMORY) == 0
    assert news == [("complete", NAMESPACE)] * 2
