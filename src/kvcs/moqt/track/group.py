"""What is known about one Group of a Track: its Objects, its Subgroups and its end.

Nothing here decides what to send. A `GroupRecord` outlives the Objects in it: after
they are dropped it still knows where the Group ends and what was there.

Source: MOQT draft 22, Sections 2.1, 11.3 and 12.1.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from kvcs.errors import MalformedTrack
from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.track.interval import IntervalSet
from kvcs.moqt.wire.object import Object
from kvcs.names import Location

__all__ = ("GroupRecord", "Subgroup", "insert_sorted", "is_duplicate")


@dataclass(slots=True, eq=False)
class Subgroup:
    """The sequence of Objects of one Subgroup, as far as it is known.

    Attributes:
        group_id: Group ID.
        subgroup_id: Subgroup ID; None for the Objects that travel in datagrams.
        publisher_priority: The one priority of its Objects; None before the first.
        ids: Object IDs that are held, ascending.
        largest_id: Largest Object ID ever held; -1 before the first.
        late: New Object IDs that came after a larger one, in order of arrival.
        predecessors: The Object ID that came right before on the stream, for those
            where it is not simply one less.
        evicted: Object IDs that were held and are no longer.
        first_object_id: Object ID of the first Object ever published in it, when known.
        final_object_id: Object ID of its last Object; None until the Subgroup is finished.
        finished_at: When it was finished.
        ends_group: Whether it contains the largest Object of the Group; None is not known.
        has_properties: Whether its Objects can have Properties.
    """

    group_id: int
    subgroup_id: int | None
    publisher_priority: int | None = None
    ids: list[int] = field(default_factory=list[int])
    largest_id: int = -1
    late: list[int] = field(default_factory=list[int])
    predecessors: dict[int, int] = field(default_factory=dict[int, int])
    evicted: IntervalSet = field(default_factory=IntervalSet)
    first_object_id: int | None = None
    final_object_id: int | None = None
    finished_at: float | None = None
    ends_group: bool | None = None
    has_properties: bool = False

    def next_id(self, object_id: int) -> int | None:
        """Return the smallest held Object ID above `object_id`, or None."""
        ids = self.ids
        index = bisect_left(ids, object_id + 1)
        return ids[index] if index < len(ids) else None

    def has_lost_after(self, object_id: int) -> int | None:
        """Return the smallest evicted Object ID above `object_id`, or None."""
        if not self.evicted:
            return None
        if object_id + 1 in self.evicted:
            return object_id + 1
        return self.evicted.next_start(object_id)

    def last_up_to(self, location: Location) -> int:
        """Return the largest Object ID ever held that is not beyond `location`, or -1."""
        if self.group_id > location.group_id:
            return -1
        if self.group_id < location.group_id:
            return self.largest_id
        return min(self.largest_id, location.object_id)


@dataclass(slots=True, eq=False)
class GroupRecord:
    """One Group.

    Attributes:
        group_id: Group ID.
        entries: Held Objects and when they were received, by Object ID.
        ids: Object IDs of all held Objects, ascending.
        subgroups: Subgroups by Subgroup ID.
        largest_id: Largest Object ID ever held; -1 before the first.
        absent_from: First Object ID at which no data exists, once the end was stated.
        end_id: Object ID of the last Object, a status Object included, once stated.
        prior_group_gap: PRIOR_GROUP_ID_GAP that its Objects carry, if any.
    """

    group_id: int
    entries: dict[int, tuple[Object, float]] = field(
        default_factory=dict[int, tuple[Object, float]]
    )
    ids: list[int] = field(default_factory=list[int])
    subgroups: dict[int | None, Subgroup] = field(default_factory=dict[int | None, Subgroup])
    largest_id: int = -1
    absent_from: int | None = None
    end_id: int | None = None
    prior_group_gap: int | None = None

    def subgroup(self, subgroup_id: int | None) -> Subgroup:
        """Return the record of a Subgroup, a new one for the first mention."""
        found = self.subgroups.get(subgroup_id)
        if found is None:
            found = self.subgroups[subgroup_id] = Subgroup(self.group_id, subgroup_id)
        return found

    def check(self, obj: Object) -> None:
        """Check a new Object against what is known of the Group and its Subgroup.

        Raises:
            MalformedTrack: It contradicts that (Section 12.1).
        """
        object_id = obj.object_id
        subgroup = self.subgroups.get(obj.subgroup_id)
        for other in self.subgroups.values():
            if other is not subgroup and other.evicted and object_id in other.evicted:
                raise MalformedTrack(f"Object {obj.location} was in Subgroup {other.subgroup_id}")
        if subgroup is not None and subgroup.subgroup_id is not None:
            priority = subgroup.publisher_priority
            if priority is not None and priority != obj.publisher_priority:
                raise MalformedTrack(
                    f"Object {obj.location} with priority {obj.publisher_priority} in a Subgroup"
                    f" of priority {priority}"
                )
            final = subgroup.final_object_id
            is_end = obj.status is ObjectStatus.END_OF_GROUP and final == object_id - 1
            if final is not None and object_id > final and not is_end:
                raise MalformedTrack(
                    f"Object {obj.location} beyond the end {final} of its Subgroup"
                )
        if obj.status is not ObjectStatus.NORMAL:
            self._check_status(obj)
        elif self.absent_from is not None and object_id >= self.absent_from:
            raise MalformedTrack(f"Object {obj.location} beyond the end of its Group")

    def _check_status(self, obj: Object) -> None:
        if self.absent_from is not None and obj.object_id != self.absent_from:
            raise MalformedTrack(f"{obj.status.name} at {obj.location} contradicts the Group's end")
        if self.largest_id > obj.object_id:
            raise MalformedTrack(f"{obj.status.name} at {obj.location} before other Objects")

    def stated_final(self, subgroup: Subgroup, final: int) -> int:
        """Return the last Object of a Subgroup, a stream of which ended with Object `final`.

        A relay may say with the end of the stream what another says with an End of Group Object
        right behind it (Section 7.1): where that is known the two mean the same.
        """
        is_same = self.end_id == self.absent_from == subgroup.largest_id == final + 1
        return final + 1 if is_same else final

    def check_final(self, subgroup: Subgroup, final: int, *, end_of_group: bool) -> None:
        """Check that `subgroup` can end with Object `final`.

        Raises:
            MalformedTrack: It ended elsewhere, or Objects beyond its end are known.
        """
        known = subgroup.final_object_id
        if known not in (None, final) or subgroup.largest_id > final:
            raise MalformedTrack(
                f"Subgroup {subgroup.subgroup_id} of Group {self.group_id} ends at {final}, and at"
                f" {subgroup.largest_id if known is None else known}"
            )
        if not end_of_group:
            return
        if self.largest_id > final:
            raise MalformedTrack(
                f"Group {self.group_id} ends at {final} and has an Object {self.largest_id}"
            )
        if self.absent_from not in (None, self.absent_after(final)):
            raise MalformedTrack(f"Group {self.group_id} ends at {final} and elsewhere")

    def absent_after(self, final: int) -> int:
        """Return the first Object ID without data, if the Group ends with Object `final`."""
        if final == self.end_id and self.absent_from is not None:
            return self.absent_from
        entry = self.entries.get(final)
        is_status = entry is not None and entry[0].status is not ObjectStatus.NORMAL
        return final if is_status else final + 1


def insert_sorted(ids: list[int], object_id: int) -> None:
    """Insert into an ascending list; the end, the usual place, costs least."""
    if not ids or object_id > ids[-1]:
        ids.append(object_id)
    else:
        ids.insert(bisect_left(ids, object_id), object_id)


def is_duplicate(held: Object, obj: Object) -> bool:
    """Tell whether `obj` is the Object that is held, by all that may never change.

    Properties other than the immutable ones may differ between copies.
    """
    return (
        held.subgroup_id == obj.subgroup_id
        and held.publisher_priority == obj.publisher_priority
        and held.status is obj.status
        and held.payload == obj.payload
        and (
            held.properties == obj.properties
            or held.properties.find(PropertyType.IMMUTABLE_PROPERTIES)
            == obj.properties.find(PropertyType.IMMUTABLE_PROPERTIES)
        )
    )
