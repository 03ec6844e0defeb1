"""What Objects, and what is remembered of them, cost in memory: the units of the budgets."""

from typing import Final

from kvcs.moqt.wire.object import Object

__all__ = (
    "GROUP_BYTES",
    "NOTE_BYTES",
    "OBJECT_OVERHEAD_BYTES",
    "SUBGROUP_BYTES",
    "object_bytes",
)

# What an Object costs in memory beside payload and properties: the value, its places in the
# index and the allocator's rounding, measured with small Objects and rounded up.
OBJECT_OVERHEAD_BYTES: Final = 352

# What the records cost that outlive the Objects, measured and rounded up likewise: a Group; a
# Subgroup in it; and what is noted one by one: a run of evicted or absent Locations, an Object
# that came late or after a gap.
GROUP_BYTES: Final = 512
SUBGROUP_BYTES: Final = 640
NOTE_BYTES: Final = 128


def object_bytes(obj: Object) -> int:
    """Return the octets that an Object counts for while it is held."""
    return len(obj.payload) + len(obj.properties.raw) + OBJECT_OVERHEAD_BYTES
