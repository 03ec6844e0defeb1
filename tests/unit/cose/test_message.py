import itertools
import time
import tracemalloc

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcs.cose import (
    Algorithm,
    CoseLimits,
    Curve,
    MacKey,
    SigningKey,
    VerifyingKey,
    encode_mac0,
    encode_sign1,
    open_mac0,
    open_sign1,
)
from kvcs.errors import ConfigError, NotAuthentic

PAYLOAD = b'{"kvcs": 1}'
SIGNING = [Algorithm.ES256, Algorithm.EDDSA, Algorithm.ESP256, Algorithm.ED25519]
P256 = SigningKey(b"p", Algorithm.ES256, bytes(31) + b"\x07")
ED25519 = SigningKey(b"e", Algorithm.EDDSA, bytes(range(32)))
BIG = CoseLimits(max_bytes=2**25)
MAC = MacKey(b"m", bytes(range(32)))


def signed(key=P256, *, protected=None, unprotected=None, payload=PAYLOAD, tag=18):
    """Sign with whatever headers; by the rules of RFC 9052, written down once more."""
    protected = cbor2.dumps({1: int(key.algorithm)} if protected is None else protected)
    proof = key.sign(cbor2.dumps(["Signature1", protected, b"", payload]))
    array = [protected, {4: key.kid} if unprotected is None else unprotected, payload, proof]
    return cbor2.dumps(cbor2.CBORTag(tag, array) if tag else array)


def refusal(data, keys=(P256.public, ED25519.public), limits=None):
    with pytest.raises(NotAuthentic) as caught:
        open_sign1(data, keys, limits or CoseLimits())
    return caught.value.reason


@pytest.mark.parametrize("algorithm", SIGNING)
def test_what_is_signed_opens_with_the_public_key_alone(algorithm):
    key = SigningKey.generate(b"kid", algorithm)

    opened = open_sign1(encode_sign1(PAYLOAD, key), [P256.public, key.public])

    assert opened.payload == PAYLOAD
    assert opened.kid == b"kid"
    assert opened.key == key.public


@pytest.mark.parametrize("algorithm", SIGNING)
def test_a_private_key_comes_back_from_its_octets(algorithm):
    key = SigningKey.generate(b"kid", algorithm)

    again = SigningKey(b"kid", algorithm, key.private_bytes)

    assert again.public == key.public
    assert open_sign1(encode_sign1(PAYLOAD, again), [key.public]).payload == PAYLOAD


def test_the_envelope_is_written_as_the_draft_asks():
    message = cbor2.loads(encode_sign1(PAYLOAD, P256))

    assert message.tag == 18
    assert cbor2.loads(message.value[0]) == {1: -7}
    assert message.value[1] == {4: b"p"}
    assert message.value[2] == PAYLOAD


@pytest.mark.parametrize("cwt", [False, True])
def test_a_mac_opens_with_its_secret_and_with_no_other(cwt):
    data = encode_mac0(PAYLOAD, MAC, cwt=cwt)

    assert open_mac0(data, [MAC]).payload == PAYLOAD
    with pytest.raises(NotAuthentic) as caught:
        open_mac0(data, [MacKey(b"m", bytes(32))])
    assert caught.value.reason == "signature"


@pytest.mark.parametrize(
    "prefix", [b"", bytes((0xD2,)), bytes((0xD8, 61, 0xD2)), bytes((0xD8, 61))]
)
def test_untagged_and_cwt_tagged_envelopes_open_as_well(prefix):
    bare = signed(tag=None)

    assert open_sign1(prefix + bare, [P256.public]).payload == PAYLOAD


def test_a_key_identifier_may_stand_under_protection():
    data = signed(protected={1: -7, 4: b"p"}, unprotected={})

    assert open_sign1(data, [P256.public, ED25519.public]).kid == b"p"


def test_headers_that_change_nothing_are_passed_over():
    data = signed(protected={1: -7, 3: "json", 16: 0}, unprotected={4: b"p", "note": [1, {2: b""}]})

    assert open_sign1(data, [P256.public]).payload == PAYLOAD


def test_without_a_key_identifier_every_key_of_the_algorithm_is_tried():
    data = signed(unprotected={})

    assert open_sign1(data, [ED25519.public, P256.public]).key == P256.public


def test_keys_that_share_an_identifier_are_all_tried():
    others = [SigningKey.generate(b"p").public for _ in range(7)]

    assert open_sign1(signed(), [*others, P256.public]).key == P256.public


@pytest.mark.parametrize(
    ("kid", "shown"),
    [
        (b"site-c", "site-c"),
        (b"a\x1b[31m", "611b5b33316d"),
        (b"\xff", "ff"),
        (b"", ""),
        (b"x" * 40, "x" * 32 + "…"),
    ],
)
def test_the_key_that_is_not_trusted_is_named_as_fits_a_line(kid, shown):
    with pytest.raises(NotAuthentic) as caught:
        open_sign1(signed(unprotected={4: kid}), [ED25519.public], CoseLimits())

    assert caught.value.text == f"no trusted key has the key identifier {shown}"


def test_more_keys_than_may_be_tried_are_refused():
    others = [SigningKey.generate(b"p").public for _ in range(2)]

    reason = refusal(signed(), [*others, P256.public], CoseLimits(max_attempts=2))

    assert reason == "key"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (signed(unprotected={4: b"stranger"}), "key"),
        (signed(SigningKey.generate(b"p")), "signature"),
        (signed(payload=b"x").replace(b"\x41x", b"\x41y"), "signature"),
        (signed(protected={1: -8}), "algorithm"),
        (signed(protected={1: -257}), "algorithm"),
        (signed(protected={1: "none"}), "algorithm"),
        (signed(protected={1: None}), "algorithm"),
        (signed(protected={1: True}), "algorithm"),
        (signed(protected={}), "algorithm"),
        (signed(protected={}, unprotected={1: -7, 4: b"p"}), "algorithm"),
        (signed(protected={1: 5}), "algorithm"),
        (signed(protected={1: -7}, unprotected={1: -7, 4: b"p"}), "envelope"),
        (signed(protected={1: -7, 2: [16], 16: 1}), "critical"),
        (signed(unprotected={2: [4], 4: b"p"}), "critical"),
        (signed(unprotected={4: "p"}), "envelope"),
        (signed(unprotected={4: bytes(2000)}), "envelope"),
        (signed(protected={1: -7, 99: bytes(2000)}), "envelope"),
        (signed(unprotected=dict.fromkeys(range(100), 0)), "envelope"),
        (signed(tag=17), "envelope"),
        (signed(tag=98), "envelope"),
        (signed() + b"\x00", "envelope"),
        (signed()[:-1], "envelope"),
        (b"", "envelope"),
        (PAYLOAD, "envelope"),
        (
            cbor2.dumps(cbor2.CBORTag(18, [cbor2.dumps({1: -7}), {4: b"p"}, None, bytes(64)])),
            "envelope",
        ),
        (cbor2.dumps(cbor2.CBORTag(18, [{1: -7}, {4: b"p"}, PAYLOAD, bytes(64)])), "envelope"),
        (cbor2.dumps(cbor2.CBORTag(18, [b"", {1: -7, 4: b"p"}, PAYLOAD, b""])), "envelope"),
        (
            cbor2.dumps(cbor2.CBORTag(18, [cbor2.dumps({1: -7}), {4: b"p"}, PAYLOAD, b""])),
            "signature",
        ),
        (
            cbor2.dumps(cbor2.CBORTag(18, [cbor2.dumps({1: -7}), {4: b"p"}, PAYLOAD, bytes(64)])),
            "signature",
        ),
    ],
    # Signatures differ from run to run, and names of tests are not to.
    ids=itertools.count(),
)
def test_what_nobody_trusted_signed_is_refused(data, reason):
    assert refusal(data) == reason


def test_a_public_key_is_never_taken_for_a_secret():
    # The classic confusion: HMAC under the octets of the public key, which everybody knows.
    public = P256.public.public_bytes
    data = encode_mac0(PAYLOAD, MacKey(b"p", public))
    as_sign1 = bytes((0xD2,)) + data[1:]

    assert refusal(data) == "envelope"
    assert refusal(as_sign1) == "algorithm"


def test_the_signature_of_another_structure_is_refused():
    protected = cbor2.dumps({1: -7})
    proof = P256.sign(cbor2.dumps(["Signature", protected, b"", b"", PAYLOAD]))
    data = cbor2.dumps(cbor2.CBORTag(18, [protected, {4: b"p"}, PAYLOAD, proof]))

    assert refusal(data) == "signature"


@settings(max_examples=300)
@given(st.data())
def test_no_flipped_bit_is_accepted_as_another_payload(data):
    message = bytearray(encode_sign1(PAYLOAD, ED25519))
    place = data.draw(st.integers(0, len(message) * 8 - 1))
    message[place // 8] ^= 1 << place % 8

    try:
        opened = open_sign1(message, [P256.public, ED25519.public])
    except NotAuthentic:
        return
    assert opened.payload == PAYLOAD


@given(st.binary(max_size=200))
def test_random_octets_are_refused_in_order(data):
    with pytest.raises(NotAuthentic):
        open_sign1(data, [P256.public])
    with pytest.raises(NotAuthentic):
        open_mac0(data, [MAC])


def bomb(prefix, filling, size_bytes=16 * 2**20):
    return (prefix + filling * (size_bytes // len(filling)))[:size_bytes]


@pytest.mark.parametrize(
    "data",
    [
        bomb(b"", b"\x81"),
        bomb(b"", b"\xd8\x3d"),
        bomb(b"\xd2\x84\x40", b"\x81"),
        bomb(b"\xd2\x84\x40\xa1", b"\x81"),
        bomb(b"\xd2\x84\x40\xa1\x04", b"\x81"),
        bomb(b"\xd2\x84\x40\xba\xff\xff\xff\xff", b"\x00"),
        bomb(b"\xd2\x84\x43\xa1\x01\x26\xa1\x04\x5a\x00\xff\xff\x00", b"\x00"),
        bomb(b"\xd2\x84\x5a\x00\xff\xff\x00", b"\x81"),
        bomb(b"\xd2\x9a\xff\xff\xff\xff", b"\x81"),
    ],
    ids=range(9),
)
def test_sixteen_mebibytes_of_nesting_cost_nothing(data):
    tracemalloc.start()
    try:
        with pytest.raises(NotAuthentic):
            open_sign1(data, [P256.public])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2**16
    # A thousand times as long, and no slower than noise makes it.
    assert refusal_time(data) < 20 * refusal_time(data[: 2**14])


def refusal_time(data):
    times = []
    for _ in range(7):
        begun = time.perf_counter()
        with pytest.raises(NotAuthentic):
            open_sign1(data, [P256.public])
        times.append(time.perf_counter() - begun)
    return min(times)


def test_a_payload_of_an_unknown_signer_is_not_even_copied():
    data = encode_sign1(bytes(2**22), SigningKey.generate(b"stranger"))
    tracemalloc.start()
    try:
        assert refusal(data) == "key"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2**16


def test_a_message_beyond_the_limit_is_refused_by_its_size():
    data = encode_sign1(bytes(100), P256)

    assert open_sign1(data, [P256.public], CoseLimits(max_bytes=len(data)))
    assert refusal(data, limits=CoseLimits(max_bytes=len(data) - 1)) == "size"


def test_no_secret_is_shown():
    key = SigningKey.generate(b"kid")
    for shown in (repr(key), repr(MAC), str(key)):
        assert "private" not in shown.replace("private_bytes", "")
        assert key.private_bytes.hex() not in shown
        assert repr(key.private_bytes)[2:-1] not in shown
        assert repr(MAC.secret)[2:-1] not in shown


@pytest.mark.parametrize(
    "make",
    [
        lambda: SigningKey.generate(b""),
        lambda: SigningKey.generate(bytes(65)),
        lambda: SigningKey(b"k", Algorithm.HS256, bytes(32)),
        lambda: SigningKey(b"k", Algorithm.ES256, bytes(32)),
        lambda: SigningKey(b"k", Algorithm.ES256, b"\xff" * 32),
        lambda: SigningKey(b"k", Algorithm.ES256, bytes(31)),
        lambda: SigningKey(b"k", Algorithm.EDDSA, bytes(33)),
        lambda: VerifyingKey(b"k", Curve.P256, bytes(65)),
        lambda: VerifyingKey(b"k", Curve.P256, b"\x04" + bytes(63) + b"\x01"),
        lambda: VerifyingKey(b"k", Curve.P256, b"\x02" + P256.public.public_bytes[1:33]),
        lambda: VerifyingKey(b"k", Curve.ED25519, bytes(31)),
        lambda: VerifyingKey(b"", Curve.ED25519, bytes(32)),
        lambda: MacKey(b"k", bytes(31)),
        lambda: MacKey(b"", bytes(32)),
    ],
)
def test_keys_that_are_none_are_refused(make):
    with pytest.raises(ConfigError) as caught:
        make()
    assert "ff" * 8 not in str(caught.value)


@pytest.mark.parametrize("size", [0, 23, 24, 255, 256, 65535, 65536, 2**24])
def test_what_is_signed_has_the_length_of_the_payload_before_it(size):
    payload = bytes(size)

    assert open_sign1(signed(payload=payload), [P256.public], BIG).payload == payload
    assert open_sign1(encode_sign1(payload, P256), [P256.public], BIG).payload == payload
