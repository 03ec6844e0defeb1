"""Lengths that promise more than there is, and manifests that are as large as they may be."""

import tracemalloc
from dataclasses import replace

import pytest
from tests.attacks.liar import BLOCKS, Liar, LiveLiar, retrieve
from tests.attacks.signed_copy import (
    IMPOSTOR,
    KEY,
    TRUST,
    assert_nothing,
    attack,
    genuine,
    versions,
)

from kvcs.cose import encode_sign1
from kvcs.errors import ManifestError, NotAuthentic
from kvcs.kv import SIGNED_MANIFEST
from kvcs.testing import MemoryNetwork, run

MIB = 2**20
LENGTH = b"\xff" * 8


def serving(data):
    copy = genuine()
    objects = copy.tracks[SIGNED_MANIFEST]
    copy.tracks[SIGNED_MANIFEST] = [objects[-1]._replace(payload=data)]
    return copy


@pytest.mark.parametrize(
    "data",
    [
        b"\xd2\x9b" + LENGTH,
        b"\xd2\x84\x5b" + LENGTH,
        b"\xd2\x84\x43\xa1\x01\x26\xbb" + LENGTH,
        b"\xd2\x84\x43\xa1\x01\x26\xa1\x04\x5b" + LENGTH,
        b"\xd2\x84\x43\xa1\x01\x26\xa1\x04\x4aproducer-1\x5b" + LENGTH,
        b"\xd2\x84\x43\xa1\x01\x26\xa1\x04\x4aproducer-1\x41{\x5b" + LENGTH,
        b"\xd2\x9f" * 5000,
        b"\xd2\x84\x5f" + b"\x41a" * 5000,
        b"\xdb" + LENGTH,
        b"\xd2" * 10_000,
        b"\x81" * 100_000,
        b"\xa1" * 100_000,
        b"",
    ],
    ids=range(13),
)
def test_a_length_without_octets_is_refused(data):
    assert_nothing(attack(Liar(serving(data))), NotAuthentic, "envelope")


@pytest.mark.parametrize("size", [16 * MIB - 4096, 16 * MIB - 100])
def test_a_manifest_of_the_largest_size_by_nobody_costs_its_octets(size):
    data = encode_sign1(bytes(size - 200), IMPOSTOR)
    tracemalloc.start()
    try:
        outcome = run(retrieve(Liar(serving(data)), config=TRUST))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert_nothing(outcome, NotAuthentic, "signature")
    # On the network in memory it is on its way several times; nothing is made of it.
    assert peak < 8 * size


def test_a_flood_of_large_versions_is_bounded_and_what_was_listed_before_it_counts():
    copy = genuine()
    objects = copy.tracks[SIGNED_MANIFEST]
    flood = encode_sign1(b" " * MIB, IMPOSTOR)
    copy.tracks[SIGNED_MANIFEST] = [
        *objects,
        *(objects[0]._replace(group_id=group_id, payload=flood) for group_id in range(4, 100)),
    ]
    tracemalloc.start()
    try:
        outcome = run(retrieve(LiveLiar(copy), network=MemoryNetwork(), config=TRUST), seed=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    # A relay that buries the newest version withholds it; it could have kept it to itself.
    assert outcome.forged == 0
    assert outcome.layers >= 2
    assert outcome.verdict.authenticated
    assert outcome.verdict.verified >= 2 * 2 * BLOCKS
    assert outcome.seconds < 21
    assert peak < 64 * MIB


def test_a_genuine_manifest_padded_with_megabytes_is_read():
    copy = genuine()
    text = versions(copy)[-1]
    copy.manifest(encode_sign1(text + b" " * (4 * MIB), KEY), -1)

    outcome = attack(Liar(copy))

    assert outcome.is_whole
    assert outcome.verdict.authenticated


def test_a_manifest_beyond_the_limit_is_an_error_of_its_size():
    copy = genuine()
    text = versions(copy)[-1]
    limits = TRUST.manifest_limits
    config = replace(TRUST, manifest_limits=replace(limits, max_bytes=len(text) - 1))

    assert_nothing(attack(Liar(copy), config=config), ManifestError, counted="manifest")
