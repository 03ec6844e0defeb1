"""Scope ID, Compatibility ID and Block Keys, with published vectors.

The vectors of the provisional profile were computed a second time with HMAC written out over
plain SHA-256, so that another implementation can rely on them. That they hold in every run, with
another seed of `hash` each time, shows that nothing of one process is in them.
"""

import hashlib
import random
from dataclasses import replace
from pathlib import Path

import pytest

import kvcs
from kvcs.errors import ConfigError, DataError
from kvcs.kv import (
    KVSP_PROVISIONAL,
    Dtype,
    ScopeKey,
    block_keys_sha256,
    parse_scope_key,
    reusable_blocks,
)

# KVCS draft, "Encoding Examples".
SCOPE_ID = "6d1c6481cd428737da312c089db3832a"

# Profile kvsp-provisional: scope key 00 01 .. 1f, and the descriptor of the fixture, whose
# canonical form is in test_descriptor.py.
COMPATIBILITY_ID = "8d3f7e65825a10268080d79bdd9bee65644675f65d0abcb22e5bd20b34675d66"
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 65536, 2**32 - 1, 0]
BLOCK_KEYS = [
    "71ecdccb6709ff3b66d8e34e7176f9e6ea3c099bbd50c0ada4bcaabfaa707344",
    "91286b42c23313d829a0deecf93e817e3ac4234279add64b874d7bccbbd32f22",
    "02292864afd1447bfae415e9751afd1e9aa862702ec4f99e40e37c8edb3c540a",
]


def keys_of(scope_key, descriptor, tokens):
    compatibility_id = KVSP_PROVISIONAL.compatibility_id(scope_key, descriptor)
    return KVSP_PROVISIONAL.block_keys(
        scope_key, compatibility_id, tokens, block_tokens=descriptor.block_tokens
    )


def test_the_scope_id_is_the_published_vector(scope_key):
    assert KVSP_PROVISIONAL.scope_id(scope_key).hex() == SCOPE_ID


def test_the_compatibility_id_is_the_published_vector(scope_key, descriptor):
    assert KVSP_PROVISIONAL.compatibility_id(scope_key, descriptor).hex() == COMPATIBILITY_ID


def test_block_keys_are_the_published_vector(scope_key, descriptor):
    assert [key.hex() for key in keys_of(scope_key, descriptor, TOKENS)] == BLOCK_KEYS


def test_the_profile_is_named():
    assert KVSP_PROVISIONAL.name == "kvsp-provisional"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": Dtype.FLOAT16},
        {"dtype": Dtype.FLOAT8_E4M3FN},
        {"dtype": Dtype.FLOAT8_E4M3FNUZ},
        {"dtype": Dtype.FLOAT8_E5M2},
        {"weights_sha256": "12" * 32},
        {"tokenizer_sha256": "12" * 32},
        {"adapter_sha256": "33" * 32},
        {"adapter_sha256": "44" * 32},
        {"block_tokens": 8},
        {"layers": 3},
        {"kv_heads": 4},
        {"position": "rope-not-applied"},
        {"extra": {"tp_rank": 0}},
        {"extra": {"tp_rank": 1}},
    ],
    ids=str,
)
def test_whatever_changes_bytes_or_meaning_changes_every_identifier(change, scope_key, descriptor):
    changed = replace(descriptor, **change)

    before = KVSP_PROVISIONAL.compatibility_id(scope_key, descriptor)
    after = KVSP_PROVISIONAL.compatibility_id(scope_key, changed)

    assert before != after
    assert keys_of(scope_key, descriptor, TOKENS)[0] != keys_of(scope_key, changed, TOKENS)[0]


def test_the_changes_above_all_differ_from_each_other(scope_key, descriptor):
    dtypes = {
        KVSP_PROVISIONAL.compatibility_id(scope_key, replace(descriptor, dtype=dtype))
        for dtype in Dtype
    }

    assert len(dtypes) == len(Dtype)


def test_another_scope_key_changes_every_identifier(scope_key, descriptor):
    other = ScopeKey(bytes(31) + b"\1")

    assert KVSP_PROVISIONAL.scope_id(other) != KVSP_PROVISIONAL.scope_id(scope_key)
    assert KVSP_PROVISIONAL.compatibility_id(other, descriptor).hex() != COMPATIBILITY_ID
    compatibility_id = bytes.fromhex(COMPATIBILITY_ID)
    keys = KVSP_PROVISIONAL.block_keys(other, compatibility_id, TOKENS, block_tokens=4)
    assert keys[0].hex() != BLOCK_KEYS[0]


def test_a_dictionary_of_public_models_finds_nothing_without_the_key(scope_key, descriptor):
    """The unkeyed digest of the canonical form must not be what a relay sees."""
    unkeyed = hashlib.sha256(b"KVSP-COMPAT-1\0" + descriptor.canonical()).digest()

    assert KVSP_PROVISIONAL.compatibility_id(scope_key, descriptor) != unkeyed


def test_only_complete_blocks_have_keys_at_every_length(scope_key, descriptor):
    all_keys = keys_of(scope_key, descriptor, TOKENS)

    for length in range(len(TOKENS) + 1):
        assert keys_of(scope_key, descriptor, TOKENS[:length]) == all_keys[: length // 4]


def test_a_key_covers_everything_before_it(scope_key, descriptor):
    changed = [*TOKENS]
    changed[0] = 2

    before = keys_of(scope_key, descriptor, TOKENS)
    after = keys_of(scope_key, descriptor, changed)

    assert all(one != other for one, other in zip(before, after, strict=True))


def test_tokens_that_differ_beyond_eight_bits_do_not_collide(scope_key, descriptor):
    keys = {
        keys_of(scope_key, descriptor, [token, 0, 0, 0]) for token in (1, 257, 65537, 2**24 + 1)
    }

    assert len(keys) == 4


def test_tokens_may_be_any_sequence_of_integers(scope_key, descriptor):
    numpy = pytest.importorskip("numpy")

    for tokens in (tuple(TOKENS), numpy.array(TOKENS, dtype=numpy.uint32)):
        assert [key.hex() for key in keys_of(scope_key, descriptor, tokens)] == BLOCK_KEYS


@pytest.mark.parametrize("token", [-1, 2**32, 1.0, "1", None])
def test_a_token_that_is_no_u32_is_named(token, scope_key, descriptor):
    with pytest.raises(DataError, match=r"token 5 is .*, not an integer 0\.\.4294967295"):
        keys_of(scope_key, descriptor, [0, 1, 2, 3, 4, token, 6, 7])


def test_the_digest_of_keys_is_over_their_concatenation(block_keys):
    assert block_keys_sha256(block_keys) == hashlib.sha256(b"".join(block_keys)).digest()


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2), (48, 2), (49, 3)]
)
def test_one_token_is_left_to_compute(tokens, blocks):
    assert reusable_blocks(tokens, block_tokens=16) == blocks


SECRET = bytes(random.Random(1).randrange(256) for _ in range(32))


@pytest.mark.parametrize(
    "content",
    [
        SECRET,
        SECRET.hex().encode(),
        SECRET.hex().upper().encode(),
        SECRET.hex().encode() + b"\n",
        SECRET.hex().encode() + b"\r\n",
    ],
)
def test_a_key_file_holds_octets_or_hex(content):
    assert parse_scope_key(content).octets == SECRET


@pytest.mark.parametrize(
    "content",
    [
        b"",
        SECRET[:31],
        SECRET + b"\n",
        SECRET.hex().encode()[:-1],
        SECRET.hex().encode() + b"\n\n",
        b" " + SECRET.hex().encode(),
        b"g" * 64,
        SECRET.hex().encode() * 2,
    ],
)
def test_any_other_key_file_is_refused_without_showing_it(content):
    with pytest.raises(ConfigError) as caught:
        parse_scope_key(content)

    assert "32 octets or 64 hex digits" in str(caught.value)
    assert not content or content[:16].decode("latin-1") not in repr(caught.value)


def test_a_scope_key_of_another_length_is_refused():
    with pytest.raises(ConfigError, match="32 octets, got 16 octets"):
        ScopeKey(bytes(16))


def test_a_scope_key_never_shows_itself():
    key = ScopeKey(SECRET)

    assert repr(key) == str(key) == f"{key}" == "ScopeKey()"


def test_a_scope_key_of_the_same_octets_is_the_same():
    assert ScopeKey(SECRET) == ScopeKey(bytes(SECRET))


def test_identifiers_are_computed_in_one_place():
    source = Path(kvcs.__file__).parent

    users = [path.name for path in source.rglob("*.py") if b"KVSP-BLOCK-1" in path.read_bytes()]

    assert users == ["identity.py"]
