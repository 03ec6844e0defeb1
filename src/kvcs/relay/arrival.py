"""Which Objects of a Track are here: a picture of Groups and Objects, of bounded size.

The relay does not know what a Group stands for. A picture has a column for each Group and in
it a cell for so many neighbouring Object IDs; making one costs a few steps for each cell,
whatever the number of Objects.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvcs.moqt.track.group import Subgroup
from kvcs.moqt.track.store import TrackStore

__all__ = ("MAX_CELLS", "MAX_COLUMNS", "Arrival", "arrival")

# Enough for the layers of every model there is; of a Track with more, the last Groups are shown.
MAX_COLUMNS: Final = 256
MAX_CELLS: Final = 32

_ON_DISK: Final = "d"
_LOST: Final = "x"
_NOTHING: Final = "."
_BEYOND: Final = "-"
_ALL: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Which Objects of a Track are held.

    Attributes:
        groups: Groups of which anything is known.
        group_ids: Group ID of each column, ascending.
        objects: Object IDs that a column covers, from 0.
        objects_per_cell: Neighbouring Object IDs that share a cell.
        columns: A text for each Group with a character for each cell: ``0`` to ``9`` for the
            share of its Objects that are held in memory (``9`` is all), ``d`` when there are
            none, but some on disk, ``x`` when all that came was dropped again, ``.`` when
            nothing came yet, ``-`` beyond the end of the Group.
    """

    groups: int
    group_ids: tuple[int, ...]
    objects: int
    objects_per_cell: int
    columns: tuple[str, ...]


def arrival(
    store: TrackStore, *, is_on_disk: Callable[[int, int], bool] = lambda _first, _through: False
) -> Arrival:
    """Return the picture of a Track; of one with many Groups, of its last ones.

    Args:
        store: What is known of the Track.
        is_on_disk: Tells whether anything between two positions, inclusive, is on disk.
    """
    known = sorted(store.known_groups())
    shown = known[-MAX_COLUMNS:]
    subgroups = {group_id: store.subgroups(group_id) for group_id in shown}
    ends = {group_id: _end(store, group_id) for group_id in shown}
    objects = max((_width(subgroups[group_id], ends[group_id]) for group_id in shown), default=0)
    objects_per_cell = max(1, -(-objects // MAX_CELLS))
    cells = [
        range(first, first + objects_per_cell) for first in range(0, objects, objects_per_cell)
    ]
    return Arrival(
        groups=len(known),
        group_ids=tuple(shown),
        objects=objects,
        objects_per_cell=objects_per_cell,
        columns=tuple(
            "".join(
                _cell(_Group(group_id, subgroups[group_id], ends[group_id], is_on_disk), cell)
                for cell in cells
            )
            for group_id in shown
        ),
    )


def _width(subgroups: tuple[Subgroup, ...], group_end: int | None) -> int:
    """Return how many Object IDs a Group has, as far as is known."""
    if group_end is not None:
        return group_end
    return max((subgroup.largest_id + 1 for subgroup in subgroups), default=0)


def _end(store: TrackStore, group_id: int) -> int | None:
    """Return the first Object ID after the last one with data, when known."""
    last = store.group_end(group_id)
    if last is None:
        return None
    return last.object_id if store.is_absent(last, last) else last.object_id + 1


class _Group(NamedTuple):
    """What is known of one Group."""

    group_id: int
    subgroups: tuple[Subgroup, ...]
    end: int | None
    is_on_disk: Callable[[int, int], bool]


def _cell(group: _Group, cell: range) -> str:
    first, end = cell.start, cell.stop if group.end is None else min(cell.stop, group.end)
    if first >= end:
        return _BEYOND
    held = sum(
        bisect_left(subgroup.ids, end) - bisect_left(subgroup.ids, first)
        for subgroup in group.subgroups
    )
    if held:
        return str(max(1, min(held, end - first) * _ALL // (end - first)))
    if group.is_on_disk(group.group_id << 64 | first, group.group_id << 64 | (end - 1)):
        return _ON_DISK
    is_lost = any(_has_lost(subgroup, first, end) for subgroup in group.subgroups)
    return _LOST if is_lost else _NOTHING


def _has_lost(subgroup: Subgroup, first: int, end: int) -> bool:
    lost = subgroup.has_lost_after(first - 1)
    return lost is not None and lost < end
