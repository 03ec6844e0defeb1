"""Sealing and opening: the place is bound, nothing is sealed twice, anything wrong is one error."""

import pytest

from kvcs.errors import ConfigError, IntegrityError, LocalProtocolError
from kvcs.kv.sealing import (
    KEY_ID_PROPERTY,
    CipherSuite,
    ObjectKey,
    ObjectKeys,
    SealedPayload,
    SealingLimits,
    SealReason,
    TrackCipher,
    TrackOpener,
    TrackSealer,
    sealed_bytes,
)
from kvcs.names import FullTrackName, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"kvcs-1", b"publication one")), b"k.raw.s0")
OTHER_TRACK = FullTrackName(TRACK.namespace, b"v.raw.s0")
OTHER_PUBLICATION = FullTrackName(TrackNamespace((b"kvcs-1", b"publication two")), b"k.raw.s0")
KEY = ObjectKey(key_id=7, secret=bytes(range(16)))
KEYS = ObjectKeys([KEY])
PLACE = (3, 5)
PRIORITY = 48
PAYLOAD = bytes(range(200))
SUITES = [
    ObjectKey(key_id=7, suite=suite, secret=bytes(range(32)), allow_short_tags=True)
    for suite in CipherSuite
]


def sealed(*, key=KEY, track=TRACK, location=PLACE, payload=PAYLOAD, **options):
    sealer = TrackSealer(key, track)
    octets = sealer.seal(*location, PRIORITY, payload, **options)
    return SealedPayload(*location, PRIORITY, key.key_id, sealer.immutable, octets)


def reason_of(obj, *, keys=KEYS, track=TRACK):
    with pytest.raises(IntegrityError) as caught:
        TrackOpener(keys, track).open(obj)
    return caught.value.reason


@pytest.mark.parametrize("key", SUITES, ids=lambda key: key.suite.name)
@pytest.mark.parametrize("payload", [b"", b"x", PAYLOAD, bytes(100_000)], ids=len)
def test_what_is_sealed_is_opened(key, payload):
    obj = sealed(key=key, payload=payload)

    assert TrackOpener(ObjectKeys([key]), TRACK).open(obj) == payload
    assert len(obj.payload) == sealed_bytes(key, len(payload))


def test_parts_are_sealed_as_one_payload():
    sealer = TrackSealer(KEY, TRACK)
    octets = sealer.seal(*PLACE, PRIORITY, PAYLOAD[:68], memoryview(PAYLOAD)[68:])

    assert octets == sealed().payload


@pytest.mark.parametrize("size", [0, 201, 202, 300])
def test_memory_to_work_in_changes_nothing(size):
    scratch = bytearray(b"\xee" * size)
    sealer = TrackSealer(KEY, TRACK)
    octets = sealer.seal(*PLACE, PRIORITY, PAYLOAD[:68], memoryview(PAYLOAD)[68:], scratch=scratch)

    assert octets == sealed().payload


def test_the_key_id_stands_in_a_property_that_relays_do_not_know():
    sealer = TrackSealer(ObjectKey(key_id=300, secret=bytes(16)), TRACK)

    assert KEY_ID_PROPERTY == 0x78
    assert sealer.immutable == b"\x78\x81\x2c"


def test_an_odd_type_cannot_carry_the_key_id():
    with pytest.raises(ConfigError, match="even"):
        TrackSealer(KEY, TRACK, key_id_property=0x79)


@pytest.mark.parametrize("key", SUITES, ids=lambda key: key.suite.name)
@pytest.mark.parametrize("at", [0, 1, 100, -17, -16, -1])
def test_one_changed_bit_breaks_the_seal(key, at):
    obj = sealed(key=key)
    octets = bytearray(obj.payload)
    octets[at] ^= 1

    changed = obj._replace(payload=bytes(octets))

    assert reason_of(changed, keys=ObjectKeys([key])) == SealReason.SEAL


@pytest.mark.parametrize(
    "changes",
    [
        {"object_id": 4},
        {"group_id": 4},
        {"object_id": 2**32},
        {"priority": PRIORITY + 1},
        {"immutable": b"\x78\x08"},
        {"immutable": b""},
        {"payload": b""},
        {"payload": bytes(15)},
        {"payload": bytes(16)},
    ],
    ids=str,
)
def test_another_place_priority_or_property_breaks_the_seal(changes):
    assert reason_of(sealed()._replace(**changes)) == SealReason.SEAL


@pytest.mark.parametrize("size", [0, 1, 16, 100, -1])
def test_a_truncated_object_breaks_the_seal(size):
    obj = sealed()

    assert reason_of(obj._replace(payload=obj.payload[:size])) == SealReason.SEAL


@pytest.mark.parametrize("track", [OTHER_TRACK, OTHER_PUBLICATION], ids=str)
def test_an_object_of_another_track_or_publication_breaks_the_seal(track):
    assert reason_of(sealed(), track=track) == SealReason.SEAL


def test_the_same_object_of_another_publication_shares_no_key():
    one, two = sealed(payload=bytes(64)), sealed(track=OTHER_PUBLICATION, payload=bytes(64))

    assert one.payload[:64] != two.payload[:64]


def test_an_object_without_a_key_id_is_not_sealed():
    assert reason_of(sealed()._replace(key_id=None)) == SealReason.UNSEALED


def test_an_unknown_key_id_is_told_from_a_broken_seal():
    assert reason_of(sealed(), keys=ObjectKeys([SUITES[2]], current=None)) == SealReason.SEAL
    other = ObjectKey(key_id=8, secret=KEY.secret)
    assert reason_of(sealed(), keys=ObjectKeys([other])) == SealReason.UNKNOWN_KEY


def test_old_and_new_keys_open_side_by_side():
    newer = ObjectKey(key_id=8, secret=bytes(16))
    opener = TrackOpener(ObjectKeys([KEY], current=newer), TRACK)

    assert opener.open(sealed()) == PAYLOAD
    assert opener.open(sealed(key=newer)) == PAYLOAD


def test_keys_that_share_an_id_are_all_tried():
    same_id = ObjectKey(key_id=7, secret=bytes(16))
    opener = TrackOpener(ObjectKeys([KEY, same_id]), TRACK)

    assert opener.open(sealed(key=same_id)) == PAYLOAD
    assert opener.open(sealed()) == PAYLOAD


@pytest.mark.parametrize("plaintext", [b"", b"\x05abc", b"\xff" + b"\xff" * 8, b"\x01ab"])
def test_a_plaintext_that_lies_is_a_broken_seal(plaintext):
    octets = TrackCipher(KEY, TRACK).encrypt(3, 5, PRIORITY, b"\x78\x07", plaintext)

    assert reason_of(sealed()._replace(payload=octets)) == SealReason.SEAL


@pytest.mark.parametrize("others", [(), SUITES[2:]])
def test_a_key_opens_nothing_after_too_many_forgeries(others):
    key = SUITES[1]
    # Another key of the same Key ID does not let the weak one be tried more often.
    opener = TrackOpener(ObjectKeys([*others, key]), TRACK)
    genuine = sealed(key=key)
    for _ in range(key.suite.max_failures):
        with pytest.raises(IntegrityError):
            opener.open(genuine._replace(priority=0))

    with pytest.raises(IntegrityError) as caught:
        opener.open(genuine)

    assert caught.value.reason == SealReason.EXHAUSTED


@pytest.mark.parametrize("padded", [212, 1000, 100_000])
def test_a_padded_payload_has_the_size_that_was_asked_for(padded):
    obj = sealed(padded_bytes=padded)

    assert TrackOpener(KEYS, TRACK).open(obj) == PAYLOAD
    assert len(obj.payload) == padded + KEY.suite.tag_bytes


def test_what_is_long_enough_is_not_padded():
    assert sealed(padded_bytes=202) == sealed()


def test_a_place_is_sealed_again_only_with_the_same_octets():
    sealer = TrackSealer(KEY, TRACK)
    first = sealer.seal(*PLACE, PRIORITY, PAYLOAD)

    assert sealer.seal(*PLACE, PRIORITY, PAYLOAD) == first
    with pytest.raises(LocalProtocolError, match="another Object"):
        sealer.seal(*PLACE, PRIORITY, PAYLOAD[::-1])
    with pytest.raises(LocalProtocolError, match="another Object"):
        sealer.seal(*PLACE, PRIORITY + 1, PAYLOAD)


def test_nothing_is_sealed_below_the_newest_group():
    sealer = TrackSealer(KEY, TRACK)
    sealer.seal(3, 0, PRIORITY, PAYLOAD)

    with pytest.raises(LocalProtocolError, match="below"):
        sealer.seal(2, 0, PRIORITY, PAYLOAD)


class Meanwhile:
    """A cipher during whose first encryption another thread does something."""

    def __init__(self, cipher, deed):
        self._cipher = cipher
        self._deed = deed

    def __getattr__(self, name):
        return getattr(self._cipher, name)

    def encrypt(self, *args):
        deed, self._deed = self._deed, lambda: None
        sealed = self._cipher.encrypt(*args)
        deed()
        return sealed


def interrupted(deed):
    """A sealer, and what another thread does with it in the middle of its first Object."""
    sealer = TrackSealer(KEY, TRACK)
    sealer._cipher = Meanwhile(sealer._cipher, lambda: deed(sealer))
    return sealer


def test_no_two_threads_seal_different_octets_for_one_place():
    def other(sealer):
        sealer.seal(3, 0, PRIORITY, b"one")
        # Whoever looks for the first one in the Group of now does not find it.
        sealer.seal(4, 1, PRIORITY, PAYLOAD)

    with pytest.raises(LocalProtocolError, match="below"):
        interrupted(other).seal(3, 0, PRIORITY, b"two")


def test_a_thread_that_is_late_takes_no_place_of_a_later_group():
    sealer = interrupted(lambda sealer: sealer.seal(4, 0, PRIORITY, PAYLOAD))
    with pytest.raises(LocalProtocolError, match="below"):
        sealer.seal(3, 1, PRIORITY, b"late")

    sealer.seal(4, 1, PRIORITY, PAYLOAD)


def test_nothing_is_given_out_where_encryption_fails_and_the_place_is_still_free():
    def fail(_):
        raise MemoryError

    sealer = interrupted(fail)
    with pytest.raises(MemoryError):
        sealer.seal(3, 0, PRIORITY, b"one")

    octets = sealer.seal(3, 0, PRIORITY, b"two")

    obj = SealedPayload(3, 0, PRIORITY, KEY.key_id, sealer.immutable, octets)
    assert TrackOpener(KEYS, TRACK).open(obj) == b"two"
    with pytest.raises(LocalProtocolError, match="another Object"):
        sealer.seal(3, 0, PRIORITY, b"one")


def test_an_object_id_above_32_bits_is_refused():
    sealer = TrackSealer(KEY, TRACK)
    sealer.seal(3, 2**32 - 1, PRIORITY, PAYLOAD)

    with pytest.raises(LocalProtocolError, match="too high"):
        sealer.seal(3, 2**32, PRIORITY, PAYLOAD)


def test_a_key_is_not_used_beyond_its_objects():
    sealer = TrackSealer(KEY, TRACK, limits=SealingLimits(max_objects=2))
    for block in range(2):
        sealer.seal(0, block, PRIORITY, PAYLOAD)

    with pytest.raises(ConfigError, match="another Key ID"):
        sealer.seal(0, 2, PRIORITY, PAYLOAD)


def test_a_key_is_not_used_beyond_its_cipher_blocks():
    # 126 octets and their length are eight cipher blocks.
    sealer = TrackSealer(KEY, TRACK, limits=SealingLimits(max_cipher_blocks=24))
    for block in range(3):
        sealer.seal(0, block, PRIORITY, bytes(126))

    with pytest.raises(ConfigError, match="another Key ID"):
        sealer.seal(0, 3, PRIORITY, b"")
