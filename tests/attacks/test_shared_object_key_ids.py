"""Object keys share a Key ID: it proves nothing, and costs no more than a few attempts."""

from dataclasses import replace

import pytest
from tests.attacks.liar import payload
from tests.attacks.sealed_copy import (
    CONSUMER,
    DEMANDING,
    KEY,
    PLACE,
    attack,
    genuine,
    is_rejected,
    sealed_again,
)
from tests.attacks.signed_copy import assert_nothing

from kvcs.client import PublisherConfig
from kvcs.errors import ConfigError, NotAuthentic
from kvcs.kv import Component
from kvcs.kv.sealing import (
    MAX_KEYS_OF_ONE_ID,
    CipherSuite,
    ObjectKey,
    ObjectKeys,
    SealReason,
    TrackCipher,
)

SECOND = replace(KEY, secret=bytes(16))
STRONG = replace(KEY, secret=bytes(32), suite=CipherSuite.AES_256_GCM_SHA512_128)
THIRD = replace(KEY, secret=b"\x03" * 16)
BOTH = replace(CONSUMER, object_keys=ObjectKeys([SECOND, STRONG, KEY]))


@pytest.mark.parametrize("key", [KEY, SECOND, STRONG], ids=["first", "second", "strong"])
def test_each_key_of_a_key_id_opens_what_it_sealed(key):
    outcome = attack(genuine(config=PublisherConfig(object_key=key)), config=BOTH)

    assert outcome.is_whole
    assert outcome.verdict.rejected == {}


def test_an_object_of_a_third_key_of_that_key_id_is_not_opened():
    clear, _ = payload(Component.K, *PLACE)

    outcome = attack(sealed_again(genuine(), clear, THIRD), config=BOTH)

    assert is_rejected(outcome, SealReason.SEAL)


@pytest.mark.parametrize("key", [SECOND, STRONG], ids=["second", "strong"])
def test_a_key_of_that_key_id_that_is_held_makes_no_other_data_true(key):
    clear, _ = payload(Component.K, *PLACE, b"\x66" * 128)

    assert is_rejected(attack(sealed_again(genuine(), clear, key), config=BOTH), "listed_digest")


def test_a_publication_of_a_key_of_that_key_id_is_not_believed_without_its_producer():
    copy = genuine(config=PublisherConfig(object_key=SECOND))
    demands = replace(DEMANDING, object_keys=BOTH.object_keys)

    outcome = attack(copy, config=demands)

    assert_nothing(outcome, NotAuthentic, "unsigned")


def test_many_keys_of_one_key_id_cost_few_attempts(monkeypatch):
    keys = [KEY, *(replace(KEY, secret=bytes([number]) * 16) for number in range(1, 4))]
    assert len(keys) == MAX_KEYS_OF_ONE_ID
    copy = genuine()
    clear, _ = payload(Component.K, *PLACE)
    sealed_again(copy, clear, ObjectKey(key_id=7, secret=b"\xee" * 16))
    attempts = []
    decrypt = TrackCipher.decrypt

    def counted(cipher, group_id, object_id, *arguments):
        attempts.append((group_id, object_id))
        return decrypt(cipher, group_id, object_id, *arguments)

    monkeypatch.setattr(TrackCipher, "decrypt", counted)

    outcome = attack(copy, config=replace(CONSUMER, object_keys=ObjectKeys(keys)))

    assert is_rejected(outcome, SealReason.SEAL)
    tries = outcome.verdict.rejected[SealReason.SEAL]
    # V has an Object in that place too, which the first key opens.
    assert attempts.count(PLACE) <= (tries + 1) * MAX_KEYS_OF_ONE_ID


def test_more_keys_of_one_key_id_are_not_held():
    keys = [replace(KEY, secret=bytes([number]) * 16) for number in range(MAX_KEYS_OF_ONE_ID + 1)]

    with pytest.raises(ConfigError, match="at most 4 keys with one Key ID"):
        ObjectKeys(keys)
