import pytest

from kvcs.errors import LocalProtocolError, MalformedTrack
from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.track import absence as absence_module
from kvcs.moqt.track import store as store_module
from kvcs.moqt.track.contents import Absent, Found, Unknown
from kvcs.moqt.track.costs import OBJECT_OVERHEAD_BYTES
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.varint import MAX_VI64

TRACK = FullTrackName(TrackNamespace((b"test",)), b"track")
LAST = Location(MAX_VI64, MAX_VI64)


def new_store(*, authoritative=False, properties=EMPTY_PROPERTIES):
    return TrackStore(TRACK, properties=properties, authoritative=authoritative)


def normal(group_id, object_id, payload=b"x", **fields):
    defaults = {"subgroup_id": 0, "publisher_priority": 5}
    return Object(group_id=group_id, object_id=object_id, payload=payload, **(defaults | fields))


def status(group_id, object_id, kind=ObjectStatus.END_OF_GROUP, **fields):
    return normal(group_id, object_id, b"", status=kind, **fields)


def filled(*objects, **options):
    store = new_store(**options)
    for obj in objects:
        store.add(obj, now=0.0)
    return store


def at(store, group_id, object_id, now=0.0):
    return store.lookup(Location(group_id, object_id), now=now)


def known(store, group_id, object_ids, now=0.0):
    letters = {Found: "F", Absent: "a", Unknown: "u"}
    return "".join(letters[type(at(store, group_id, object_id, now))] for object_id in object_ids)


# Looking.


def test_lookup_of_a_cache_knows_only_what_it_holds():
    store = filled(normal(1, 2), normal(1, 4))

    assert known(store, 1, range(6)) == "uuFuFu"
    assert at(store, 1, 2) == Found(normal(1, 2))
    assert at(store, 0, 0) == Unknown(start=Location(0, 0), through=Location(1, 1))
    assert at(store, 1, 5) == Unknown(start=Location(1, 5), through=LAST)


def test_lookup_of_a_publisher_knows_its_gaps():
    store = filled(normal(1, 2), normal(1, 4), status(1, 5), normal(3, 0), authoritative=True)

    assert known(store, 1, range(7)) == "aaFaFaa"
    assert at(store, 1, 6) == Absent(start=Location(1, 5), through=Location(2, MAX_VI64))
    assert at(store, 3, 1) == Unknown(start=Location(3, 1), through=LAST)


def test_end_of_group_makes_the_rest_of_the_group_absent():
    store = filled(normal(7, 0), status(7, 3))

    assert known(store, 7, range(5)) == "Fuuaa"
    assert store.group_end(7) == Location(7, 3)
    assert at(store, 7, 9).through == Location(7, MAX_VI64)


def test_end_of_track_makes_everything_after_it_absent():
    store = filled(normal(0, 0), status(2, 0, ObjectStatus.END_OF_TRACK))

    assert store.end == Location(2, 0)
    assert at(store, 2, 0) == Absent(start=Location(2, 0), through=LAST)
    assert known(store, 1, [0]) == "u"


def test_mark_absent_over_held_objects_keeps_them():
    store = filled(normal(0, 1), normal(0, 3))

    store.mark_absent(Location(0, 0), Location(0, 9))

    assert known(store, 0, range(11)) == "aFaFaaaaaau"


def test_dropped_objects_are_unknown_and_their_gaps_stay_absent():
    store = filled(normal(0, 0), normal(0, 2), status(0, 3), authoritative=True)
    object_bytes = store.object_bytes

    freed = store.drop_group(0)

    assert freed == object_bytes == 2 + 3 * OBJECT_OVERHEAD_BYTES
    assert store.object_bytes == 0
    assert known(store, 0, range(4)) == "uaua"
    assert store.largest == Location(0, 3)
    assert store.groups() == ()


def test_expired_objects_are_unknown_until_they_come_again():
    properties = Properties.of((PropertyType.MAX_CACHE_DURATION, 1000))
    store = new_store(properties=properties)
    for object_id in range(3):
        store.add(normal(0, object_id), now=float(object_id))

    assert known(store, 0, range(3), now=2.5) == "uuF"
    assert at(store, 0, 0, now=2.5).through == Location(0, 1)
    assert not store.add(normal(0, 1), now=2.5)
    assert known(store, 0, range(3), now=2.6) == "uFF"


def test_a_publisher_serves_longer_than_caches_may():
    properties = Properties.of((PropertyType.MAX_CACHE_DURATION, 1000))
    store = filled(normal(0, 0), authoritative=True, properties=properties)

    assert known(store, 0, [0], now=1e9) == "F"


def test_group_end_follows_from_what_is_absent():
    store = filled(normal(4, 0), normal(4, 1))

    assert store.group_end(4) is None
    store.mark_absent(Location(4, 2), Location(4, MAX_VI64))
    assert store.group_end(4) == Location(4, 1)
    assert store.group_end(3) is None


def test_group_end_of_a_publisher_is_known_once_the_next_group_began():
    store = filled(normal(0, 0), normal(0, 1), normal(1, 0), authoritative=True)

    assert store.group_end(0) == Location(0, 1)
    assert store.group_end(1) is None


# Completeness.


def test_complete_when_the_track_ended_and_nothing_is_unknown():
    store = filled(normal(0, 0), status(0, 1), status(1, 0, ObjectStatus.END_OF_TRACK))

    assert store.is_complete()
    store.drop_all()
    assert not store.is_complete()


def test_not_complete_with_a_hole_before_the_end():
    store = filled(normal(0, 0), status(0, 2), status(1, 0, ObjectStatus.END_OF_TRACK))

    assert not store.is_complete()
    store.mark_absent(Location(0, 1), Location(0, 1))
    assert store.is_complete()


def test_finish_track_ends_it_without_a_status_object():
    store = filled(normal(0, 0))

    store.finish_track(Location(0, 0))

    assert store.end == Location(0, 0)
    assert store.is_complete()
    with pytest.raises(MalformedTrack):
        store.add(normal(0, 1), now=0.0)


def test_finish_track_twice_must_agree():
    store = filled(normal(0, 3))

    with pytest.raises(MalformedTrack):
        store.finish_track(Location(0, 2))
    store.finish_track(Location(0, 5))
    store.finish_track(Location(0, 5))
    with pytest.raises(MalformedTrack):
        store.finish_track(Location(0, 6))


def test_a_track_can_end_with_the_last_location_of_all():
    store = filled(normal(MAX_VI64, 3))
    store.mark_absent(Location(0, 0), Location(MAX_VI64, 2))
    store.mark_absent(Location(MAX_VI64, 4), Location(MAX_VI64, MAX_VI64 - 1))
    store.add(normal(MAX_VI64, MAX_VI64), now=0.0)
    store.finish_subgroup(MAX_VI64, 0, end_of_group=True, now=0.0)

    store.finish_track(LAST)

    assert store.is_complete()


def test_end_of_track_again_where_it_is_known():
    store = filled(normal(0, 0), status(1, 0, ObjectStatus.END_OF_TRACK))

    assert not store.add(status(1, 0), now=0.0)
    with pytest.raises(MalformedTrack):
        filled(status(1, 0), normal(2, 0)).add(status(1, 0, ObjectStatus.END_OF_TRACK), now=0.0)


# Adding.


def test_add_of_an_identical_object_is_false():
    store = filled(normal(0, 0))

    assert not store.add(normal(0, 0), now=1.0)
    assert store.object_bytes == 1 + OBJECT_OVERHEAD_BYTES


def test_add_of_an_object_known_not_to_exist_is_not_taken():
    store = new_store()
    store.mark_absent(Location(0, 0), Location(0, 5))

    assert not store.add(normal(0, 3), now=0.0)
    assert known(store, 0, [3]) == "a"


def test_add_of_end_of_group_is_taken_where_a_fetch_found_nothing():
    store = filled(normal(0, 0))
    store.mark_absent(Location(0, 1), Location(0, MAX_VI64))

    assert store.add(status(0, 1), now=0.0)
    assert [item.object_id for item in store.objects()] == [0, 1]


def test_add_of_a_fetched_object_does_not_raise_largest():
    store = filled(normal(0, 0))

    store.add(normal(5, 0), now=0.0, fetched=True)

    assert store.largest == Location(0, 0)
    store.raise_largest(Location(3, 3))
    store.raise_largest(Location(1, 1))
    assert store.largest == Location(3, 3)


def test_add_out_of_order_by_the_publisher_is_its_bug():
    store = filled(normal(1, 0), authoritative=True)

    with pytest.raises(LocalProtocolError):
        store.add(normal(0, 7), now=0.0)


def test_end_of_group_and_end_of_track_at_one_place_agree():
    store = filled(normal(0, 0), status(1, 0))

    assert not store.add(status(1, 0, ObjectStatus.END_OF_TRACK), now=0.0)
    assert store.end == Location(1, 0)


def test_end_of_track_after_a_fetch_has_told_it_and_a_relay_renamed_it():
    store = filled(normal(0, 0), status(1, 0))
    store.finish_track(Location(1, 0))

    assert not store.add(status(1, 0, ObjectStatus.END_OF_TRACK), now=0.0)
    assert store.end == Location(1, 0)


def test_changes_call_back():
    store = new_store()
    watched, followed = [], []
    unwatch = store.watch(lambda: watched.append(store.object_bytes))
    unfollow = store.follow(lambda subgroup: followed.append(subgroup and subgroup.group_id))

    store.add(normal(3, 0), now=0.0)
    store.mark_absent(Location(0, 0), Location(2, 0))
    unwatch()
    unfollow()
    store.add(normal(3, 1), now=0.0)

    assert watched == [1 + OBJECT_OVERHEAD_BYTES] * 2
    assert followed == [3, None]


# Contradictions (Section 12.1).


CONTRADICTIONS = {
    "priority differs in a Subgroup": (
        [normal(0, 0)],
        normal(0, 1, publisher_priority=6),
    ),
    "payload differs": ([normal(0, 0)], normal(0, 0, b"y")),
    "priority of a copy differs": ([normal(0, 0)], normal(0, 0, publisher_priority=6)),
    "Subgroup of a copy differs": ([normal(0, 0)], normal(0, 0, subgroup_id=1)),
    "delivery mode differs": ([normal(0, 0)], normal(0, 0, subgroup_id=None)),
    "status differs": ([normal(0, 1, b"")], status(0, 1)),
    "another Subgroup than before it was dropped": ("drop", normal(0, 0, subgroup_id=1)),
    "beyond the Group": ([normal(0, 0), status(0, 1)], normal(0, 2)),
    "beyond the Group in another Subgroup": (
        [normal(0, 0), status(0, 1)],
        normal(0, 2, subgroup_id=1),
    ),
    "Group ends before an Object": ([normal(0, 5)], status(0, 4)),
    "Group ends twice": ([status(0, 4)], status(0, 5)),
    "beyond the Track": ([status(1, 0, ObjectStatus.END_OF_TRACK)], normal(1, 1)),
    "Track ends before an Object": ([normal(2, 0)], status(1, 0, ObjectStatus.END_OF_TRACK)),
    "immutable properties differ": (
        [normal(0, 0, properties=Properties.of((PropertyType.IMMUTABLE_PROPERTIES, b"\x20\x01")))],
        normal(0, 0, properties=Properties.of((PropertyType.IMMUTABLE_PROPERTIES, b"\x20\x02"))),
    ),
    "an Object gap over an Object": (
        [normal(0, 2)],
        normal(0, 4, properties=Properties.of((PropertyType.PRIOR_OBJECT_ID_GAP, 3))),
    ),
    "an Object in an Object gap": (
        [normal(0, 4, properties=Properties.of((PropertyType.PRIOR_OBJECT_ID_GAP, 3)))],
        normal(0, 1),
    ),
    "a Group gap over an Object": (
        [normal(1, 9)],
        normal(3, 0, properties=Properties.of((PropertyType.PRIOR_GROUP_ID_GAP, 2))),
    ),
    "an Object in a Group gap": (
        [normal(3, 0, properties=Properties.of((PropertyType.PRIOR_GROUP_ID_GAP, 2)))],
        normal(2, 7),
    ),
    "two Group gaps in one Group": (
        [normal(3, 0, properties=Properties.of((PropertyType.PRIOR_GROUP_ID_GAP, 2)))],
        normal(3, 1, properties=Properties.of((PropertyType.PRIOR_GROUP_ID_GAP, 1))),
    ),
    "a gap below 0": (
        [],
        normal(0, 1, properties=Properties.of((PropertyType.PRIOR_OBJECT_ID_GAP, 2))),
    ),
    "a Mandatory Track Property on an Object": (
        [],
        normal(0, 0, properties=Properties.of((0x4000, 1))),
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_contradiction_is_refused_and_changes_nothing(case):
    before, contradiction = CONTRADICTIONS[case]
    if before == "drop":
        store = filled(normal(0, 0))
        store.drop_all()
    else:
        store = filled(*before)
    held, largest, end = list(store.objects()), store.largest, store.end

    with pytest.raises(MalformedTrack):
        store.add(contradiction, now=0.0)

    assert list(store.objects()) == held
    assert (store.largest, store.end) == (largest, end)


def test_mutable_properties_of_copies_may_differ():
    store = filled(normal(0, 0, properties=Properties.of((0x3800, 1))))

    assert not store.add(normal(0, 0, properties=Properties.of((0x3800, 2))), now=0.0)


def test_gap_properties_make_absent():
    gap = Properties.of((PropertyType.PRIOR_OBJECT_ID_GAP, 2), (PropertyType.PRIOR_GROUP_ID_GAP, 1))
    store = filled(normal(3, 4, properties=gap))

    assert known(store, 3, range(5)) == "uuaaF"
    assert at(store, 2, 0) == Absent(start=Location(2, 0), through=Location(2, MAX_VI64))


# Ends of Subgroups.


def finish(store, *, final=None, end_of_group=False, subgroup_id=0):
    store.finish_subgroup(0, subgroup_id, end_of_group=end_of_group, now=0.0, final_object_id=final)


def test_finished_subgroup_takes_no_larger_object():
    store = filled(normal(0, 0), normal(0, 1))
    finish(store)

    with pytest.raises(MalformedTrack):
        store.add(normal(0, 2), now=0.0)
    assert store.add(normal(0, 3, subgroup_id=1), now=0.0)


def test_subgroup_finished_twice_with_different_last_objects_is_malformed():
    store = filled(normal(0, 0), normal(0, 1))
    finish(store, final=1)
    finish(store, final=1)

    with pytest.raises(MalformedTrack):
        finish(store, final=0)


def test_finish_before_a_known_object_is_malformed():
    store = filled(normal(0, 0), normal(0, 3))

    with pytest.raises(MalformedTrack):
        finish(store, final=2)


def test_finish_with_end_of_group_ends_the_group():
    store = filled(normal(0, 0), normal(0, 1))

    finish(store, end_of_group=True)

    assert store.group_end(0) == Location(0, 1)
    assert known(store, 0, range(4)) == "FFaa"
    assert store.add(status(0, 2, subgroup_id=1), now=0.0)
    assert store.group_end(0) == Location(0, 2)


def test_finish_with_end_of_group_before_another_object_is_malformed():
    store = filled(normal(0, 0), normal(0, 3, subgroup_id=1))

    with pytest.raises(MalformedTrack):
        finish(store, end_of_group=True)


def test_finish_with_end_of_group_against_a_stated_end_is_malformed():
    store = filled(normal(0, 0), status(0, 5, subgroup_id=1))

    with pytest.raises(MalformedTrack):
        finish(store, end_of_group=True)


def test_finish_beyond_a_known_end_of_the_group_is_malformed():
    store = filled(normal(0, 0, subgroup_id=1), normal(0, 1))
    finish(store, end_of_group=True)

    with pytest.raises(MalformedTrack):
        finish(store, final=5, end_of_group=True, subgroup_id=1)


def test_finish_of_a_subgroup_that_ends_with_the_status_object():
    store = filled(normal(0, 0), status(0, 1))

    finish(store, end_of_group=True)

    assert store.group_end(0) == Location(0, 1)


def test_finish_of_an_empty_subgroup_says_nothing():
    store = new_store()

    finish(store, end_of_group=True)

    assert known(store, 0, [0]) == "u"


# The sequence of a Subgroup.


def subgroup_of(store, subgroup_id=0):
    return next(item for item in store.subgroups(0) if item.subgroup_id == subgroup_id)


def test_next_in_the_subgroup_by_number_or_by_the_stream():
    store = filled(normal(0, 0), normal(0, 1))
    store.add(normal(0, 5), now=0.0, follows=1)
    store.add(normal(0, 9), now=0.0)
    subgroup = subgroup_of(store)

    assert store.is_next(subgroup, 0, 1, now=0.0)
    assert store.is_next(subgroup, 1, 5, now=0.0)
    assert not store.is_next(subgroup, 5, 9, now=0.0)
    assert store.gap(subgroup, 5, 9, now=0.0) == (Location(0, 6), Location(0, 8))


def test_next_in_the_subgroup_where_others_fill_the_gap():
    store = filled(normal(0, 0), normal(0, 1, subgroup_id=1), normal(0, 3))
    subgroup = subgroup_of(store)

    assert store.gap(subgroup, 0, 3, now=0.0) == (Location(0, 2), Location(0, 2))
    store.mark_absent(Location(0, 2), Location(0, 2))
    assert store.is_next(subgroup, 0, 3, now=0.0)


def test_gap_in_the_subgroup_behind_what_is_absent():
    store = filled(normal(0, 0), normal(0, 5))
    store.mark_absent(Location(0, 1), Location(0, 2))

    assert store.gap(subgroup_of(store), 0, 5, now=0.0) == (Location(0, 3), Location(0, 4))


def test_first_of_the_subgroup_as_its_header_says():
    store = new_store()
    store.open_subgroup(0, 4, first_object_id=6, ends_group=True)
    store.add(normal(0, 6, subgroup_id=4), now=0.0)
    subgroup = subgroup_of(store, 4)

    assert store.is_next(subgroup, -1, 6, now=0.0)
    assert store.ends_group(subgroup)


def test_ends_group_of_a_cache_is_known_with_the_end():
    store = filled(normal(0, 0), normal(0, 1, subgroup_id=1))

    assert not store.ends_group(subgroup_of(store, 1))
    store.add(status(0, 2, subgroup_id=1), now=0.0)
    assert store.ends_group(subgroup_of(store, 1))
    assert not store.ends_group(subgroup_of(store, 0))


def test_ends_group_of_a_publisher_with_one_subgroup():
    store = filled(normal(0, 0), authoritative=True)

    assert store.ends_group(subgroup_of(store))


def test_subgroup_header_that_says_less_changes_nothing():
    store = new_store()
    store.open_subgroup(0, 4, first_object_id=6, ends_group=False, has_properties=True)
    store.open_subgroup(0, 4)
    store.add(normal(0, 6, subgroup_id=4), now=0.0)
    subgroup = subgroup_of(store, 4)

    assert (subgroup.first_object_id, subgroup.has_properties) == (6, True)
    assert not store.ends_group(subgroup)


def test_repr_shows_no_payload():
    store = filled(normal(0, 0, b"secret"))

    assert "secret" not in repr(store)
    assert "groups=1" in repr(store)


# What outlives the Objects.


def test_subgroups_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(store_module, "MAX_SUBGROUPS", 3)
    store = filled(normal(0, 0), normal(0, 1, subgroup_id=1), normal(1, 0))
    for group_id in (0, 1):
        store.drop_group(group_id)

    store.open_subgroup(2, 0, first_object_id=0)
    for obj in (normal(2, 0), normal(0, 2, subgroup_id=2)):
        with pytest.raises(MalformedTrack, match="after 3 Subgroups"):
            store.add(obj, now=0.0)

    assert store.add(normal(1, 1), now=0.0)
    assert sorted(store.known_groups()) == [0, 1]


def test_empty_runs_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr(absence_module, "MAX_ABSENT_RUNS", 3)
    store = new_store()

    for group_id in range(0, 10, 2):
        store.mark_absent(Location(group_id, 0), Location(group_id, 5))

    assert isinstance(at(store, 4, 0), Absent)
    assert isinstance(at(store, 6, 0), Unknown)


def test_publisher_remembers_all_it_publishes(monkeypatch):
    monkeypatch.setattr(store_module, "MAX_SUBGROUPS", 1)

    store = filled(normal(0, 0), normal(1, 0), normal(2, 0), authoritative=True)

    assert store.groups() == (0, 1, 2)


def test_end_of_group_behind_a_stream_that_ended_before_it_says_the_same():
    store = filled(normal(0, 0), normal(0, 1))
    finish(store, final=1, end_of_group=True)

    assert store.add(status(0, 2), now=0.0)
    finish(store, final=2, end_of_group=True)

    assert known(store, 0, range(4)) == "FFaa"


def test_stream_that_ends_before_a_known_end_of_group_says_the_same():
    store = filled(normal(0, 0), normal(0, 1), status(0, 2))

    finish(store, final=1)
    finish(store, final=2, end_of_group=True)

    with pytest.raises(MalformedTrack):
        finish(store, final=0)


def test_group_can_end_twice_in_the_same_place():
    store = filled(normal(0, 0))

    finish(store, final=0, end_of_group=True)
    finish(store, final=0, end_of_group=True)

    assert known(store, 0, range(2)) == "Fa"


def test_end_that_was_assumed_gives_way_to_the_one_that_is_stated():
    fetched, told = (filled(normal(0, 0), status(0, 1)) for _ in range(2))
    for store in (fetched, told):
        store.finish_track(Location(0, 1), assumed=True)

    fetched.finish_track(Location(1, 0))
    told.add(status(1, 0, ObjectStatus.END_OF_TRACK), now=0.0)

    for store in (fetched, told):
        store.finish_track(Location(0, 1), assumed=True)
        assert store.end == Location(1, 0)
        assert store.is_complete()
        with pytest.raises(MalformedTrack):
            store.finish_track(Location(2, 0))


def test_data_beyond_an_end_that_was_assumed_is_malformed():
    store = filled(normal(0, 0))
    store.finish_track(Location(0, 0), assumed=True)

    with pytest.raises(MalformedTrack):
        store.add(normal(1, 0), now=0.0)
