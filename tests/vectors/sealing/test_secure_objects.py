"""The vectors of draft-ietf-moq-secure-objects: derivation, nonce, AAD, plaintext, ciphertext."""

import hmac
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from kvcs.kv.sealing import CipherSuite, ObjectKey, ObjectKeys, SealedPayload, TrackOpener
from kvcs.kv.sealing.cipher import TrackCipher, derive
from kvcs.kv.sealing.plaintext import decode_plaintext, encode_properties
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.varint import encode_vi64

VECTORS = json.loads((Path(__file__).parent / "secure_objects.json").read_text())
NAMES = [
    FullTrackName(
        TrackNamespace(tuple(field.encode() for field in name["fields"])), name["name"].encode()
    )
    for name in VECTORS["names"]
]
TRACK = NAMES[VECTORS["track"]]
BASE_KEYS = {item["suite"]: bytes.fromhex(item["base_key"]) for item in VECTORS["keys"]}
OBJECT = VECTORS["object"]


def properties(pairs):
    return encode_properties((number, bytes.fromhex(value)) for number, value in pairs)


def key_of(suite):
    return ObjectKey(
        key_id=VECTORS["key_id"],
        suite=CipherSuite(suite),
        secret=BASE_KEYS[suite],
        allow_short_tags=True,
    )


class Recorder:
    """Stands in for a cipher, and keeps what it is given."""

    def encrypt(self, nonce, data, associated_data):
        self.seen = nonce, associated_data
        return data


@pytest.mark.parametrize("index", range(len(NAMES)))
def test_names_are_serialized_as_in_the_vectors(index):
    assert NAMES[index].encode().hex() == VECTORS["names"][index]["encoded"]


@pytest.fixture
def asked(monkeypatch):
    """The strings that keys and salts are derived with."""
    seen = []

    def recording(*arguments, info, **options):
        seen.append(info)
        return HKDF(*arguments, info=info, **options)

    monkeypatch.setattr("kvcs.kv.sealing.cipher.HKDF", recording)
    return seen


def test_labels_are_those_of_the_vectors(asked):
    derive(key_of(VECTORS["info"]["suite"]), TRACK)

    assert [info.hex() for info in asked] == [VECTORS["info"]["key"], VECTORS["info"]["salt"]]


@pytest.mark.parametrize("item", VECTORS["secrets"], ids=lambda item: item["suite"])
def test_keys_come_from_the_secret_of_the_vectors(asked, item):
    suite, secret = CipherSuite(item["suite"]), bytes.fromhex(item["secret"])
    derived = derive(key_of(suite), TRACK)

    expanded = tuple(
        HKDFExpand(suite.hash_algorithm, len(octets), info).derive(secret)
        for octets, info in zip(derived, asked, strict=True)
    )

    assert expanded == derived
    assert hmac.digest(b"", BASE_KEYS[suite], suite.hash_algorithm.name) == secret


@pytest.mark.parametrize("item", VECTORS["keys"], ids=lambda item: item["suite"])
def test_keys_and_salts_are_derived_as_in_the_vectors(item):
    key, salt = derive(key_of(item["suite"]), TRACK)

    assert (key.hex(), salt.hex()) == (item["key"], item["salt"])


@pytest.mark.parametrize("item", VECTORS["places"], ids=lambda item: item["object"])
def test_a_place_gives_nonce_and_aad_of_the_vectors(item):
    cipher, recorder = TrackCipher(key_of(item["suite"]), TRACK), Recorder()
    cipher._aead = recorder

    cipher.encrypt(
        item["group"], item["object"], item["priority"], properties([[2, "07"]]), b"plaintext"
    )

    assert [octets.hex() for octets in recorder.seen] == [item["nonce"], item["aad"]]


def test_the_plaintext_of_the_vectors_is_read():
    encrypted = properties(OBJECT["encrypted"])
    payload = bytes.fromhex(OBJECT["payload"])
    listed = bytes.fromhex("000a") + encode_vi64(len(encrypted)) + encrypted
    plaintext = encode_vi64(len(payload)) + payload + listed

    assert plaintext.hex() == OBJECT["plaintext"]
    assert decode_plaintext(plaintext) == payload


@pytest.mark.parametrize("item", VECTORS["sealed"], ids=lambda item: item["suite"])
def test_an_object_is_encrypted_as_in_the_vectors(item):
    cipher, recorder = TrackCipher(key_of(item["suite"]), TRACK), Recorder()
    place = (OBJECT["group"], OBJECT["object"], OBJECT["priority"])
    immutable, plaintext = properties(OBJECT["immutable"]), bytes.fromhex(OBJECT["plaintext"])

    sealed = cipher.encrypt(*place, immutable, plaintext)
    cipher._aead = recorder
    cipher.encrypt(*place, immutable, plaintext)

    assert sealed.hex() == item["payload"]
    assert [octets.hex() for octets in recorder.seen] == [item["nonce"], OBJECT["aad"]]


@pytest.mark.parametrize("item", VECTORS["sealed"], ids=lambda item: item["suite"])
def test_an_object_of_the_vectors_is_opened(item):
    opener = TrackOpener(ObjectKeys([key_of(item["suite"])]), TRACK)
    sealed = SealedPayload(
        OBJECT["group"],
        OBJECT["object"],
        OBJECT["priority"],
        VECTORS["key_id"],
        properties(OBJECT["immutable"]),
        memoryview(bytes.fromhex(item["payload"])),
    )

    assert opener.open(sealed) == bytes.fromhex(OBJECT["payload"])
