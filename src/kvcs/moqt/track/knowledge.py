"""What is known of a Track beside its Objects, as a value that outlives the store.

A store that forgot everything, or a new one after a restart, answers as before once it
recalls it: what was known not to exist still does not, what was not known stays unknown.

Source: MOQT draft 22, Sections 2.1, 3.1.4 and 7.1.
"""

from dataclasses import dataclass

from kvcs.moqt.wire.properties import Properties
from kvcs.names import Location

__all__ = ("GroupEnd", "Knowledge")

type GroupEnd = tuple[int, int, int]
"""Group ID, first Object ID at which no data exists, Object ID of the last Object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known of a Track beside its Objects.

    Attributes:
        properties: Track Properties.
        largest: Largest Object that was published, as far as is known.
        end: Last Location of the Track, when known.
        absent: Positions at which no data exists, as intervals, ends inclusive, ascending.
        group_ends: Where Groups end, as far as somebody said so.
    """

    properties: Properties
    largest: Location | None = None
    end: Location | None = None
    absent: tuple[tuple[int, int], ...] = ()
    group_ends: tuple[GroupEnd, ...] = ()
