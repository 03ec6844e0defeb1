"""What Objects, and what is remembered of them, cost in memory: the units of the budgets."""

from typing import Final

from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import Properties

__all__ = (
    "GROUP_BYTES",
    "NOTE_BYTES",
    "OBJECT_OVERHEAD_BYTES",
    "PROPERTY_BYTES",
    "SUBGROUP_BYTES",
    "object_bytes",
    "properties_bytes",
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


# What one parsed property costs beside its octets: the pair, its Type and its value, measured
# and rounded up. One that takes two octets on the wire takes a hundred times as many here.
PROPERTY_BYTES: Final = 192

# Octets of a property are held as received, as a value, and inside IMMUTABLE_PROPERTIES once more.
_COPIES: Final = 3


def object_bytes(obj: Object) -> int:
    """Return the octets that an Object counts for while it is held."""
    size_bytes = len(obj.payload) + OBJECT_OVERHEAD_BYTES
    return size_bytes + properties_bytes(obj.properties) if obj.properties.raw else size_bytes


def properties_bytes(properties: Properties) -> int:
    """Return the octets that the properties of an Object or a Track count for."""
    pairs = len(properties.pairs) + len(properties.immutable_pairs)
    return _COPIES * len(properties.raw) + pairs * PROPERTY_BYTES
