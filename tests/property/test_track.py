"""What a store knows and what a fetch says, against models that list every Location."""

from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.seeds import examples
from tests.unit.moqt.track.pair import Site

from kvcs.errors import MalformedTrack, PublishDoneCode
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus, ParameterType, RangeMarker
from kvcs.moqt.session.events import SubscriptionDrained
from kvcs.moqt.track.contents import Absent, Found, Unknown
from kvcs.moqt.track.costs import OBJECT_OVERHEAD_BYTES
from kvcs.moqt.track.interval import IntervalSet
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES
from kvcs.names import FullTrackName, Location, TrackNamespace
from kvcs.varint import MAX_VI64

TRACK = FullTrackName(TrackNamespace((b"test",)), b"track")
NORMAL, END_OF_GROUP, END_OF_TRACK = ObjectStatus

# A small Track in full size: each Group has five places for Objects, and one that stands for
# the other 2^64 - 5; behind the last Group, one place stands for all other Groups.
GROUPS, OBJECTS = 3, 5
POINTS = [(group, number) for group in range(GROUPS) for number in range(OBJECTS + 1)]
REST = (GROUPS, 0)
PLACES = [*POINTS, REST]

groups = st.integers(0, GROUPS - 1)
numbers = st.integers(0, OBJECTS - 1)
points = st.sampled_from(POINTS)


def first_of(point):
    return Location(*point)


def last_of(point):
    if point == REST:
        return Location(MAX_VI64, MAX_VI64)
    group, number = point
    return Location(group, MAX_VI64 if number == OBJECTS else number)


def kind_of(answer):
    return {Found: "found", Absent: "absent", Unknown: "unknown"}[type(answer)]


class Model:
    """A Track as a table."""

    def __init__(self):
        self.held = {}
        self.seen = {}
        self.absent = set()
        self.priority = {}
        self.final = {}
        self.absent_from = {}
        self.stated_end = {}
        self.end = None
        self.end_from = None
        self.largest = None

    def kind(self, point):
        obj = self.held.get(point)
        if obj is not None and obj.status == NORMAL:
            return "found"
        return "absent" if point in self.absent else "unknown"

    def close(self, point):
        """Make everything of a Group absent from `point` on."""
        self.absent |= {other for other in POINTS if other[0] == point[0] and other >= point}

    def refuses(self, obj, point):
        key = (obj.group_id, obj.subgroup_id)
        is_status = obj.status != NORMAL
        seen = [other for other in self.seen if other[0] == point[0]]
        end = self.absent_from.get(obj.group_id)
        return any(
            (
                self.end_from is not None
                and point >= self.end_from
                and not (is_status and point == self.end_from),
                obj.status == END_OF_TRACK and any(other > point for other in self.seen),
                self.priority.get(key, obj.publisher_priority) != obj.publisher_priority,
                obj.object_id > self.final.get(key, MAX_VI64)
                and not (obj.status == END_OF_GROUP and obj.object_id == self.final[key] + 1),
                self.seen.get(point, obj.subgroup_id) != obj.subgroup_id,
                is_status and end not in (None, obj.object_id),
                is_status and any(other > point for other in seen),
                not is_status and end is not None and obj.object_id >= end,
            )
        )

    def add(self, obj):
        """Return True or False as the store does, or None for malformed."""
        point = (obj.group_id, obj.object_id)
        known = self.held.get(point)
        if known is not None:
            if known == obj:
                return False
            if NORMAL in (known.status, obj.status) or known.status == obj.status:
                return None
            if obj.status == END_OF_TRACK:
                if max(self.seen) > point or self.end_from not in (None, point):
                    return None
                self.end_track(point)
            return False
        if self.refuses(obj, point):
            return None
        if obj.status == NORMAL and point in self.absent:
            return False
        self.held[point] = obj
        self.seen[point] = obj.subgroup_id
        self.priority[obj.group_id, obj.subgroup_id] = obj.publisher_priority
        self.largest = max(self.largest or point, point)
        if obj.object_id > self.final.get((obj.group_id, obj.subgroup_id), MAX_VI64):
            self.final[obj.group_id, obj.subgroup_id] = obj.object_id
        if obj.status != NORMAL:
            self.absent_from[obj.group_id] = obj.object_id
            self.stated_end[obj.group_id] = obj.object_id
            self.close(point)
        if obj.status == END_OF_TRACK:
            self.end_track(point)
        return True

    def end_track(self, point):
        self.end = self.end_from = point
        self.absent |= {other for other in PLACES if other >= point}

    def finish(self, group, subgroup, final, *, end_of_group):
        """Return whether the end was accepted."""
        mine = [n for (g, n), s in self.seen.items() if (g, s) == (group, subgroup)]
        if not mine:
            return True
        final = max(mine) if final is None else final
        if max(mine) == final + 1 == self.stated_end.get(group) == self.absent_from.get(group):
            final += 1
        if self.final.get((group, subgroup), final) != final or max(mine) > final:
            return False
        held = self.held.get((group, final))
        absent_from = final if held is not None and held.status != NORMAL else final + 1
        if self.stated_end.get(group) == final:
            absent_from = self.absent_from[group]
        if end_of_group and (
            any(g == group and n > final for g, n in self.seen)
            or self.absent_from.get(group, absent_from) != absent_from
        ):
            return False
        self.final[group, subgroup] = final
        if end_of_group and group not in self.absent_from:
            self.absent_from[group] = absent_from
            self.stated_end[group] = final
            self.close((group, absent_from))
        return True

    def group_end(self, group):
        if group in self.stated_end:
            return self.stated_end[group]
        numbers = range(OBJECTS, -1, -1)
        # What is held is not absent, whatever a fetch said.
        open_numbers = [n for n in numbers if (group, n) not in self.absent]
        return open_numbers[0] if open_numbers and open_numbers[0] < OBJECTS else None


class StoreMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.store = TrackStore(TRACK, properties=EMPTY_PROPERTIES, authoritative=False)
        self.model = Model()

    @rule(
        group=groups,
        number=numbers,
        subgroup=st.integers(0, 1),
        priority=st.sampled_from((7, 7, 7, 8)),
        payload=st.sampled_from((b"a", b"a", b"a", b"b")),
        status=st.sampled_from((NORMAL, NORMAL, NORMAL, NORMAL, END_OF_GROUP, END_OF_TRACK)),
    )
    def add(self, group, number, subgroup, priority, payload, status):
        obj = Object(
            group_id=group,
            object_id=number,
            subgroup_id=subgroup,
            publisher_priority=priority,
            status=status,
            payload=payload if status == NORMAL else b"",
        )
        expected = self.model.add(obj)
        try:
            outcome = self.store.add(obj, now=0.0)
        except MalformedTrack:
            outcome = None
        assert outcome == expected

    @rule(
        group=groups,
        subgroup=st.integers(0, 1),
        final=st.none() | numbers,
        end_of_group=st.booleans(),
    )
    def finish_subgroup(self, group, subgroup, final, end_of_group):
        accepted = self.model.finish(group, subgroup, final, end_of_group=end_of_group)
        try:
            self.store.finish_subgroup(
                group, subgroup, end_of_group=end_of_group, now=0.0, final_object_id=final
            )
        except MalformedTrack:
            assert not accepted
        else:
            assert accepted

    @rule(one=points, other=points)
    def mark_absent(self, one, other):
        start, through = sorted((one, other))
        self.store.mark_absent(first_of(start), last_of(through))
        self.model.absent |= {
            point
            for point in POINTS
            if start <= point <= through and self.model.kind(point) != "found"
        }

    @rule(group=groups)
    def drop_group(self, group):
        before = self.store.object_bytes
        assert self.store.drop_group(group) == before - self.store.object_bytes
        self.model.held = {p: obj for p, obj in self.model.held.items() if p[0] != group}

    @invariant()
    def knows_each_location_and_the_run_around_it(self):
        kinds = [self.model.kind(point) for point in PLACES]
        for index, point in enumerate(PLACES):
            answer = self.store.lookup(first_of(point), now=0.0)
            assert kind_of(answer) == kinds[index], point
            if isinstance(answer, Found):
                assert answer.obj == self.model.held[point]
                continue
            first = last = index
            while first and kinds[first - 1] == kinds[index]:
                first -= 1
            while last + 1 < len(PLACES) and kinds[last + 1] == kinds[index]:
                last += 1
            assert answer.start == first_of(PLACES[first])
            assert answer.through == last_of(PLACES[last])

    @invariant()
    def knows_its_ends(self):
        for group in range(GROUPS):
            number = self.model.group_end(group)
            expected = None if number is None else Location(group, number)
            assert self.store.group_end(group) == expected
        complete = self.model.end is not None and all(
            self.model.kind(point) != "unknown" for point in PLACES
        )
        assert self.store.is_complete() == complete
        assert self.store.largest == (self.model.largest and first_of(self.model.largest))

    @invariant()
    def counts_what_it_holds(self):
        held = self.model.held.values()
        assert list(self.store.objects()) == [self.model.held[p] for p in sorted(self.model.held)]
        assert self.store.object_bytes == sum(
            len(obj.payload) + OBJECT_OVERHEAD_BYTES for obj in held
        )
        assert self.store.groups() == tuple(sorted({obj.group_id for obj in held}))


StoreMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=25, deadline=None
)
TestStore = StoreMachine.TestCase


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6), st.booleans()), max_size=20))
@settings(deadline=None)
def test_interval_set_is_a_set(steps):
    intervals, model = IntervalSet(), set()

    for start, length, is_added in steps:
        if is_added:
            intervals.add(start, start + length)
            model |= set(range(start, start + length + 1))
        else:
            intervals.discard(start)
            model.discard(start)

    assert {value for value in range(40) if value in intervals} == model
    assert intervals.size == len(model)
    assert all(end + 1 < start for (_, end), (start, _) in pairwise(intervals))


# Fetches.


@st.composite
def scenes(draw):
    """A Track of which parts are held, parts absent, parts unknown, and a fetch of it."""
    kinds = {point: draw(st.sampled_from("fau")) for point in POINTS}
    for group in range(GROUPS):
        kinds[group, OBJECTS] = draw(st.sampled_from("au"))
    start, end = sorted((draw(points), draw(points)))
    return {
        "kinds": kinds,
        "start": start,
        "end": end,
        "order": draw(st.sampled_from(GroupOrder)),
        "filtered": draw(st.booleans()),
        # What becomes of a gap that is waited for: who fills it, or gives it up, and how.
        "answers": draw(st.lists(st.sampled_from("faut"), max_size=12)),
        "waits": draw(st.sampled_from(("nobody", "gaps", "deadline"))),
    }


class Scene:
    """A fetch under way, and the truth about the Track."""

    def __init__(self, scene):
        self.site = Site(authoritative=False, fill_gaps=scene["waits"] != "nobody")
        self.answers = list(scene["answers"])
        for point, kind in scene["kinds"].items():
            if kind == "f":
                self.site.add(*point)
            elif kind == "a":
                self.site.store.mark_absent(first_of(point), last_of(point))
        self.site.store.raise_largest(Location(GROUPS, 0))

    def truth(self, point):
        return kind_of(self.site.store.lookup(first_of(point), now=self.site.now))

    def answer_gaps(self):
        """Do with each gap what the scene says; give up what it does not speak of."""
        while self.site.gaps:
            delivery, start, through = self.site.gaps.pop()
            assert all(
                self.truth(point) == "unknown"
                for point in POINTS
                if start <= first_of(point) <= through
            )
            answer = self.answers.pop(0) if self.answers else "u"
            if answer == "f" and start.object_id < OBJECTS:
                self.site.add(start.group_id, start.object_id)
                if start < through:
                    # The rest is asked for only if it was not asked for already.
                    delivery.give_up(Location(start.group_id, start.object_id + 1), through)
            elif answer == "a":
                self.site.store.mark_absent(start, through)
            else:
                marker = RangeMarker.TIMED_OUT if answer == "t" else RangeMarker.UNKNOWN
                delivery.give_up(start, through, marker)
            self.site.settle()


def parse(items):
    """Split what came into (kind, Location) pairs."""
    for item in items:
        kind, separator, place = item.partition("<=")
        group, number = (place if separator else kind).split("/")
        location = Location(int(group), MAX_VI64 if number == "*" else int(number))
        yield (kind if separator else "found"), location


def claims(records, expected):
    """Return what a fetch says about each of the `expected` Locations, in its order."""
    said = {}
    rest = list(expected)
    for kind, location in records:
        assert location in rest, f"{kind} {location} out of range or order"
        gap = rest[: rest.index(location)]
        del rest[: len(gap) + 1]
        said |= dict.fromkeys(gap, "unmarked" if kind == "found" else kind)
        said[location] = kind
    return said | dict.fromkeys(rest, "unmarked")


@given(scenes())
@settings(max_examples=examples(400), deadline=None)
def test_a_fetch_is_honest_about_every_location(scene):
    play = Scene(scene)
    site = play.site
    wanted = [point for point in POINTS if scene["start"] <= point <= scene["end"]]
    start, end = first_of(scene["start"]), last_of(scene["end"])
    filters = (
        (RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(1, 2),)),)
        if scene["filtered"]
        else ()
    )
    assume(start <= end)

    site.fetch(
        location_filter=LocationFilter.absolute_range(
            start.group_id, start.object_id, end.group_id - start.group_id, end.object_id
        ),
        group_order=scene["order"],
        range_filters=filters,
        fill_timeout_ms=1000,
    )
    site.settle()
    if scene["waits"] == "deadline":
        site.now = 1.0
    else:
        play.answer_gaps()
    site.settle()

    (stream,) = site.streams.values()
    assert stream[-1] == "FIN"
    if scene["order"] is GroupOrder.DESCENDING:
        wanted.sort(key=lambda point: (-point[0], point[1]))
    said = claims(parse(stream[:-1]), [last_of(point) for point in wanted])
    for point in wanted:
        check(said[last_of(point)], play.truth(point), point, filtered=scene["filtered"])


def check(said, truth, point, *, filtered):
    is_wanted = not filtered or point[1] in (1, 2)
    if truth == "found":
        allowed = {"found"} if is_wanted else {"unmarked", "unknown"}
    elif truth == "absent":
        allowed = {"unmarked", "unknown"} if filtered else {"unmarked", "absent"}
    else:
        # In a filtered fetch what is left out without a word is unknown too.
        allowed = {"unknown", "late"} if is_wanted else {"unknown", "late", "unmarked"}
    assert said in allowed, f"{point} is {truth}, and the fetch says {said}"


# Subscriptions.

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), groups, numbers),
        st.tuples(st.just("add"), groups, numbers),
        st.tuples(st.just("finish"), groups, st.integers(0, 1)),
        st.tuples(st.just("send"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("drop"), groups, st.just(0)),
        st.tuples(st.just("forward"), st.integers(0, 1), st.just(0)),
    ),
    max_size=30,
)


class Follower:
    """A subscription under way, and the Objects that it is owed."""

    def __init__(self, present, *, next_object, order):
        self.site = Site(authoritative=False)
        for point in present:
            self.add(point)
        self.owed = []
        self.added = set(present)
        kind = LocationFilter.next_object() if next_object else LocationFilter.none()
        self.request_id = self.site.subscribe(location_filter=kind, group_order=order)
        self.boundary = max(self.added, default=None) if next_object else None
        self.forward = True

    def add(self, point):
        # Two Subgroups, one of even and one of odd Object IDs, so that each has gaps.
        self.site.add(*point, subgroup_id=point[1] % 2, publisher_priority=point[0])

    def play(self, step, one, other):
        match step:
            case "add":
                self.publish((one, other))
            case "finish":
                self.site.finish(one, other, end_of_group=False)
            case "send":
                self.site.settle(room=one)
            case "drop" if not self.site.deliveries[self.request_id].needs(one):
                self.site.store.drop_group(one)
            case "forward":
                self.turn(forward=bool(one))

    def publish(self, point):
        subgroups = {item.subgroup_id: item for item in self.site.store.subgroups(point[0])}
        subgroup = subgroups.get(point[1] % 2)
        if subgroup is not None and subgroup.final_object_id is not None:
            return
        is_new = point not in self.added
        self.add(point)
        self.added.add(point)
        if is_new and self.forward and (self.boundary is None or point > self.boundary):
            self.owed.append(point)

    def turn(self, *, forward):
        if forward and not self.forward:
            self.boundary = max(self.added, default=self.boundary)
        if not forward and self.forward:
            # What was not sent when the pause began is owed no more.
            self.owed = self.received()
        self.forward = forward
        self.site.update(self.request_id, forward=forward)

    def streams(self):
        for stream_id, items in self.site.streams.items():
            placed = [tuple(map(int, item.split("/"))) for item in items if "/" in item]
            yield self.site.headers[stream_id], placed, "FIN" in items

    def received(self):
        return [point for _, placed, _ in self.streams() for point in placed]


@given(
    st.sets(points.filter(lambda point: point[1] < OBJECTS)),
    st.booleans(),
    st.sampled_from(GroupOrder),
    steps,
)
@settings(max_examples=examples(300), deadline=None)
def test_a_subscription_sends_each_object_once(present, next_object, order, played):
    follower = Follower(sorted(present), next_object=next_object, order=order)

    for step in played:
        follower.play(*step)
    follower.site.settle()
    follower.site.responder.end(follower.site.store, PublishDoneCode.TRACK_ENDED, now=0.0)
    follower.site.settle()

    assert sorted(follower.received()) == sorted(follower.owed)
    assert follower.site.told(SubscriptionDrained)[0].complete
    for header, placed, is_finished in follower.streams():
        assert placed == sorted(placed)
        assert {group for group, _ in placed} == {header.group_id}
        if is_finished:
            key = header.group_id, header.subgroup_id
            assert placed == [p for p in sorted(follower.owed) if (p[0], p[1] % 2) == key]
