"""The frame of every control message: Type, 16-bit Length, body.

Source: MOQT draft 22, Section 9.
"""

from typing import Final

from kvcs.errors import LocalProtocolError
from kvcs.moqt.codepoints import MessageType
from kvcs.moqt.wire.buffer import Reader, violation
from kvcs.varint import encode_vi64

__all__ = ("MAX_BODY_BYTES", "decode_frame", "encode_frame")

MAX_BODY_BYTES: Final = 0xFFFF


def encode_frame(message_type: MessageType, *parts: bytes) -> bytes:
    """Encode a whole message from the parts of its body.

    Raises:
        LocalProtocolError: The body does not fit the 16-bit Length.
    """
    body = b"".join(parts)
    if len(body) > MAX_BODY_BYTES:
        raise LocalProtocolError(
            f"{message_type.name} with {len(body)} octets, at most {MAX_BODY_BYTES}"
        )
    return encode_vi64(message_type) + len(body).to_bytes(2) + body


def decode_frame(
    data: bytes | bytearray | memoryview, offset: int = 0
) -> tuple[MessageType, bytes, int]:
    """Split off one message; return its type, its body and the offset after it.

    Raises:
        NeedMore: `data` ends inside the message.
        RemoteProtocolError: The type is unknown; it is refused before its body arrives.
    """
    reader = Reader(data, offset)
    number = reader.vi64()
    try:
        message_type = MessageType(number)
    except ValueError:
        raise violation(f"unknown message type {number:#x}") from None
    return message_type, reader.take(reader.u16()), reader.offset
