"""Message Parameters, the optional part of requests and answers.

A block is a count, then type differences and values. How a value is written follows
from its type alone, so an unknown type ends the session: nobody knows where it ends.
`_FORMS` is the one table of all types; `ALLOWED` says which message takes which.

Faults inside a range filter only fail the request: they are kept in `filter_fault`,
and the rest of the block is decoded and checked all the same.

Source: MOQT draft 22, Section 9.20.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from kvcs.errors import RemoteProtocolError, RequestErrorCode, RequestFailed
from kvcs.moqt.codepoints import GroupOrder, ParameterType
from kvcs.moqt.wire.buffer import Reader, encode_prefixed, encode_u8, violation
from kvcs.moqt.wire.filters import RANGE_FILTERS, LocationFilter, RangeFilter, filter_conflict
from kvcs.moqt.wire.frame import MAX_BODY_BYTES
from kvcs.moqt.wire.scope import ALLOWED, Scope
from kvcs.moqt.wire.token import Token
from kvcs.names import Location, TrackNamespace
from kvcs.varint import MAX_VI64, NeedMore, encode_vi64

__all__ = ("NO_PARAMETERS", "FillParameters", "Parameters", "check_scope")

# No parameter of a fill has a smaller type, so a smaller first number is a count. A larger one
# may be either; a block that is whole when it is read as a count is meant so.
_SMALLEST_FILL_TYPE: Final = ParameterType.FILL_TIMEOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class FillParameters:
    """How a fill differs from its subscription (Section 9.20.15).

    Attributes:
        fill_timeout_ms: FILL_TIMEOUT; None is the relay's own limit.
        subscriber_priority: SUBSCRIBER_PRIORITY; None as the subscription.
        location_filter: LOCATION_FILTER; None as the subscription.
        group_order: GROUP_ORDER; None as the subscription.
        range_filters: Range filters; each kind given replaces that of the subscription.
    """

    fill_timeout_ms: int | None = None
    subscriber_priority: int | None = None
    location_filter: LocationFilter | None = None
    group_order: GroupOrder | None = None
    range_filters: tuple[RangeFilter, ...] = ()

    def encode(self) -> bytes:
        """Encode as a block with a count, without the enclosing length."""
        return _encode_block(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a block that fills `data`, with or without a count, or empty.

        The draft does not say whether the block has a count, and peers differ.

        Raises:
            RemoteProtocolError: The block breaks a rule.
            RequestFailed: INVALID_FILTER, a range filter makes no sense.
        """
        if not data:
            return cls()
        try:
            block = _read_fill(data, counted=True)
        except RemoteProtocolError:
            if data[0] < _SMALLEST_FILL_TYPE:
                raise
            block = _read_fill(data, counted=False)
        values, fault = block.finish()
        if fault:
            raise RequestFailed(RequestErrorCode.INVALID_FILTER, fault)
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of one message; None and empty are absent.

    Attributes:
        object_delivery_timeout_ms: OBJECT_DELIVERY_TIMEOUT.
        authorization_tokens: AUTHORIZATION_TOKEN, in the order given.
        rendezvous_timeout_ms: RENDEZVOUS_TIMEOUT.
        subgroup_delivery_timeout_ms: SUBGROUP_DELIVERY_TIMEOUT.
        expires_ms: EXPIRES; 0 is unknown, as absent.
        largest_object: LARGEST_OBJECT; absent when nothing is published.
        fill_timeout_ms: FILL_TIMEOUT of a FETCH.
        forward: FORWARD; absent is true, or unchanged in an update.
        subscriber_priority: SUBSCRIBER_PRIORITY, 0..255; absent is 128.
        location_filter: LOCATION_FILTER; absent is none, or unchanged in an update.
        group_order: GROUP_ORDER.
        fill: FILL_PARAMETERS; its presence asks for a fill.
        range_filters: The five kinds of range filters.
        new_group_request: NEW_GROUP_REQUEST.
        track_namespace_prefix: TRACK_NAMESPACE_PREFIX of an update.
        include_properties: INCLUDE_PROPERTIES; absent is true.
        filter_fault: Why a received request is to be refused with INVALID_FILTER; its
            range filters and its fill are then not to be relied on. Never encoded.
    """

    object_delivery_timeout_ms: int | None = None
    authorization_tokens: tuple[Token, ...] = ()
    rendezvous_timeout_ms: int | None = None
    subgroup_delivery_timeout_ms: int | None = None
    expires_ms: int | None = None
    largest_object: Location | None = None
    fill_timeout_ms: int | None = None
    forward: bool | None = None
    subscriber_priority: int | None = None
    location_filter: LocationFilter | None = None
    group_order: GroupOrder | None = None
    fill: FillParameters | None = None
    range_filters: tuple[RangeFilter, ...] = ()
    new_group_request: int | None = None
    track_namespace_prefix: TrackNamespace | None = None
    include_properties: bool | None = None
    filter_fault: str | None = None

    def types(self) -> frozenset[ParameterType]:
        """Return the types that are present."""
        return frozenset(number for number, form in _FORMS.items() if form.items(self, number))

    def encode(self) -> bytes:
        """Encode the count and the parameters in ascending order of their types."""
        return _encode_block(self)

    @classmethod
    def decode(cls, reader: Reader, scope: Scope) -> Self:
        """Decode the block of a message.

        Raises:
            NeedMore: The bytes end inside the block.
            RemoteProtocolError: A parameter is unknown, repeated, not allowed in `scope`,
                or has an illegal value.
        """
        block = _Block(scope)
        block.read_counted(reader)
        values, fault = block.finish()
        return cls(**values, filter_fault=fault)


def check_scope(parameters: Parameters, scope: Scope) -> None:
    """Check received parameters once the request that they belong to is known.

    Raises:
        RemoteProtocolError: One of them is not allowed in `scope`.
    """
    for number in sorted(parameters.types() - ALLOWED[scope]):
        raise violation(f"{number.name} is not allowed in {scope.name}")


@dataclass(frozen=True, slots=True)
class _Form:
    """How one parameter type is written.

    Attributes:
        field: Attribute of `Parameters` and `FillParameters`.
        encode: Value to octets.
        decode: Reader to value.
        repeatable: Whether the attribute is a tuple with one item per parameter.
    """

    field: str
    encode: Callable[[Any], bytes]
    decode: Callable[[Reader], Any]
    repeatable: bool = False

    def items(self, block: "Parameters | FillParameters", number: ParameterType) -> list[Any]:
        value = getattr(block, self.field, None)
        if not self.repeatable:
            return [] if value is None else [value]
        return [item for item in value or () if getattr(item, "kind", number) == number]


def _decode_bool(reader: Reader) -> bool:
    value = reader.u8()
    if value > 1:
        raise violation(f"a parameter that is 0 or 1 has the value {value}")
    return value == 1


def _decode_group_order(reader: Reader) -> GroupOrder:
    value = reader.u8()
    try:
        return GroupOrder(value)
    except ValueError:
        raise violation(f"GROUP_ORDER {value}, allowed are 1 and 2") from None


def _number(field: str) -> _Form:
    return _Form(field, encode_vi64, Reader.vi64)


def _flag(field: str) -> _Form:
    return _Form(field, lambda value: encode_u8(value, field), _decode_bool)


def _range_filter(kind: ParameterType) -> _Form:
    def decode(reader: Reader) -> RangeFilter:
        return RangeFilter.decode(kind, reader.prefixed(MAX_BODY_BYTES, kind.name))

    return _Form("range_filters", RangeFilter.encode, decode, repeatable=True)


_FORMS: Final[Mapping[ParameterType, _Form]] = {
    ParameterType.OBJECT_DELIVERY_TIMEOUT: _number("object_delivery_timeout_ms"),
    ParameterType.AUTHORIZATION_TOKEN: _Form(
        "authorization_tokens",
        lambda token: encode_prefixed(token.encode()),
        lambda reader: Token.decode(reader.prefixed(MAX_BODY_BYTES, "AUTHORIZATION_TOKEN")),
        repeatable=True,
    ),
    ParameterType.RENDEZVOUS_TIMEOUT: _number("rendezvous_timeout_ms"),
    ParameterType.SUBGROUP_DELIVERY_TIMEOUT: _number("subgroup_delivery_timeout_ms"),
    ParameterType.EXPIRES: _number("expires_ms"),
    ParameterType.LARGEST_OBJECT: _Form("largest_object", Location.encode, Reader.location),
    ParameterType.FILL_TIMEOUT: _number("fill_timeout_ms"),
    ParameterType.FORWARD: _flag("forward"),
    ParameterType.SUBSCRIBER_PRIORITY: _Form(
        "subscriber_priority", lambda value: encode_u8(value, "SUBSCRIBER_PRIORITY"), Reader.u8
    ),
    ParameterType.LOCATION_FILTER: _Form(
        "location_filter", LocationFilter.encode, LocationFilter.decode
    ),
    ParameterType.GROUP_ORDER: _Form(
        "group_order", lambda value: encode_u8(value, "GROUP_ORDER"), _decode_group_order
    ),
    ParameterType.FILL_PARAMETERS: _Form(
        "fill",
        lambda fill: encode_prefixed(fill.encode()),
        lambda reader: FillParameters.decode(reader.prefixed(MAX_BODY_BYTES, "FILL_PARAMETERS")),
    ),
    **{kind: _range_filter(kind) for kind in sorted(RANGE_FILTERS)},
    ParameterType.NEW_GROUP_REQUEST: _number("new_group_request"),
    ParameterType.TRACK_NAMESPACE_PREFIX: _Form(
        "track_namespace_prefix", TrackNamespace.encode, Reader.namespace
    ),
    ParameterType.INCLUDE_PROPERTIES: _flag("include_properties"),
}


def _encode_block(block: Parameters | FillParameters) -> bytes:
    parts: list[bytes] = []
    previous = 0
    for number, form in _FORMS.items():
        for item in form.items(block, number):
            parts.append(encode_vi64(number - previous) + form.encode(item))
            previous = number
    return encode_vi64(len(parts)) + b"".join(parts)


class _Block:
    """A block while it is decoded."""

    __slots__ = ("_fault", "_items", "_previous", "_scope", "_values")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._previous = 0
        self._fault: str | None = None
        self._values: dict[str, Any] = {}
        self._items: defaultdict[str, list[Any]] = defaultdict(list)

    def read_counted(self, reader: Reader) -> None:
        for _ in range(reader.vi64()):
            self.read_parameter(reader)

    def read_parameter(self, reader: Reader) -> None:
        number = self._read_type(reader)
        form = _FORMS[number]
        if form.field in self._values:
            raise violation(f"{number.name} is repeated")
        value = None
        try:
            value = form.decode(reader)
        except RequestFailed as error:
            self._fault = self._fault or error.reason
        if not form.repeatable:
            self._values[form.field] = value
        elif value is not None:
            self._items[form.field].append(value)

    def finish(self) -> tuple[dict[str, Any], str | None]:
        """Return the values by attribute, and the first fault of a range filter."""
        items = {field: tuple(values) for field, values in self._items.items()}
        fault = self._fault or filter_conflict(items.get("range_filters", ()))
        return self._values | items, fault

    def _read_type(self, reader: Reader) -> ParameterType:
        number = self._previous + reader.vi64()
        if number > MAX_VI64:
            raise violation("type of a parameter above 2^64-1")
        self._previous = number
        try:
            known = ParameterType(number)
        except ValueError:
            raise violation(f"unknown parameter {number:#x}") from None
        if known not in ALLOWED[self._scope]:
            raise violation(f"{known.name} is not allowed in {self._scope.name}")
        return known


def _read_fill(data: bytes, *, counted: bool) -> _Block:
    reader, block = Reader(data), _Block(Scope.FILL)
    try:
        if counted:
            block.read_counted(reader)
        while reader.remaining and not counted:
            block.read_parameter(reader)
    except NeedMore:
        raise violation("FILL_PARAMETERS ends inside a parameter") from None
    if reader.remaining:
        raise violation(f"FILL_PARAMETERS with {reader.remaining} octets too many")
    return block


NO_PARAMETERS: Final = Parameters()
