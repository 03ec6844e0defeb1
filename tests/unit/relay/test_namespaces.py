import pytest

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session.actions import RequestId
from kvcs.names import TrackNamespace
from kvcs.relay.namespaces import (
    MAX_ENDED,
    Change,
    Namespaces,
    PeerId,
    PrefixRefused,
    PrefixTable,
    Route,
    reserved_code,
)

PUBLICATION = TrackNamespace((b"kvcs-1", b"scope", b"compat", b"anchor", b"pub-1"))
SECOND = TrackNamespace((b"kvcs-1", b"scope", b"compat", b"anchor", b"pub-2"))
OTHER_SCOPE = TrackNamespace((b"kvcs-1", b"other", b"compat", b"anchor", b"pub-1"))


def route(peer: int, request: int) -> Route:
    return Route(PeerId(peer), RequestId(request))


def prefix(length: int) -> TrackNamespace:
    return TrackNamespace(PUBLICATION.fields[:length])


@pytest.mark.parametrize("length", range(6))
def test_subscribe_any_prefix_length_lists_known_namespace_with_its_suffix(length):
    namespaces = Namespaces()
    namespaces.publish(route(1, 0), PUBLICATION)

    changes = namespaces.subscribe(route(2, 0), prefix(length))

    suffix = TrackNamespace(PUBLICATION.fields[length:])
    assert changes == [Change(route(2, 0), suffix, listed=True)]


@pytest.mark.parametrize("length", range(6))
def test_publish_after_subscribe_tells_every_matching_subscriber(length):
    namespaces = Namespaces()
    namespaces.subscribe(route(2, 0), prefix(length))

    changes = namespaces.publish(route(1, 0), PUBLICATION)

    assert changes == [
        Change(route(2, 0), TrackNamespace(PUBLICATION.fields[length:]), listed=True)
    ]


def test_publish_other_scope_is_not_told():
    namespaces = Namespaces()
    namespaces.subscribe(route(2, 0), prefix(2))

    assert namespaces.publish(route(1, 0), OTHER_SCOPE) == []


def test_prefix_compares_whole_fields():
    namespaces = Namespaces()
    namespaces.publish(route(1, 0), TrackNamespace((b"foobar",)))

    assert namespaces.subscribe(route(2, 0), TrackNamespace((b"foo",))) == []


def test_second_publisher_of_a_namespace_changes_nothing_until_both_are_gone():
    namespaces = Namespaces()
    namespaces.subscribe(route(9, 0), prefix(4))
    namespaces.publish(route(1, 0), PUBLICATION)

    second = namespaces.publish(route(2, 0), PUBLICATION)
    first_gone = namespaces.withdraw(route(1, 0))
    both_gone = namespaces.withdraw(route(2, 0))

    assert (second, first_gone) == ([], [])
    assert both_gone == [Change(route(9, 0), TrackNamespace((b"pub-1",)), listed=False)]


def test_namespace_of_complete_track_stays_listed_after_its_publisher():
    namespaces = Namespaces()
    namespaces.publish(route(1, 0), PUBLICATION)
    namespaces.track_completed(PUBLICATION)
    namespaces.track_completed(PUBLICATION)

    gone = namespaces.withdraw(route(1, 0))
    late = namespaces.subscribe(route(9, 0), prefix(4))
    one_lost = namespaces.track_lost(PUBLICATION)
    all_lost = namespaces.track_lost(PUBLICATION)

    suffix = TrackNamespace((b"pub-1",))
    assert (gone, one_lost) == ([], [])
    assert late == [Change(route(9, 0), suffix, listed=True)]
    assert all_lost == [Change(route(9, 0), suffix, listed=False)]


@pytest.mark.parametrize("advertised", [PUBLICATION, prefix(2)])
def test_track_that_is_completed_after_its_publisher_has_left_lists_its_namespace_again(advertised):
    told = []
    namespaces = Namespaces(on_local=lambda namespace, listed: told.append((namespace, listed)))
    namespaces.publish(route(1, 0), advertised)
    namespaces.subscribe(route(9, 0), prefix(2))

    gone = namespaces.withdraw(route(1, 0))
    late = namespaces.track_completed(PUBLICATION)
    later = namespaces.track_completed(PUBLICATION)

    suffix = advertised.suffix_of(prefix(2))
    assert gone == [Change(route(9, 0), suffix, listed=False)]
    assert late == [Change(route(9, 0), suffix, listed=True)]
    assert later == []
    assert namespaces.listed() == [advertised]
    assert told == [(advertised, True), (advertised, False), (advertised, True)]


def test_only_so_many_namespaces_that_ended_are_remembered():
    namespaces = Namespaces()
    for number in range(MAX_ENDED + 1):
        namespaces.publish(route(1, number), TrackNamespace((b"kvcs", b"%d" % number)))
        namespaces.withdraw(route(1, number))

    for number in (0, 1):
        namespaces.track_completed(TrackNamespace((b"kvcs", b"%d" % number)))

    assert namespaces.listed() == [TrackNamespace((b"kvcs", b"1"))]


def test_complete_track_below_a_shorter_advertised_prefix_keeps_that_prefix_listed():
    namespaces = Namespaces()
    namespaces.publish(route(1, 0), prefix(2))
    namespaces.track_completed(PUBLICATION)

    namespaces.withdraw(route(1, 0))

    assert namespaces.listed() == [prefix(2)]
    namespaces.track_lost(PUBLICATION)
    assert namespaces.listed() == []


def test_complete_track_of_a_namespace_nobody_advertised_is_not_listed():
    namespaces = Namespaces()

    namespaces.track_completed(PUBLICATION)

    assert namespaces.listed() == []
    assert namespaces.track_lost(PUBLICATION) == []


def test_publishers_longest_prefix_first():
    namespaces = Namespaces()
    namespaces.publish(route(1, 0), prefix(1))
    namespaces.publish(route(2, 0), PUBLICATION)
    namespaces.publish(route(3, 0), OTHER_SCOPE)

    assert namespaces.publishers(PUBLICATION) == [route(2, 0), route(1, 0)]


@pytest.mark.parametrize("lengths", [(2, 2), (2, 4), (4, 2), (0, 3), (3, 0)])
def test_overlapping_prefix_in_one_session_is_refused(lengths):
    namespaces = Namespaces()
    namespaces.subscribe(route(9, 0), prefix(lengths[0]))

    with pytest.raises(PrefixRefused) as refused:
        namespaces.subscribe(route(9, 2), prefix(lengths[1]))

    assert refused.value.code is RequestErrorCode.PREFIX_OVERLAP
    assert namespaces.subscribed_by(PeerId(9)) == [route(9, 0)]


def test_same_prefix_in_two_sessions_and_siblings_in_one_are_fine():
    namespaces = Namespaces()
    namespaces.subscribe(route(8, 0), prefix(4))
    namespaces.subscribe(route(9, 0), prefix(4))

    namespaces.subscribe(route(9, 2), TrackNamespace(OTHER_SCOPE.fields[:4]))

    assert len(namespaces.publish(route(1, 0), PUBLICATION)) == 2


def test_subscribe_again_moves_the_prefix_and_lists_anew():
    namespaces = Namespaces()
    namespaces.publish(route(1, 0), PUBLICATION)
    namespaces.publish(route(1, 2), SECOND)
    namespaces.subscribe(route(9, 0), prefix(3))

    changes = namespaces.subscribe(route(9, 0), prefix(4))

    assert [change.suffix.fields for change in changes] == [(b"pub-1",), (b"pub-2",)]
    assert namespaces.withdraw(route(1, 0)) == [
        Change(route(9, 0), TrackNamespace((b"pub-1",)), listed=False)
    ]


def test_too_many_matches_are_refused():
    namespaces = Namespaces(max_matches=1)
    namespaces.publish(route(1, 0), PUBLICATION)
    namespaces.publish(route(1, 2), SECOND)

    with pytest.raises(PrefixRefused) as refused:
        namespaces.subscribe(route(9, 0), prefix(4))

    assert refused.value.code is RequestErrorCode.NAMESPACE_TOO_LARGE


def test_unsubscribe_ends_the_changes():
    namespaces = Namespaces()
    namespaces.subscribe(route(9, 0), prefix(4))

    namespaces.unsubscribe(route(9, 0))

    assert namespaces.publish(route(1, 0), PUBLICATION) == []


def test_of_peer_and_advertised_by_name_what_a_session_left():
    namespaces = Namespaces()
    table = PrefixTable()
    namespaces.publish(route(1, 0), PUBLICATION)
    namespaces.publish(route(1, 2), SECOND)
    table.add(route(1, 4), prefix(2))

    assert namespaces.advertised_by(PeerId(1)) == [route(1, 0), route(1, 2)]
    assert table.of_peer(PeerId(1)) == [route(1, 4)]
    assert namespaces.advertised_by(PeerId(2)) == table.of_peer(PeerId(2)) == []


@pytest.mark.parametrize(
    ("field", "code"),
    [
        (b".", RequestErrorCode.DOES_NOT_EXIST),
        (b".session", RequestErrorCode.DOES_NOT_EXIST),
        (b".future", None),
        (b"kvcs-1", None),
    ],
)
def test_reserved_namespaces(field, code):
    assert reserved_code(TrackNamespace((field, b"x"))) is code
    assert reserved_code(TrackNamespace()) is None


def test_namespace_that_was_found_complete_is_local_until_it_is_lost():
    news = []
    namespaces = Namespaces(on_local=lambda namespace, is_local: news.append((namespace, is_local)))
    found = TrackNamespace((b"a", b"b"))

    namespaces.track_completed(found)
    namespaces.list_complete(found)
    assert namespaces.local() == [found]
    namespaces.track_lost(found)

    assert namespaces.local() == []
    assert news == [(found, True), (found, False)]
