"""How Objects, and what is known of a Track, stand on disk.

An Object is one record: a header of fixed length, the properties, the payload. The header
begins with a magic number and a SHA-256 digest over all that follows it, and names the Track
by a random key that was made when the Track first came to this disk. So whatever is found at
a place is either the Object that was written there or nothing: a torn write, a changed octet
or what an older file left behind does not pass. All integers are big-endian.

| octets | what |
|---|---|
| 4 | ``KVR1`` |
| 32 | SHA-256 over the rest of the record |
| 16 | key of the Track |
| 8, 8, 8 | Group ID, Object ID, Subgroup ID (0 for none) |
| 1, 1, 1 | 1 if there is a Subgroup ID, Publisher Priority, Object Status |
| 4, 4 | octets of properties, octets of payload |

`Knowledge` is one block of octets with its own digest, kept in the index.
"""

from collections.abc import Iterator
from hashlib import sha256
from struct import Struct
from typing import Final

from kvcs.errors import RemoteProtocolError
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.track.interval import to_location, to_position
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties

__all__ = (
    "HEADER_BYTES",
    "KEY_BYTES",
    "decode_knowledge",
    "decode_record",
    "encode_header",
    "encode_knowledge",
    "record_bytes",
)

_MAGIC: Final = b"KVR1"
_DIGEST_BYTES: Final = 32
_FIELDS: Final = Struct(">16sQQQBBBII")
KEY_BYTES: Final = 16
HEADER_BYTES: Final = len(_MAGIC) + _DIGEST_BYTES + _FIELDS.size

# Octets of properties, runs, ends of Groups; then whether Largest and the end are known.
_COUNTS: Final = Struct(">IIIBB")
_POSITION_BYTES: Final = 16


def record_bytes(obj: Object) -> int:
    """Return the octets of the record of an Object."""
    return HEADER_BYTES + len(obj.properties.raw) + len(obj.payload)


def encode_header(key: bytes, obj: Object) -> bytes:
    """Encode what stands before the properties and the payload of an Object.

    Args:
        key: Key of the Track, `KEY_BYTES` octets.
        obj: The Object.
    """
    properties, payload = obj.properties.raw, obj.payload
    fields = _FIELDS.pack(
        key,
        obj.group_id,
        obj.object_id,
        obj.subgroup_id or 0,
        obj.subgroup_id is not None,
        obj.publisher_priority,
        obj.status,
        len(properties),
        len(payload),
    )
    digest = sha256(fields)
    digest.update(properties)
    digest.update(payload)
    return _MAGIC + digest.digest() + fields


def decode_record(key: bytes, position: int, head: bytes, payload: bytes) -> Object | None:
    """Decode a record, or return None if it is not the undamaged one that is looked for.

    Args:
        key: Key of the Track.
        position: Where the Object belongs.
        head: Header and properties.
        payload: The rest.
    """
    header = head[:HEADER_BYTES]
    if len(header) < HEADER_BYTES or header[: len(_MAGIC)] != _MAGIC:
        return None
    fields = header[len(_MAGIC) + _DIGEST_BYTES :]
    raw = head[HEADER_BYTES:]
    digest = sha256(fields)
    digest.update(raw)
    digest.update(payload)
    if digest.digest() != header[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES]:
        return None
    found, group_id, object_id, subgroup_id, has_subgroup, priority, status, *sizes = (
        _FIELDS.unpack(fields)
    )
    if found != key or group_id << 64 | object_id != position or sizes != [len(raw), len(payload)]:
        return None
    try:
        return Object(
            group_id=group_id,
            object_id=object_id,
            subgroup_id=subgroup_id if has_subgroup else None,
            publisher_priority=priority,
            status=ObjectStatus(status),
            properties=Properties.decode(raw) if raw else EMPTY_PROPERTIES,
            payload=payload,
        )
    except (ValueError, RemoteProtocolError):
        # The digest is right, and what was written is no Object: not by this program.
        return None


def encode_knowledge(key: bytes, name: bytes, knowledge: Knowledge) -> bytes:
    """Encode what is known of a Track, its digest first.

    Args:
        key: Key of the Track.
        name: Encoded Full Track Name, which the digest binds too.
        knowledge: What is known.
    """
    body = b"".join(_knowledge_parts(knowledge))
    return _knowledge_digest(key, name, body) + body


def decode_knowledge(key: bytes, name: bytes, data: bytes) -> Knowledge | None:
    """Decode what is known of a Track, or return None if it is damaged."""
    body = data[_DIGEST_BYTES:]
    if _knowledge_digest(key, name, body) != data[:_DIGEST_BYTES]:
        return None
    if len(body) < _COUNTS.size:
        return None
    properties_bytes, runs, ends, has_largest, has_end = _COUNTS.unpack_from(body)
    offset = _COUNTS.size
    raw = body[offset : offset + properties_bytes]
    offset += properties_bytes
    positions = [
        int.from_bytes(body[place : place + _POSITION_BYTES])
        for place in range(offset, len(body), _POSITION_BYTES)
    ]
    if len(positions) != 2 + 2 * runs + 3 * ends:
        # The digest is right, and what was written says nothing: not by this program.
        return None
    largest, end, *rest = positions
    absent, group_ends = rest[: 2 * runs], rest[2 * runs :]
    try:
        properties = Properties.decode_track(raw)
    except RemoteProtocolError:
        return None
    return Knowledge(
        properties=properties,
        largest=to_location(largest) if has_largest else None,
        end=to_location(end) if has_end else None,
        absent=tuple(zip(absent[::2], absent[1::2], strict=True)),
        group_ends=tuple(zip(group_ends[::3], group_ends[1::3], group_ends[2::3], strict=True)),
    )


def _knowledge_parts(knowledge: Knowledge) -> Iterator[bytes]:
    raw = knowledge.properties.raw
    largest, end = knowledge.largest, knowledge.end
    yield _COUNTS.pack(
        len(raw),
        len(knowledge.absent),
        len(knowledge.group_ends),
        largest is not None,
        end is not None,
    )
    yield raw
    for location in (largest, end):
        yield _octets(0 if location is None else to_position(location))
    for run in knowledge.absent:
        yield from map(_octets, run)
    for group_end in knowledge.group_ends:
        yield from map(_octets, group_end)


def _octets(position: int) -> bytes:
    return position.to_bytes(_POSITION_BYTES)


def _knowledge_digest(key: bytes, name: bytes, body: bytes) -> bytes:
    return sha256(b"".join((key, len(name).to_bytes(4), name, body))).digest()
