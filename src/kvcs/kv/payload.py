"""The payload of an Object: a header of 68 octets that says where the Data belongs, and Data.

Data of an Object reaches nobody before `verify_payload` has compared every field of the header
with what the reader expects at this Location, and the digest with the octets. `BlockSeries` does
that for one Object after the other, and needs one comparison where all is well.

Source: KVCS draft, "Object Payload" and "Verification and Recovery".
"""

import hashlib
import struct
from collections.abc import Buffer
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from kvcs.errors import IntegrityError

__all__ = (
    "HEADER_BYTES",
    "BlockPlace",
    "BlockSeries",
    "Expectation",
    "IntegrityReason",
    "PayloadHeader",
    "encode_header",
    "encode_payload",
    "verify_payload",
)

HEADER_BYTES: Final = 68

_MAGIC: Final = 0x4B564F31
_VERSION: Final = 1
# Magic, Version, Component, Flags, Layer, Block Index, Token Start, Token Count, Codec, Reserved,
# Data Length, Data Digest.
_HEADER: Final = struct.Struct(">IBBHIIQIHHI32s")
# The same without the digest, which begins where it ends.
_FIELDS: Final = struct.Struct(">IBBHIIQIHHI")
_DIGEST_AT: Final = _FIELDS.size


class IntegrityReason(StrEnum):
    """Why an Object was discarded; the values of `IntegrityError.reason`, in order of checking."""

    LOCATION = "location"
    TRUNCATED = "truncated"
    MAGIC = "magic"
    VERSION = "version"
    COMPONENT = "component"
    CODEC = "codec"
    LAYER = "layer"
    BLOCK_INDEX = "block_index"
    TOKEN_START = "token_start"  # noqa: S105 - a position, not a secret
    TOKEN_COUNT = "token_count"  # noqa: S105 - a number, not a secret
    PAYLOAD_LENGTH = "payload_length"
    DATA_LENGTH = "data_length"
    LISTED_DIGEST = "listed_digest"
    DATA_DIGEST = "data_digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlace:
    """What one Object is: the fields of its header that do not depend on the Data.

    Attributes:
        component: Value of the registry "KVCS Components".
        codec: Value of the registry "KVSP Codecs".
        layer_index: Layer; equal to the Group ID.
        block_index: Index within the segment; equal to the Object ID.
        token_start: Absolute position of the first token of the block.
        token_count: Tokens of the block.
    """

    component: int
    codec: int
    layer_index: int
    block_index: int
    token_start: int
    token_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadHeader:
    """Header of a payload, as received; Flags and Reserved are ignored.

    Attributes:
        place: What the Object claims to be.
        data_length: Octets of Data.
        digest: SHA-256 of Data.
    """

    place: BlockPlace
    data_length: int
    digest: bytes

    @classmethod
    def decode(cls, payload: bytes | memoryview) -> Self:
        """Decode the first 68 octets of `payload`.

        Raises:
            IntegrityError: Too short, another Magic, or another Version.
        """
        if len(payload) < HEADER_BYTES:
            raise _refused(IntegrityReason.TRUNCATED, HEADER_BYTES, len(payload))
        magic, version, component, _, layer, block, start, count, codec, _, length, digest = (
            _HEADER.unpack_from(payload)
        )
        if magic != _MAGIC:
            raise _refused(IntegrityReason.MAGIC, _MAGIC, magic)
        if version != _VERSION:
            raise _refused(IntegrityReason.VERSION, _VERSION, version)
        place = BlockPlace(
            component=component,
            codec=codec,
            layer_index=layer,
            block_index=block,
            token_start=start,
            token_count=count,
        )
        return cls(place=place, data_length=length, digest=digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a reader expects at one Location of one track.

    Attributes:
        place: What the Object must be.
        data_bytes: Octets of Data, or None when the codec does not fix them.
        digest: Data Digest that the manifest lists, or None when it lists none.
    """

    place: BlockPlace
    data_bytes: int | None
    digest: bytes | None = None


def encode_payload(place: BlockPlace, *data: Buffer) -> tuple[bytes, bytes]:
    """Encode one Object payload.

    Args:
        place: What the Object is.
        data: Data, in one or several contiguous parts (k, then v, for Component kv).

    Returns:
        The payload, copied once, and its Data Digest.
    """
    header, digest = encode_header(place, *data)
    return b"".join((header, *data)), digest


def encode_header(place: BlockPlace, *data: Buffer) -> tuple[bytes, bytes]:
    """Encode the header that stands before `data`; return it and the Data Digest."""
    digest = hashlib.sha256()
    data_length = 0
    for part in data:
        digest.update(part)
        data_length += memoryview(part).nbytes
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        place.component,
        0,
        place.layer_index,
        place.block_index,
        place.token_start,
        place.token_count,
        place.codec,
        0,
        data_length,
        digest.digest(),
    )
    return header, digest.digest()


def verify_payload(payload: bytes | memoryview, expectation: Expectation) -> memoryview:
    """Verify one Object payload completely.

    Returns:
        Data, a read-only view of `payload`.

    Raises:
        IntegrityError: A check failed; the Object is to be treated as missing. The reason is an
            `IntegrityReason`, the first in the order of that list.
    """
    header = _check_header(payload, len(payload), expectation)
    data = memoryview(payload).toreadonly()[HEADER_BYTES:]
    _check_digest(header, hashlib.sha256(data).digest())
    return data


def _check_header(head: bytes | memoryview, length: int, expectation: Expectation) -> PayloadHeader:
    """Check the header of a payload of `length` octets, of which `head` holds the first."""
    header = PayloadHeader.decode(head)
    if header.place != expectation.place:
        raise _misplaced(header.place, expectation.place)
    payload_length = HEADER_BYTES + header.data_length
    if length != payload_length:
        raise _refused(IntegrityReason.PAYLOAD_LENGTH, payload_length, length)
    if expectation.data_bytes not in (None, header.data_length):
        raise _refused(IntegrityReason.DATA_LENGTH, expectation.data_bytes, header.data_length)
    if expectation.digest not in (None, header.digest):
        raise IntegrityError(
            IntegrityReason.LISTED_DIGEST, "the manifest lists another Data Digest"
        )
    return header


def _check_digest(header: PayloadHeader, digest: bytes) -> None:
    if digest != header.digest:
        raise IntegrityError(IntegrityReason.DATA_DIGEST, "Data does not match its Data Digest")


class BlockSeries:
    """The Objects of one layer of one track, whose places differ by the block alone.

    Args:
        first: Place of block 0.
        data_bytes: Octets of Data of each, or None when the codec does not fix them.

    Attributes:
        payload_length: Octets of each payload, or None when the codec does not fix them.
    """

    __slots__ = ("_data_bytes", "_first", "payload_length")

    def __init__(self, first: BlockPlace, data_bytes: int | None) -> None:
        self._first = first
        self._data_bytes = data_bytes
        self.payload_length = None if data_bytes is None else HEADER_BYTES + data_bytes

    def expectation(self, block_index: int) -> Expectation:
        """Return what the Object of a block must be, but for a digest that is listed."""
        first = self._first
        place = replace(
            first,
            block_index=block_index,
            token_start=first.token_start + block_index * first.token_count,
        )
        return Expectation(place=place, data_bytes=self._data_bytes)

    def check(self, head: bytes, length: int, digest: bytes, block_index: int) -> None:
        """Check all of the payload of one block, as `verify_payload` does.

        Args:
            head: Its first 68 octets, or all of them if it is shorter.
            length: Its octets.
            digest: SHA-256 of what follows the header.
            block_index: Index of the block in its segment.

        Raises:
            IntegrityError: As `verify_payload`.
        """
        if (
            length == self.payload_length
            and head[_DIGEST_AT:] == digest
            and head[:_DIGEST_AT] == self._fields(block_index)
        ):
            return
        # Something is wrong, or Flags or Reserved are not zero: the long way tells.
        _check_digest(_check_header(head, length, self.expectation(block_index)), digest)

    def _fields(self, block_index: int) -> bytes:
        """Return the header before the digest, as we write it."""
        first = self._first
        return _FIELDS.pack(
            _MAGIC,
            _VERSION,
            first.component,
            0,
            first.layer_index,
            block_index,
            first.token_start + block_index * first.token_count,
            first.token_count,
            first.codec,
            0,
            self._data_bytes,
        )


def _misplaced(got: BlockPlace, expected: BlockPlace) -> IntegrityError:
    fields = (
        (IntegrityReason.COMPONENT, expected.component, got.component),
        (IntegrityReason.CODEC, expected.codec, got.codec),
        (IntegrityReason.LAYER, expected.layer_index, got.layer_index),
        (IntegrityReason.BLOCK_INDEX, expected.block_index, got.block_index),
        (IntegrityReason.TOKEN_START, expected.token_start, got.token_start),
        (IntegrityReason.TOKEN_COUNT, expected.token_count, got.token_count),
    )
    reason, wanted, found = next(field for field in fields if field[1] != field[2])
    return _refused(reason, wanted, found)


def _refused(reason: IntegrityReason, expected: int | None, got: int) -> IntegrityError:
    return IntegrityError(reason, f"Object payload: {reason} is {got}, expected {expected}")
