"""Properties of Tracks and Objects.

The octets are kept exactly as received, since a relay forwards them unchanged; what is
known of them is parsed beside. Pairs may stand in the mutable list or inside
IMMUTABLE_PROPERTIES, and are looked up in both.

Source: MOQT draft 22, Sections 3.7, 8.4 and 10.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Self

from kvcs.errors import MalformedTrack, RemoteProtocolError, TerminationCode
from kvcs.moqt.codepoints import GroupOrder, PropertyType
from kvcs.moqt.wire.kvp import KeyValuePair, decode_pairs, encode_pairs
from kvcs.names import Location

__all__ = ("DEFAULT_PUBLISHER_PRIORITY", "EMPTY_PROPERTIES", "Properties")

DEFAULT_PUBLISHER_PRIORITY: Final = 128

_MANDATORY: Final = range(0x4000, 0x8000)
_KNOWN: Final = frozenset(PropertyType)

# Legal values of Track Properties, and the code for others: the draft names
# PROTOCOL_VIOLATION for two, for the third its general rule on Key-Value-Pairs holds.
_ANY_VALUE: Final = (None, TerminationCode.NO_ERROR)
_TRACK_VALUES: Final[Mapping[int, tuple[range, TerminationCode]]] = {
    PropertyType.DEFAULT_PUBLISHER_PRIORITY: (
        range(256),
        TerminationCode.KEY_VALUE_FORMATTING_ERROR,
    ),
    PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER: (range(1, 3), TerminationCode.PROTOCOL_VIOLATION),
    PropertyType.DYNAMIC_GROUPS: (range(2), TerminationCode.PROTOCOL_VIOLATION),
}


@dataclass(frozen=True, slots=True)
class Properties:
    """Properties of one Track or one Object; equal when the octets are equal.

    Attributes:
        raw: The octets as received, forwarded unchanged.
        pairs: Type and value of the mutable list, IMMUTABLE_PROPERTIES as octets.
        immutable_pairs: Type and value of the pairs inside IMMUTABLE_PROPERTIES.
        fault: Why the track is malformed, found while decoding; None if it is not.
    """

    raw: bytes = b""
    pairs: tuple[KeyValuePair, ...] = field(default=(), compare=False)
    immutable_pairs: tuple[KeyValuePair, ...] = field(default=(), compare=False, repr=False)
    fault: str | None = field(default=None, compare=False)

    def __bool__(self) -> bool:
        return bool(self.raw)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Decode a block of properties that fills `raw`.

        What only makes the track malformed is kept in `fault`.

        Raises:
            RemoteProtocolError: The pairs of the mutable list cannot be parsed.
        """
        pairs = decode_pairs(raw)
        nested: list[KeyValuePair] = []
        fault: str | None = None
        for number, value in pairs:
            if number == PropertyType.IMMUTABLE_PROPERTIES and isinstance(value, bytes):
                try:
                    nested += decode_pairs(value)
                except RemoteProtocolError:
                    fault = "IMMUTABLE_PROPERTIES cannot be parsed"
        if any(number == PropertyType.IMMUTABLE_PROPERTIES for number, _ in nested):
            fault = "IMMUTABLE_PROPERTIES inside IMMUTABLE_PROPERTIES"
        return cls(raw, pairs, tuple(nested), fault or _repeated(chain(pairs, nested)))

    @classmethod
    def decode_track(cls, raw: bytes) -> Self:
        """Decode Track Properties and check the values of those that are known.

        Raises:
            RemoteProtocolError: The pairs cannot be parsed, or a known value is illegal.
        """
        properties = cls.decode(raw)
        _check_track_values(chain(properties.pairs, properties.immutable_pairs))
        return properties

    @classmethod
    def of(cls, *pairs: KeyValuePair) -> Self:
        """Return the properties with these pairs, in ascending order of their Types.

        Raises:
            ValueError: A value has the wrong form for its Type, or is too large.
        """
        return cls.decode(encode_pairs(pairs))

    def find(self, number: int) -> int | bytes | None:
        """Return the value of the first property with Type `number`, or None."""
        if not self.raw:
            return None
        for known, value in chain(self.pairs, self.immutable_pairs):
            if known == number:
                return value
        return None

    @property
    def object_delivery_timeout_ms(self) -> int:
        """OBJECT_DELIVERY_TIMEOUT; 0 is none."""
        return self._integer(PropertyType.OBJECT_DELIVERY_TIMEOUT) or 0

    @property
    def subgroup_delivery_timeout_ms(self) -> int:
        """SUBGROUP_DELIVERY_TIMEOUT; 0 is none."""
        return self._integer(PropertyType.SUBGROUP_DELIVERY_TIMEOUT) or 0

    @property
    def max_cache_duration_ms(self) -> int | None:
        """MAX_CACHE_DURATION; None is unlimited."""
        return self._integer(PropertyType.MAX_CACHE_DURATION)

    @property
    def default_publisher_priority(self) -> int:
        """Priority that Subgroups and datagrams inherit, 0..255."""
        value = self._integer(PropertyType.DEFAULT_PUBLISHER_PRIORITY)
        return DEFAULT_PUBLISHER_PRIORITY if value is None else value

    @property
    def default_group_order(self) -> GroupOrder:
        """Order of Groups that the publisher prefers."""
        value = self._integer(PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER)
        return GroupOrder.ASCENDING if value is None else GroupOrder(value)

    @property
    def dynamic_groups(self) -> bool:
        """DYNAMIC_GROUPS: the publisher takes NEW_GROUP_REQUEST."""
        return self._integer(PropertyType.DYNAMIC_GROUPS) == 1

    @property
    def prior_group_id_gap(self) -> int:
        """Number of Groups before this one that never exist."""
        return self._integer(PropertyType.PRIOR_GROUP_ID_GAP) or 0

    @property
    def prior_object_id_gap(self) -> int:
        """Number of Objects of the Group before this one that never exist."""
        return self._integer(PropertyType.PRIOR_OBJECT_ID_GAP) or 0

    def unknown_mandatory(self) -> tuple[int, ...]:
        """Return the Types of Mandatory Track Properties that are not understood."""
        pairs = chain(self.pairs, self.immutable_pairs)
        return tuple(number for number, _ in pairs if number in _MANDATORY)

    def check_object(self, location: Location) -> None:
        """Check these as the properties of the Object at `location`.

        Raises:
            MalformedTrack: A known property is repeated, the immutable ones are broken, a
                gap reaches below 0, or a Mandatory Track Property is among them.
        """
        if not self.raw:
            return
        if self.fault:
            raise MalformedTrack(f"Object {location}: {self.fault}")
        if self.unknown_mandatory():
            raise MalformedTrack(f"Object {location} has a Mandatory Track Property")
        if self.prior_group_id_gap > location.group_id:
            raise MalformedTrack(f"Object {location}: PRIOR_GROUP_ID_GAP reaches below Group 0")
        if self.prior_object_id_gap > location.object_id:
            raise MalformedTrack(f"Object {location}: PRIOR_OBJECT_ID_GAP reaches below Object 0")

    def _integer(self, number: PropertyType) -> int | None:
        value = self.find(number)
        return value if isinstance(value, int) else None


EMPTY_PROPERTIES: Final = Properties()


def _check_track_values(pairs: Iterable[KeyValuePair]) -> None:
    for number, value in pairs:
        allowed, code = _TRACK_VALUES.get(number, _ANY_VALUE)
        if allowed is not None and value not in allowed:
            span = f"{allowed.start}..{allowed.stop - 1}"
            raise RemoteProtocolError(
                code, f"{PropertyType(number).name} {value!r}, allowed is {span}"
            )


def _repeated(pairs: Iterable[KeyValuePair]) -> str | None:
    counts = Counter(number for number, _ in pairs if number in _KNOWN)
    for number, count in counts.items():
        if count > 1:
            return f"{PropertyType(number).name} is repeated"
    return None
