"""The ring as a value: states of keys, rotation with overlap, what is handed over."""

import json
from dataclasses import replace

import pytest

from kvcs.errors import ConfigError
from kvcs.keyring import JwkSet, KeyKind, KeyRing, KeyState, Purpose, Role
from kvcs.keyring.document import decode_ring, encode_ring
from kvcs.keyring.jwk import parse_jwk
from kvcs.keyring.purpose import check_key


def test_repr_counts_and_shows_no_secret(ring):
    text = repr(ring)

    assert "object: 2" in text
    assert "\\x02" not in text


def test_first_key_is_current_and_the_second_one_waits(make_octets):
    ring = KeyRing().added(Purpose.OBJECT, make_octets("1", 1, suite=4))
    ring = ring.added(Purpose.OBJECT, make_octets("2", 2, suite=4))

    assert [ring.state(Purpose.OBJECT, key) for key in ring.keys(Purpose.OBJECT)] == [
        KeyState.CURRENT,
        KeyState.NEXT,
    ]


def test_rotation_takes_the_waiting_key_and_keeps_the_former_one(make_octets):
    ring = KeyRing().added(Purpose.OBJECT, make_octets("1", 1, suite=4))
    ring = ring.added(Purpose.OBJECT, make_octets("2", 2, suite=4))

    ring = ring.rotated(Purpose.OBJECT, pytest.fail)

    current = ring.current(Purpose.OBJECT)
    assert current is not None
    assert current.kid == "2"
    assert [ring.state(Purpose.OBJECT, key) for key in ring.keys(Purpose.OBJECT)] == [
        KeyState.OLDER,
        KeyState.CURRENT,
    ]


def test_rotation_without_a_waiting_key_makes_one(make_octets):
    ring = KeyRing().added(Purpose.OBJECT, make_octets("1", 1, suite=4))

    ring = ring.rotated(Purpose.OBJECT, lambda: make_octets("2", 2, suite=4))

    current = ring.current(Purpose.OBJECT)
    assert current is not None
    assert current.kid == "2"
    assert len(ring.keys(Purpose.OBJECT)) == 2


@pytest.mark.parametrize("purpose", [Purpose.SCOPE, Purpose.TRUSTED, Purpose.TOKEN])
def test_what_has_no_current_key_is_not_rotated(purpose, make_octets):
    with pytest.raises(ConfigError, match="kvcs keys new"):
        KeyRing().rotated(purpose, lambda: make_octets("x", 1))


def test_current_key_is_removed_only_when_it_is_the_last(ring):
    with pytest.raises(ConfigError, match="rotate first"):
        ring.removed(Purpose.OBJECT, "8")
    with pytest.raises(ConfigError, match="in the ring"):
        ring.removed(Purpose.OBJECT, "9")

    ring = ring.removed(Purpose.OBJECT, "7").removed(Purpose.OBJECT, "8")

    assert Purpose.OBJECT not in ring.sets
    assert ring.current(Purpose.OBJECT) is None


def test_same_key_is_added_once_and_another_one_under_its_name_is_refused(ring, make_octets):
    assert ring.added(Purpose.OBJECT, make_octets("7", 2, suite=4)) is ring
    with pytest.raises(ConfigError, match="object key 7"):
        ring.added(Purpose.OBJECT, make_octets("7", 9, suite=4))


def test_ring_is_for_one_scope(ring, make_octets):
    with pytest.raises(ConfigError, match="one scope"):
        ring.added(Purpose.SCOPE, make_octets("", 9))
    with pytest.raises(ConfigError, match="one scope"):
        KeyRing({Purpose.SCOPE: JwkSet((make_octets("a", 1), make_octets("b", 2)))})


def test_merging_keeps_what_is_current_here_and_takes_over_a_set_that_is_new(ring, make_octets):
    other = KeyRing(
        {Purpose.OBJECT: JwkSet((make_octets("9", 9, suite=4),), "9"), **{
            purpose: ring.sets[purpose] for purpose in (Purpose.SCOPE, Purpose.TOKEN)
        }}
    )  # fmt: skip

    merged = ring.merged(other)
    taken = KeyRing().merged(ring)

    assert [key.kid for key in merged.keys(Purpose.OBJECT)] == ["7", "8", "9"]
    assert merged.sets[Purpose.OBJECT].current == "8"
    assert taken == ring


def test_members_of_another_scope_do_not_merge(ring, make_octets):
    with pytest.raises(ConfigError, match="one scope"):
        ring.merged(KeyRing({Purpose.SCOPE: JwkSet((make_octets("", 9),))}))


def test_own_producer_keys_are_believed_too(ring):
    believed = ring.believed(Purpose.TRUSTED)

    assert [key.kid for key in believed] == ["theirs", "first", "second"]
    assert not any(key.is_secret for key in believed)
    assert [key.kid for key in ring.believed(Purpose.VERIFIER)] == ["other", "first", "mac"]


def test_member_gets_what_reads_and_nothing_that_signs(ring):
    shared = ring.shared(Role.MEMBER)

    assert set(shared.sets) == {Purpose.SCOPE, Purpose.TRUSTED, Purpose.OBJECT}
    assert not any(key.is_secret for key in shared.keys(Purpose.TRUSTED))
    assert len(shared.keys(Purpose.TRUSTED)) == 3


def test_relay_gets_public_keys_only(ring):
    shared = ring.shared(Role.RELAY)

    assert set(shared.sets) == {Purpose.VERIFIER}
    assert [key.kid for key in shared.keys(Purpose.VERIFIER)] == ["first"]
    assert b'"d"' not in encode_ring(shared)
    assert b'"k"' not in encode_ring(shared)


def test_keys_in_the_wrong_place_are_refused(ring, make_octets):
    private = ring.keys(Purpose.PRODUCER)[0]
    public = ring.keys(Purpose.TRUSTED)[0]
    ed25519 = ring.keys(Purpose.PRODUCER)[1]
    wrong = [
        (Purpose.TRUSTED, private, "without d"),
        (Purpose.VERIFIER, private, "without d"),
        (Purpose.PRODUCER, public, "with d"),
        (Purpose.TOKEN, ed25519, "kty EC or oct"),
        (Purpose.SCOPE, private, "kty oct"),
        (Purpose.SCOPE, make_octets("", 1, size=16), "32 octets"),
        (Purpose.TOKEN, make_octets("a", 1, size=31), "at least 32 octets"),
        (Purpose.OBJECT, make_octets("a", 1, suite=4), "a Key ID"),
        (Purpose.OBJECT, make_octets("07", 1, suite=4), "a Key ID"),
        (Purpose.OBJECT, make_octets(str(2**64), 1, suite=4), "0\\.\\.2\\^64-1"),
        (Purpose.OBJECT, make_octets("7", 1), "a cipher suite"),
        (Purpose.OBJECT, make_octets("7", 1, suite=3), "a cipher suite"),
        (Purpose.OBJECT, make_octets("7", 1, suite=1), "0x0004 or 0x0005"),
        (Purpose.OBJECT, make_octets("7", 1, size=31, suite=5), "32..64 octets"),
        (Purpose.TOKEN, make_octets("a", 1, suite=4), "no suite"),
    ]
    for purpose, key, expected in wrong:
        with pytest.raises(ConfigError, match=expected):
            KeyRing().added(purpose, key)


def test_set_needs_names_of_its_own_and_a_current_key(make_octets):
    a, b = make_octets("1", 1, suite=4), make_octets("1", 2, suite=4)
    for keys in (JwkSet((a, b), "1"), JwkSet((a,)), JwkSet((a,), "2")):
        with pytest.raises(ConfigError, match="object keys"):
            KeyRing({Purpose.OBJECT: keys})
    verifier = make_octets("", 1)
    assert verifier.kind is KeyKind.OCTETS
    with pytest.raises(ConfigError, match="a kid for each"):
        KeyRing({Purpose.VERIFIER: JwkSet((verifier,))})


MAY = {
    Purpose.SCOPE: {"deriveBits"},
    Purpose.PRODUCER: {"sign"},
    Purpose.TRUSTED: {"verify"},
    Purpose.OBJECT: {"decrypt", "encrypt"},
    Purpose.TOKEN: {"sign", "verify"},
    Purpose.VERIFIER: {"verify"},
}
MAY_NOT = {
    Purpose.SCOPE: {"verify"},
    Purpose.PRODUCER: {"verify"},
    Purpose.TRUSTED: {"sign"},
    Purpose.OBJECT: {"sign", "verify", "wrapKey"},
    Purpose.TOKEN: {"verify"},
    Purpose.VERIFIER: set(),
}


def key_for(purpose, operations, p256, make_octets):
    if purpose is Purpose.SCOPE:
        key = make_octets("", 1)
    elif purpose is Purpose.OBJECT:
        key = make_octets("7", 1, size=16, suite=4)
    else:
        key = parse_jwk({**p256, "kid": "a"}, "")
        key = replace(key, secret=b"") if purpose.is_public else key
    return replace(key, operations=None if operations is None else frozenset(operations))


@pytest.mark.parametrize("purpose", Purpose)
def test_a_key_does_only_what_its_document_allows(purpose, p256, make_octets):
    for operations in (None, MAY[purpose]):
        check_key(purpose, key_for(purpose, operations, p256, make_octets))

    with pytest.raises(ConfigError, match="a key whose use and key_ops") as caught:
        check_key(purpose, key_for(purpose, MAY_NOT[purpose], p256, make_octets))
    assert "\n" not in str(caught.value)


def test_the_public_half_of_a_key_that_signs_verifies(p256):
    text = json.dumps({"token": {"keys": [{**p256, "kid": "a", "key_ops": ["sign"]}]}})
    ring = decode_ring(text.encode(), "place")

    assert [key.kid for key in ring.shared(Role.RELAY).keys(Purpose.VERIFIER)] == ["a"]


def test_a_ring_with_a_key_for_something_else_is_refused(p256):
    text = json.dumps({"token": {"keys": [{**p256, "kid": "a", "use": "enc"}]}})

    with pytest.raises(ConfigError, match=r"token key a: .*allow sign"):
        decode_ring(text.encode(), "place")
