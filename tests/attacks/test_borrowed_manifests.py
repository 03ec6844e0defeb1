"""A relay that serves the signed manifest of another publication of the same producer."""

from dataclasses import replace

import pytest
from tests.attacks.liar import Liar, LiveLiar, payload
from tests.attacks.signed_copy import (
    COLLEAGUE,
    KEY,
    TRUST,
    assert_nothing,
    attack,
    genuine,
    versions,
)

from kvcs.cose import encode_sign1
from kvcs.errors import NotAuthentic
from kvcs.kv import SIGNED_MANIFEST, TrustedProducers, parse_manifest

OURS, THEIRS = b"p" * 16, b"q" * 16
UNBOUND = replace(TRUST, trusted_producers=TrustedProducers((KEY.public,), require_binding=False))


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
@pytest.mark.parametrize("config", [TRUST, UNBOUND])
@pytest.mark.parametrize("key", [KEY, COLLEAGUE])
def test_another_publications_manifest_is_refused(kind, config, key):
    if config is UNBOUND and key is COLLEAGUE:
        pytest.skip("not trusted there at all")
    copy = genuine(OURS)
    copy.tracks[SIGNED_MANIFEST] = genuine(THEIRS, key=key).tracks[SIGNED_MANIFEST]

    assert_nothing(attack(kind(copy), config=config), NotAuthentic, "binding")


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_a_whole_publication_under_another_name_is_refused(kind):
    copy, other = genuine(OURS), genuine(THEIRS)
    copy.tracks = other.tracks

    assert_nothing(attack(kind(copy)), NotAuthentic, "binding")


def test_one_version_of_another_publication_in_between_is_passed_over():
    copy = genuine(OURS)
    other = genuine(THEIRS).tracks[SIGNED_MANIFEST]
    objects = copy.tracks[SIGNED_MANIFEST]
    copy.tracks[SIGNED_MANIFEST] = [*objects, other[3]._replace(group_id=4)]

    outcome = attack(LiveLiar(copy))

    assert outcome.is_whole
    assert outcome.verdict.rejected == {"manifest": 1}


def unbound(copy):
    """What a producer signs that does not know these members."""
    for version, data in enumerate(versions(copy)):
        plain = replace(parse_manifest(data), binding=None)
        copy.manifest(encode_sign1(plain.encode(), KEY), version)
    return copy


def test_a_manifest_that_names_no_publication_is_refused_unless_that_is_allowed():
    assert_nothing(attack(Liar(unbound(genuine()))), NotAuthentic, "binding")

    outcome = attack(Liar(unbound(genuine())), config=UNBOUND)

    assert outcome.is_whole
    assert outcome.verdict.authenticated


def test_even_then_objects_are_those_that_it_lists():
    copy, other = unbound(genuine(OURS)), unbound(genuine(THEIRS))
    copy.tracks[SIGNED_MANIFEST] = other.tracks[SIGNED_MANIFEST]
    track = b"k.raw.s0"
    target = copy.find(track, 1, 1)
    copy.replace(track, target, payload=payload(1, 1, 1, bytes(len(target.payload) - 68))[0])

    outcome = attack(Liar(copy), config=UNBOUND)

    assert not outcome.verdict.complete
    assert outcome.forged == 0
    assert outcome.verdict.rejected["listed_digest"] >= 1
