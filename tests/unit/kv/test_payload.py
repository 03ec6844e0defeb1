"""The header of 68 octets, and every check before Data may be used."""

import hashlib
from array import array
from dataclasses import replace

import pytest

from kvcs.errors import IntegrityError
from kvcs.kv import (
    HEADER_BYTES,
    BlockPlace,
    BlockSeries,
    Component,
    Expectation,
    IntegrityReason,
    PayloadHeader,
    encode_payload,
    layer_digest,
    verify_payload,
)

# KVCS draft, "Encoding Examples": a k Object at Group 0, Object 1, with 16 octets of Data.
HEADER = bytes.fromhex(
    "4b564f310101000000000000000000010000000000000004000000040001000000000010"
    "be45cb2605bf36bebde684841a28f0fd43c69850a3dce5fedba69928ee3a8991"
)
DATA = bytes(range(16))
DIGEST = HEADER[36:]
PLACE = BlockPlace(
    component=Component.K, codec=1, layer_index=0, block_index=1, token_start=4, token_count=4
)
EXPECTATION = Expectation(place=PLACE, data_bytes=16, digest=DIGEST)
SERIES = BlockSeries(replace(PLACE, block_index=0, token_start=0), 16)


def test_a_payload_is_the_published_vector():
    payload, digest = encode_payload(PLACE, DATA)

    assert payload == HEADER + DATA
    assert digest == DIGEST
    assert len(HEADER) == HEADER_BYTES == 68


def test_the_header_of_the_published_vector_is_decoded():
    header = PayloadHeader.decode(HEADER + DATA)

    assert header == PayloadHeader(place=PLACE, data_length=16, digest=DIGEST)


@pytest.mark.parametrize("data_bytes", [16, None])
@pytest.mark.parametrize("digest", [DIGEST, None])
def test_a_good_payload_gives_a_read_only_view_of_its_data(data_bytes, digest):
    payload = bytearray(HEADER + DATA)

    data = verify_payload(
        memoryview(payload), Expectation(place=PLACE, data_bytes=data_bytes, digest=digest)
    )

    assert data == DATA
    assert data.readonly
    assert data.obj is payload


def test_an_empty_data_is_legal_where_the_codec_allows_it():
    payload, _ = encode_payload(PLACE)

    assert verify_payload(payload, Expectation(place=PLACE, data_bytes=None)) == b""


def test_data_may_come_in_parts_of_any_element():
    k, v = bytes(range(8)), bytes(range(8, 16))
    place = replace(PLACE, component=Component.KV)

    payload, digest = encode_payload(place, memoryview(k), array("H", v))

    assert payload[HEADER_BYTES:] == k + v
    assert digest == layer_digest(k, v) == hashlib.sha256(k + v).digest()
    assert verify_payload(payload, Expectation(place=place, data_bytes=16)) == k + v


def test_the_largest_values_fit_their_fields():
    place = BlockPlace(
        component=255,
        codec=2**16 - 1,
        layer_index=2**32 - 1,
        block_index=2**32 - 1,
        token_start=2**64 - 1,
        token_count=2**32 - 1,
    )

    payload, _ = encode_payload(place, b"x")

    assert PayloadHeader.decode(payload).place == place


@pytest.mark.parametrize("offset", [6, 7, 30, 31], ids=["flags", "flags", "reserved", "reserved"])
def test_flags_and_reserved_are_ignored(offset):
    payload = bytearray(HEADER + DATA)
    payload[offset] = 0xFF

    assert verify_payload(bytes(payload), EXPECTATION) == DATA


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (0, "magic"),
        (3, "magic"),
        (4, "version"),
        (5, "component"),
        (8, "layer"),
        (11, "layer"),
        (12, "block_index"),
        (15, "block_index"),
        (16, "token_start"),
        (23, "token_start"),
        (24, "token_count"),
        (27, "token_count"),
        (28, "codec"),
        (29, "codec"),
        (32, "payload_length"),
        (35, "payload_length"),
        (36, "listed_digest"),
        (67, "listed_digest"),
        (68, "data_digest"),
        (83, "data_digest"),
    ],
)
def test_a_changed_octet_is_found_and_the_reason_named(offset, reason):
    payload = bytearray(HEADER + DATA)
    payload[offset] ^= 0x80

    with pytest.raises(IntegrityError) as caught:
        verify_payload(bytes(payload), EXPECTATION)

    assert caught.value.reason == reason
    assert caught.value.reason in set(IntegrityReason)


@pytest.mark.parametrize("length", [0, 1, 67])
def test_a_payload_shorter_than_its_header_is_truncated(length):
    with pytest.raises(IntegrityError) as caught:
        verify_payload((HEADER + DATA)[:length], EXPECTATION)

    assert caught.value.reason == IntegrityReason.TRUNCATED


@pytest.mark.parametrize("payload", [HEADER, HEADER + DATA[:-1], HEADER + DATA + b"x"])
def test_header_and_data_length_account_for_the_whole_payload(payload):
    with pytest.raises(IntegrityError) as caught:
        verify_payload(payload, EXPECTATION)

    assert caught.value.reason == IntegrityReason.PAYLOAD_LENGTH


@pytest.mark.parametrize("data", [b"", DATA[:-1], DATA + b"x"])
def test_a_consistent_payload_of_another_size_does_not_fit_the_layout(data):
    payload, _ = encode_payload(PLACE, data)

    with pytest.raises(IntegrityError) as caught:
        verify_payload(payload, EXPECTATION)

    assert caught.value.reason == IntegrityReason.DATA_LENGTH


def test_a_v_object_in_the_k_track_is_found():
    payload, digest = encode_payload(replace(PLACE, component=Component.V), DATA)

    with pytest.raises(IntegrityError) as caught:
        verify_payload(payload, replace(EXPECTATION, digest=digest))

    assert caught.value.reason == IntegrityReason.COMPONENT


def test_other_data_with_its_own_digest_is_found_by_the_list():
    payload, _ = encode_payload(PLACE, DATA[::-1])

    with pytest.raises(IntegrityError) as caught:
        verify_payload(payload, EXPECTATION)

    assert caught.value.reason == IntegrityReason.LISTED_DIGEST
    assert verify_payload(payload, replace(EXPECTATION, digest=None)) == DATA[::-1]


def test_without_a_list_the_digest_of_the_header_still_counts():
    payload = HEADER[:-1] + b"\0" + DATA

    with pytest.raises(IntegrityError) as caught:
        verify_payload(payload, replace(EXPECTATION, digest=None))

    assert caught.value.reason == IntegrityReason.DATA_DIGEST


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"component": Component.V, "codec": 2}, "component"),
        ({"codec": 2, "layer_index": 1}, "codec"),
        ({"layer_index": 1, "block_index": 2}, "layer"),
        ({"block_index": 2, "token_start": 8}, "block_index"),
        ({"token_start": 8, "token_count": 8}, "token_start"),
        ({"token_count": 8}, "token_count"),
    ],
)
def test_the_first_reason_in_order_is_named_with_both_values(change, reason):
    expected = replace(EXPECTATION, place=replace(PLACE, **change))

    with pytest.raises(IntegrityError) as caught:
        verify_payload(HEADER + DATA + b"excess", expected)

    assert caught.value.reason == reason
    assert f"{reason} is " in str(caught.value)
    assert "expected" in str(caught.value)


def test_no_error_shows_data():
    with pytest.raises(IntegrityError) as caught:
        verify_payload(HEADER + b"secret 16 octets", EXPECTATION)

    assert "secret" not in repr(caught.value)


def test_the_reasons_are_a_closed_set():
    assert [str(reason) for reason in IntegrityReason] == [
        "location",
        "truncated",
        "magic",
        "version",
        "component",
        "codec",
        "layer",
        "block_index",
        "token_start",
        "token_count",
        "payload_length",
        "data_length",
        "listed_digest",
        "data_digest",
    ]


def series_outcome(payload, block_index):
    """Return Data, or the reason for which a series refuses them."""
    body = payload[HEADER_BYTES:]
    digest = hashlib.sha256(body).digest()

    def check():
        SERIES.check(payload[:HEADER_BYTES], len(payload), digest, block_index)
        return body

    return outcome(check)


def outcome(verify):
    try:
        return bytes(verify())
    except IntegrityError as error:
        return error.reason


@pytest.mark.parametrize("offset", range(len(HEADER + DATA)))
def test_a_series_judges_a_changed_octet_as_the_single_check_does(offset):
    payload = bytearray(HEADER + DATA)
    payload[offset] ^= 0x01
    expected = replace(EXPECTATION, digest=None)

    judged = series_outcome(bytes(payload), 1)

    assert judged == outcome(lambda: verify_payload(bytes(payload), expected))
    assert (judged == DATA) == (offset in (6, 7, 30, 31))


@pytest.mark.parametrize(
    "payload", [b"", HEADER[:67], HEADER, HEADER + DATA[:-1], HEADER + DATA * 2]
)
def test_a_series_judges_another_length_as_the_single_check_does(payload):
    judged = series_outcome(payload, 1)

    assert judged == outcome(lambda: verify_payload(payload, replace(EXPECTATION, digest=None)))
    assert judged in set(IntegrityReason)


def test_a_series_takes_each_block_in_its_own_place_alone():
    payload, _ = encode_payload(replace(PLACE, block_index=3, token_start=12), DATA)

    assert SERIES.expectation(1) == replace(EXPECTATION, digest=None)
    assert series_outcome(payload, 3) == DATA
    assert series_outcome(payload, 1) == IntegrityReason.BLOCK_INDEX


def test_a_series_of_no_fixed_size_takes_any():
    series = BlockSeries(replace(PLACE, block_index=0, token_start=0), None)

    for data in (b"", DATA[:5]):
        payload, digest = encode_payload(PLACE, data)
        series.check(payload[:HEADER_BYTES], len(payload), digest, 1)

    assert series.payload_length is None
