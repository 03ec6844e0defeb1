"""Object keys: what is one, and which are held."""

import pytest

from kvcs.errors import ConfigError
from kvcs.kv.sealing import MAX_KEYS_OF_ONE_ID, CipherSuite, ObjectKey, ObjectKeys

SECRET = bytes(range(32))


def test_no_secret_is_shown():
    key = ObjectKey(key_id=7, secret=SECRET)

    shown = repr(key) + str(key) + repr(ObjectKeys([key]))

    assert SECRET.hex() not in shown
    assert repr(SECRET) not in shown
    assert "7" in shown


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"key_id": -1}, "key_id"),
        ({"key_id": 2**64}, "key_id"),
        ({"secret": bytes(15)}, "secret"),
        ({"secret": bytes(65)}, "secret"),
        ({"secret": bytes(31), "suite": CipherSuite.AES_256_GCM_SHA512_128}, "secret"),
        ({"suite": CipherSuite.AES_128_CTR_HMAC_SHA256_80}, "suite"),
        ({"suite": CipherSuite.AES_128_CTR_HMAC_SHA256_64}, "suite"),
    ],
)
def test_a_key_out_of_range_is_refused_without_its_secret(changes, named):
    with pytest.raises(ConfigError) as caught:
        ObjectKey(**{"key_id": 1, "secret": SECRET, **changes})

    assert caught.value.key == named
    assert SECRET.hex() not in str(caught.value)


def test_suites_of_short_tags_are_taken_with_leave():
    suite = CipherSuite.AES_128_CTR_HMAC_SHA256_64

    assert ObjectKey(key_id=1, suite=suite, secret=SECRET, allow_short_tags=True).suite is suite


def test_keys_are_found_by_their_ids():
    current, older = ObjectKey(key_id=2, secret=SECRET), ObjectKey(key_id=1, secret=SECRET)
    keys = ObjectKeys([older], current=current)

    assert keys.current is current
    assert keys.key_ids == (1, 2)
    assert list(keys.with_id(2)) == [current]
    assert not keys.with_id(3)


def test_the_same_key_counts_once():
    key = ObjectKey(key_id=1, secret=SECRET)

    assert len(ObjectKeys([key, ObjectKey(key_id=1, secret=SECRET)], current=key)) == 1


def test_few_keys_may_share_an_id():
    shared = [ObjectKey(key_id=1, secret=bytes([n]) * 32) for n in range(MAX_KEYS_OF_ONE_ID + 1)]

    assert len(ObjectKeys(shared[:-1]).with_id(1)) == MAX_KEYS_OF_ONE_ID
    with pytest.raises(ConfigError, match="Key ID 1"):
        ObjectKeys(shared)
