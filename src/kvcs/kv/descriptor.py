"""The Compatibility Descriptor: everything that changes the bytes of a KV cache or their meaning.

Two caches can replace each other only if their descriptors are equal, member by member. The
Compatibility ID is computed over the canonical form, so unknown members are kept and hashed.

Members besides the attributes of `Descriptor`: ``axes`` and ``byte_order``, which have only one
value, so that a later layout becomes another identity instead of wrong bytes.

Source: KVCS draft, "Manifest Track"; identity profile kvsp-provisional.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Self, cast

from kvcs.errors import DataError, UnsupportedEncoding
from kvcs.kv.strict_json import (
    MAX_SAFE_INTEGER,
    JsonLimits,
    JsonValue,
    canonical_json,
    decode_json,
)

__all__ = ("AXES", "BYTE_ORDER", "MAX_DIMENSION", "MAX_LAYERS", "Descriptor", "Dtype")

AXES: Final = "tokens,kv_heads,head_dim"
BYTE_ORDER: Final = "little"

# Larger than any model; keeps a lying descriptor from sizing tables or overflowing a product.
MAX_LAYERS: Final = 4096
MAX_DIMENSION: Final = 2**20

# A descriptor of its own, outside a manifest: three lists of MAX_LAYERS integers fit well.
_LIMITS: Final = JsonLimits(max_bytes=2**18, max_depth=2, max_values=2**15)

_SHA256_HEX: Final = re.compile(r"[0-9a-f]{64}")
_FIXED: Final = {"axes": AXES, "byte_order": BYTE_ORDER}
_UNIFORM: Final = ("kv_heads", "head_dim")
_PER_LAYER: Final = ("layer_kv_heads", "layer_k_dim", "layer_v_dim")
_REQUIRED: Final = (
    "layers",
    "block_tokens",
    "dtype",
    "position",
    "weights_sha256",
    "tokenizer_sha256",
)
_ATTRIBUTES: Final = (*_REQUIRED, "adapter_sha256", *_UNIFORM, *_PER_LAYER)


class Dtype(StrEnum):
    """Exact encoding of one element; the variants of float8 are not interchangeable.

    Attributes:
        FLOAT16: IEEE 754 half precision, 2 octets.
        BFLOAT16: The upper half of a float32, 2 octets.
        FLOAT32: IEEE 754 single precision, 4 octets.
        FLOAT8_E4M3FN: 4 bits of exponent, 3 of mantissa; no infinities.
        FLOAT8_E4M3FNUZ: Likewise, with another bias and without negative zero.
        FLOAT8_E5M2: 5 bits of exponent, 2 of mantissa; has infinities.
        FLOAT8_E5M2FNUZ: Likewise, with another bias, without infinities and negative zero.
    """

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E5M2FNUZ = "float8_e5m2fnuz"

    @property
    def itemsize(self) -> int:
        """Octets of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE: Final = {
    Dtype.FLOAT16: 2,
    Dtype.BFLOAT16: 2,
    Dtype.FLOAT32: 4,
    Dtype.FLOAT8_E4M3FN: 1,
    Dtype.FLOAT8_E4M3FNUZ: 1,
    Dtype.FLOAT8_E5M2: 1,
    Dtype.FLOAT8_E5M2FNUZ: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What a KV cache was computed with, and how its tensors are laid out.

    Either `kv_heads` and `head_dim` are given, or the three per-layer lists in their place.

    Attributes:
        layers: Number of layers, L.
        block_tokens: Tokens of one block.
        dtype: Encoding of the elements; its name is taken too.
        position: How positions are encoded, for example ``"rope-applied"``.
        weights_sha256: Digest of the weights, 64 lower-case hex digits.
        tokenizer_sha256: Digest of the tokenizer, likewise.
        adapter_sha256: Digest of the adapter, or None without one.
        kv_heads: Key-value heads of every layer.
        head_dim: Elements of one head, the same for keys and values.
        layer_kv_heads: Key-value heads of each layer.
        layer_k_dim: Elements of one key head of each layer.
        layer_v_dim: Elements of one value head of each layer.
        extra: Further members, kept and hashed: integers, strings, booleans and flat arrays.

    Raises:
        DataError: A member is missing, out of range or of a type that has no canonical form.
        UnsupportedEncoding: ``dtype`` is none of `Dtype`.
    """

    layers: int
    block_tokens: int
    dtype: Dtype
    position: str
    weights_sha256: str
    tokenizer_sha256: str
    adapter_sha256: str | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    layer_kv_heads: tuple[int, ...] | None = None
    layer_k_dim: tuple[int, ...] | None = None
    layer_v_dim: tuple[int, ...] | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _parse_dtype(self.dtype))
        _check_count("layers", self.layers, MAX_LAYERS)
        _check_count("block_tokens", self.block_tokens, MAX_DIMENSION)
        _check_text("position", self.position)
        for name in ("weights_sha256", "tokenizer_sha256"):
            _check_digest(name, getattr(self, name))
        if self.adapter_sha256 is not None:
            _check_digest("adapter_sha256", self.adapter_sha256)
        self._check_geometry()
        for name, value in self.extra.items():
            if name in _ATTRIBUTES or name in _FIXED:
                raise DataError(f"descriptor member {name!r} cannot be an extra member")
            _check_extra(name, value)

    def _check_geometry(self) -> None:
        given = tuple(name for name in (*_UNIFORM, *_PER_LAYER) if getattr(self, name) is not None)
        if given == _UNIFORM:
            for name in _UNIFORM:
                _check_count(name, getattr(self, name), MAX_DIMENSION)
        elif given == _PER_LAYER:
            for name in _PER_LAYER:
                _check_layer_counts(name, getattr(self, name), self.layers)
        else:
            raise DataError(
                f"descriptor needs {' and '.join(_UNIFORM)}, or {', '.join(_PER_LAYER)} in their "
                f"place, got {', '.join(given) or 'neither'}"
            )

    @classmethod
    def parse(cls, members: Mapping[str, JsonValue]) -> Self:
        """Make a descriptor of the members of a JSON object.

        Raises:
            DataError: A member is missing, null, out of range or of the wrong type.
            UnsupportedEncoding: ``dtype``, ``axes`` or ``byte_order`` has an unknown value.
        """
        _check_members(members)
        known: dict[str, Any] = {name: members[name] for name in _ATTRIBUTES if name in members}
        for name in _PER_LAYER:
            if isinstance(known.get(name), list):
                known[name] = tuple(known[name])
        extra = {
            name: value
            for name, value in members.items()
            if name not in known and name not in _FIXED
        }
        return cls(**known, extra=extra)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """Decode the JSON text of a descriptor, canonical or not.

        Raises:
            DataError: Not a strict JSON object (duplicates, floats, depth, size), or as `parse`.
        """
        try:
            members = decode_json(data, _LIMITS)
        except ValueError as error:
            raise DataError(f"descriptor: {error}") from error
        if not isinstance(members, dict):
            raise DataError("descriptor is not a JSON object")
        return cls.parse(members)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the members as JSON values, absent ones left out."""
        members: dict[str, JsonValue] = {}
        for name in _ATTRIBUTES:
            value = getattr(self, name)
            if value is not None:
                members[name] = (
                    list(cast("tuple[int, ...]", value)) if isinstance(value, tuple) else value
                )
        return {**members, "dtype": self.dtype.value, **_FIXED, **self.extra}

    def canonical(self) -> bytes:
        """Return the canonical JSON form (RFC 8785), over which identities are computed."""
        return canonical_json(self.to_json())


def _check_members(members: Mapping[str, JsonValue]) -> None:
    for name in (*_REQUIRED, *_FIXED):
        if name not in members:
            raise DataError(f"descriptor lacks {name}")
    for name, value in members.items():
        if value is None:
            raise DataError(f"descriptor member {name!r} is null; leave it out instead")
    for name, value in _FIXED.items():
        if members[name] != value:
            raise UnsupportedEncoding(f"descriptor member {name} must be {value!r}")


def _parse_dtype(value: JsonValue) -> Dtype:
    try:
        return Dtype(cast("str", value))
    except ValueError:
        raise UnsupportedEncoding(
            f"descriptor member dtype must be one of {', '.join(Dtype)}"
        ) from None


def _check_count(name: str, value: object, limit: int) -> None:
    if type(value) is not int or not 1 <= value <= limit:
        raise DataError(f"descriptor member {name} must be an integer 1..{limit}")


def _check_layer_counts(name: str, value: object, layers: int) -> None:
    counts = cast("tuple[object, ...]", value)
    if not isinstance(value, tuple) or len(counts) != layers:
        raise DataError(f"descriptor member {name} must list {layers} integers, one per layer")
    for layer_index, count in enumerate(counts):
        if count == 0:
            raise DataError(
                f"layer {layer_index} has no key-value cache ({name} is 0): recurrent, linear or "
                "shared layers are not covered, and a cache without them would be wrong"
            )
        _check_count(f"{name}[{layer_index}]", count, MAX_DIMENSION)


def _check_text(name: str, value: object) -> None:
    try:
        cast("str", value).encode()
    except (AttributeError, UnicodeEncodeError):
        raise DataError(f"descriptor member {name!r} must be a Unicode string") from None


def _check_digest(name: str, value: object) -> None:
    if not isinstance(value, str) or not _SHA256_HEX.fullmatch(value):
        raise DataError(f"descriptor member {name} must be 64 lower-case hex digits")


def _check_extra(name: str, value: JsonValue) -> None:
    _check_text(name, name)
    for element in value if isinstance(value, list) else [value]:
        if isinstance(element, str):
            _check_text(name, element)
        elif not isinstance(element, int) or abs(element) > MAX_SAFE_INTEGER:
            raise DataError(
                f"descriptor member {name!r} must be an integer below 2^53, a string, a boolean "
                "or a flat array of these"
            )
