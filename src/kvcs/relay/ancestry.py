"""Where a relay stands in a tree: its own id, and those of the relays above it.

Relays tell each other in SETUP, with a Setup Option that the draft does not define and that
other implementations ignore (Section 9.1). A relay refuses a parent that is itself or that has
it as an ancestor, and a child that is one of its ancestors, so that nothing goes round in a
circle. What a child was told is kept true by ending its session when a relay appears above
that it was not told of: it comes back at once, and is told.

Source: MOQT draft 22, Section 9.1; there is no option for this in the draft.
"""

from dataclasses import dataclass
from typing import Final, Self

from kvcs.moqt.wire.kvp import KeyValuePair
from kvcs.moqt.wire.setup import SetupOptions

__all__ = ("MAX_ANCESTORS", "RELAY_ANCESTRY", "RELAY_ID_BYTES", "Ancestry")

#: The private Setup Option: "kvcs" as a number, odd because its value is octets. The value is the
#: id of the relay that sends it, then the ids of its ancestors, the nearest first.
RELAY_ANCESTRY: Final = 0x6B766373
RELAY_ID_BYTES: Final = 16
#: Relays above one another. More than a few levels only add delay; this bounds what SETUP carries.
MAX_ANCESTORS: Final = 16


@dataclass(frozen=True, slots=True)
class Ancestry:
    """The place of one relay.

    Attributes:
        relay_id: Its id, 16 octets, different for every start.
        ancestors: Its parent, the parent of that, and so on, as far as they are known.
    """

    relay_id: bytes
    ancestors: tuple[bytes, ...] = ()

    @classmethod
    def decode(cls, options: SetupOptions) -> Self | None:
        """Return the place of whoever sent these options, None if it does not tell.

        An option of this type with another form is somebody else's, and says nothing.
        """
        values = [value for number, value in options.unknown if number == RELAY_ANCESTRY]
        if len(values) != 1 or not isinstance(values[0], bytes):
            return None
        octets = values[0]
        relays = len(octets) // RELAY_ID_BYTES
        if len(octets) % RELAY_ID_BYTES or not 1 <= relays <= 1 + MAX_ANCESTORS:
            return None
        ids = [octets[RELAY_ID_BYTES * i : RELAY_ID_BYTES * (i + 1)] for i in range(relays)]
        return cls(ids[0], tuple(ids[1:]))

    def encode(self) -> KeyValuePair:
        """Return the Setup Option."""
        return RELAY_ANCESTRY, b"".join((self.relay_id, *self.ancestors))

    @property
    def line(self) -> tuple[bytes, ...]:
        """The relay and its ancestors: the ancestors of a child."""
        return self.relay_id, *self.ancestors

    def refusal_of_parent(self, parent: "Ancestry") -> str | None:
        """Return why `parent` cannot be the parent of this relay, None if it can."""
        if self.relay_id == parent.relay_id:
            return "it is this relay itself"
        if self.relay_id in parent.ancestors:
            return "this relay is above it already"
        if len(parent.line) > MAX_ANCESTORS:
            return f"more than {MAX_ANCESTORS} relays above one another"
        return None

    def refusal_of_child(self, child: "Ancestry") -> str | None:
        """Return why `child` cannot be a child of this relay, None if it can."""
        return "it is above this relay already" if child.relay_id in self.line else None
