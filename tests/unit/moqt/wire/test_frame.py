import pytest

from kvcs.errors import LocalProtocolError, RemoteProtocolError
from kvcs.moqt.codepoints import MessageType
from kvcs.moqt.wire import MAX_BODY_BYTES, Goaway, Parameters, RequestUpdate, Token, decode_message
from kvcs.moqt.wire.frame import decode_frame, encode_frame
from kvcs.varint import NeedMore


def test_frame_of_the_largest_body_goes_there_and_back():
    body = bytes(MAX_BODY_BYTES)

    encoded = encode_frame(MessageType.SETUP, body[:5], body[5:])
    assert encoded[:4] == b"\xaf\x00\xff\xff"
    assert decode_frame(encoded) == (MessageType.SETUP, body, len(encoded))


def test_body_one_octet_too_large_is_a_local_error():
    with pytest.raises(LocalProtocolError, match="SETUP with 65536 octets, at most 65535"):
        encode_frame(MessageType.SETUP, bytes(MAX_BODY_BYTES + 1))


def test_message_above_65535_octets_is_a_local_error():
    token = Token.use_value(bytes(MAX_BODY_BYTES))
    update = RequestUpdate(request_id=0, parameters=Parameters(authorization_tokens=(token,)))

    with pytest.raises(LocalProtocolError, match=r"REQUEST_UPDATE with .* at most 65535"):
        update.encode()


def test_unknown_type_is_refused_before_its_length_arrives():
    with pytest.raises(RemoteProtocolError, match="unknown message type 0x7f"):
        decode_message(b"\x7f")


def test_several_messages_are_decoded_one_by_one_from_a_bytearray():
    first, second = Goaway(uri="moqt://a/b"), Goaway(timeout_ms=5)
    data = bytearray(first.encode() + second.encode())

    message, offset = decode_message(data)
    assert message == first
    assert decode_message(data, offset) == (second, len(data))
    with pytest.raises(NeedMore):
        decode_message(data, len(data))
