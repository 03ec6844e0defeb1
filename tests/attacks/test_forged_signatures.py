"""A member of the scope that is no trusted producer, and signs all the same."""

import cbor2
import pytest
from tests.attacks.liar import TRACKS, K, Liar, LiveLiar, V, payload
from tests.attacks.signed_copy import (
    COLLEAGUE,
    IMPOSTOR,
    KEY,
    TRUST,
    assert_nothing,
    attack,
    genuine,
    versions,
)

from kvcs.client import ConsumerConfig
from kvcs.cose import Algorithm, MacKey, SigningKey, encode_mac0, encode_sign1
from kvcs.errors import NotAuthentic
from kvcs.kv import SIGNED_MANIFEST, TrustedProducers

STRANGER = SigningKey(b"stranger", Algorithm.EDDSA, bytes(31) + b"\x01")


def resigned(copy, sign):
    for version, data in enumerate(versions(copy)):
        copy.manifest(sign(data), version)
    return copy


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_poison_under_a_trusted_key_identifier_is_refused(kind):
    liar = kind(genuine(key=IMPOSTOR))

    assert_nothing(attack(liar), NotAuthentic, "signature")
    assert not any(
        getattr(event, "track", None) and event.track.name in (K, V) for event in liar.asked
    )


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_poison_under_the_members_own_key_is_refused(kind):
    assert_nothing(attack(kind(genuine(key=STRANGER))), NotAuthentic, "key")


def test_a_trusted_producer_cannot_pass_for_another():
    # Signed by the colleague, under the identifier of the producer.
    other = SigningKey(KEY.kid, COLLEAGUE.algorithm, COLLEAGUE.private_bytes)

    assert_nothing(attack(Liar(genuine(key=other))), NotAuthentic, "algorithm")


def test_two_trusted_keys_may_share_an_identifier():
    twin = SigningKey(KEY.kid, Algorithm.ES256, bytes(31) + b"\x0b")
    trust = ConsumerConfig(trusted_producers=TrustedProducers((twin.public, KEY.public)))

    for key in (KEY, twin):
        outcome = attack(Liar(genuine(key=key)), config=trust)
        assert outcome.is_whole
        assert outcome.verdict.signed_by == KEY.kid
    assert_nothing(attack(Liar(genuine(key=IMPOSTOR)), config=trust), NotAuthentic, "signature")


def test_the_two_keys_of_one_identifier_do_not_finish_each_others_publications():
    twin = SigningKey(KEY.kid, Algorithm.ES256, bytes(31) + b"\x0b")
    trust = ConsumerConfig(trusted_producers=TrustedProducers((twin.public, KEY.public)))
    copy = genuine()
    # The list is the genuine one; that it comes from the other key is enough.
    copy.manifest(encode_sign1(versions(copy)[3], twin), 3)

    outcome = attack(LiveLiar(copy), config=trust)

    assert not outcome.verdict.complete
    assert outcome.verdict.rejected["manifest"] >= 1
    assert outcome.layers == 2


@pytest.mark.parametrize("first", [KEY, IMPOSTOR])
def test_of_two_publications_of_a_prompt_the_trusted_one_is_found_first(first):
    second = IMPOSTOR if first is KEY else KEY
    liar = Liar(genuine(b"p" * 16, key=first), genuine(b"q" * 16, key=second))

    outcome = attack(liar, discovering=True)

    assert outcome.is_whole
    assert outcome.verdict.signed_by == KEY.kid
    # Nobody but the consumer knows of the one that was passed over.
    assert outcome.refused == {"signature": 1}


def with_algorithm(value, *, protected=True):
    def sign(data):
        head = cbor2.dumps({1: value} if protected else {})
        proof = KEY.sign(cbor2.dumps(["Signature1", head, b"", data]))
        outer = {4: KEY.kid} if protected else {1: value, 4: KEY.kid}
        return cbor2.dumps(cbor2.CBORTag(18, [head, outer, data, proof]))

    return sign


@pytest.mark.parametrize(
    "sign",
    [
        *map(with_algorithm, (0, None, "none", "ES256", -8, -19, -35, -36, -257, 5, 1, [], b"")),
        with_algorithm(-7, protected=False),
    ],
)
def test_a_foreign_algorithm_or_none_is_refused(sign):
    assert_nothing(attack(Liar(resigned(genuine(), sign))), NotAuthentic, "algorithm")


@pytest.mark.parametrize("algorithm", [Algorithm.ES256, Algorithm.ESP256])
def test_both_names_of_the_producers_algorithm_are_taken(algorithm):
    key = SigningKey(KEY.kid, algorithm, KEY.private_bytes)

    assert attack(Liar(genuine(key=key))).is_whole


def test_the_public_key_is_no_secret_to_authenticate_with():
    mac = MacKey(KEY.kid, KEY.public.public_bytes)

    def sign(data):
        return encode_mac0(data, mac)

    assert_nothing(attack(Liar(resigned(genuine(), sign))), NotAuthentic, "envelope")
    disguised = resigned(genuine(), lambda data: b"\xd2" + sign(data)[1:])
    assert_nothing(attack(Liar(disguised)), NotAuthentic, "algorithm")


def test_a_signature_over_something_else_is_refused():
    def sign(data):
        return encode_sign1(data, KEY).replace(b'"deterministic":false', b'"deterministic":true ')

    assert_nothing(attack(Liar(resigned(genuine(), sign))), NotAuthentic, "signature")


def test_headers_that_must_be_understood_are_refused():
    def sign(data):
        head = cbor2.dumps({1: -7, 2: [-65537], -65537: 1})
        proof = KEY.sign(cbor2.dumps(["Signature1", head, b"", data]))
        return cbor2.dumps(cbor2.CBORTag(18, [head, {4: KEY.kid}, data, proof]))

    assert_nothing(attack(Liar(resigned(genuine(), sign))), NotAuthentic, "critical")


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
@pytest.mark.parametrize("layer", range(4))
def test_data_and_digest_replaced_together_are_not_what_was_signed(kind, layer):
    copy = genuine()
    for track, component in TRACKS.items():
        target = copy.find(track, layer, 1)
        forged, _ = payload(component, layer, 1, b"\x66" * (len(target.payload) - 68))
        copy.replace(track, target, payload=forged)

    outcome = attack(kind(copy))

    assert outcome.forged == 0
    assert not outcome.verdict.complete
    # Not one forged octet was given, and all others were.
    assert outcome.layers == layer
    assert outcome.verdict.error is None
    assert outcome.verdict.rejected["listed_digest"] >= 2
    assert [(gap.layer, gap.first, gap.end) for gap in outcome.verdict.missing] == [(layer, 1, 2)]


def test_a_list_replaced_with_the_data_needs_a_signature():
    copy = genuine()
    target = copy.find(K, 0, 0)
    forged, digest = payload(1, 0, 0, b"\x66" * (len(target.payload) - 68))
    old = target.payload[36:68].hex().encode()
    copy.replace(K, target, payload=forged)
    for version, obj in enumerate(copy.tracks[SIGNED_MANIFEST]):
        copy.manifest(obj.payload.replace(old, digest.hex().encode()), version)

    assert_nothing(attack(Liar(copy), config=TRUST), NotAuthentic, "signature")
