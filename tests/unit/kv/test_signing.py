"""Signed manifests: verified before they are parsed, and bound to their place."""

import json
from dataclasses import replace

import pytest

from kvcs.cose import Algorithm, SigningKey, encode_sign1, open_sign1
from kvcs.errors import ConfigError, ManifestError, NotAuthentic
from kvcs.kv import (
    Binding,
    ManifestLimits,
    PublicationName,
    TrustedProducers,
    check_binding,
    parse_manifest,
    parse_unverified,
    sign_manifest,
    verify_manifest,
)

NAME = PublicationName(
    scope_id=bytes(16),
    compatibility_id=bytes(32),
    anchor_key=b"\xaa" * 32,
    publication_id=b"\xbb" * 16,
)
KEY = SigningKey(b"producer-1", Algorithm.ES256, bytes(31) + b"\x07")
TRUST = TrustedProducers((KEY.public,))


@pytest.fixture
def manifest(members):
    return parse_manifest(json.dumps(members).encode())


@pytest.mark.parametrize("algorithm", [one for one in Algorithm if one is not Algorithm.HS256])
def test_a_signed_manifest_comes_back_with_its_signer_and_its_place(manifest, algorithm):
    key = SigningKey.generate(b"producer-2", algorithm)
    trust = TrustedProducers((KEY.public, key.public))

    signed = verify_manifest(sign_manifest(manifest, NAME, 3, key), trust)

    assert signed.key == key.public
    assert signed.manifest == replace(manifest, binding=Binding.to(NAME, 3))
    check_binding(signed.manifest, NAME, 3, is_required=True)


def test_the_payload_is_the_json_that_a_plain_manifest_would_be(manifest):
    data = open_sign1(sign_manifest(manifest, NAME, 3, KEY), [KEY.public]).payload

    members = json.loads(data)
    assert members.pop("publication") == "bb" * 16
    assert members.pop("anchor") == "aa" * 32
    assert members.pop("version") == 3
    assert members == json.loads(manifest.encode())


def test_nothing_is_parsed_before_the_signature_is_known_to_be_good():
    # Its payload is no JSON at all: whoever parsed it first would say so.
    data = encode_sign1(b"[" * 10_000, SigningKey.generate(b"producer-1"))

    with pytest.raises(NotAuthentic) as caught:
        verify_manifest(data, TRUST)

    assert caught.value.reason == "signature"


def test_what_a_producer_signed_still_has_to_be_a_manifest():
    with pytest.raises(ManifestError):
        verify_manifest(encode_sign1(b"[]", KEY), TRUST)
    with pytest.raises(ManifestError, match="at most 100"):
        verify_manifest(encode_sign1(b" " * 101, KEY), TRUST, ManifestLimits(max_bytes=100))


def test_a_message_beyond_the_limit_is_not_looked_at():
    with pytest.raises(NotAuthentic) as caught:
        verify_manifest(bytes(5000), TRUST, ManifestLimits(max_bytes=100))
    assert caught.value.reason == "size"


def test_a_manifest_without_signature_is_not_signed(manifest):
    with pytest.raises(NotAuthentic) as caught:
        verify_manifest(manifest.encode(), TRUST)
    assert caught.value.reason == "envelope"


def test_a_manifest_can_be_read_without_asking_who_signed_it(manifest):
    data = sign_manifest(manifest, NAME, 0, SigningKey.generate(b"stranger"))

    assert parse_unverified(data).segments == manifest.segments
    with pytest.raises(NotAuthentic):
        parse_unverified(manifest.encode())


def test_to_trust_nobody_is_a_mistake():
    with pytest.raises(ConfigError):
        TrustedProducers(())


@pytest.mark.parametrize(
    ("place", "version", "text"),
    [
        (replace(NAME, publication_id=b"\xcc" * 16), 3, "another publication"),
        (replace(NAME, anchor_key=b"\xcc" * 32), 3, "another publication"),
        (NAME, 4, "version 3 of the manifest in the place of 4"),
    ],
)
@pytest.mark.parametrize("is_required", [True, False])
def test_a_manifest_in_another_place_is_refused(manifest, place, version, text, is_required):
    bound = replace(manifest, binding=Binding.to(NAME, 3))

    with pytest.raises(NotAuthentic, match=text) as caught:
        check_binding(bound, place, version, is_required=is_required)

    assert caught.value.reason == "binding"


def test_a_manifest_that_does_not_say_its_place_is_refused_where_that_is_required(manifest):
    check_binding(manifest, NAME, 3, is_required=False)
    with pytest.raises(NotAuthentic, match="does not say"):
        check_binding(manifest, NAME, 3, is_required=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": None},
        {"version": "3"},
        {"version": True},
        {"version": -1},
        {"publication": "BB" * 16},
        {"publication": "bb" * 15},
        {"anchor": "aa" * 33},
        {"anchor": "aa" * 32 + "\n"},
        {"anchor": 7},
    ],
)
def test_members_of_the_same_names_that_mean_something_else_bind_nothing(members, changes):
    binding = {"publication": "bb" * 16, "anchor": "aa" * 32, "version": 3}
    others = {**binding, **changes}

    manifest = parse_manifest(json.dumps(members | others).encode())

    assert parse_manifest(json.dumps(members | binding).encode()).binding == Binding.to(NAME, 3)
    assert manifest.binding is None
    assert manifest.extra == others
    assert parse_manifest(manifest.encode()) == manifest
