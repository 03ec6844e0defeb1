"""Manifests made to cost time or memory, or to promise what cannot be: refused, and bounded.

Each is served plain by a relay, and once more signed by a producer that went bad: a signature makes
an author known, not honest.
"""

import asyncio
import json
import time
import tracemalloc
from dataclasses import replace

import pytest
from tests.attacks.liar import BLOCKS, DESCRIPTOR, LAYERS, SCOPE_KEY, URL, Liar, retrieve
from tests.attacks.signed_copy import KEY, TRUST, genuine, versions

from kvcs.client import Consumer, ConsumerConfig
from kvcs.cose import encode_sign1
from kvcs.endpoint.connect import connect
from kvcs.errors import ConfigError, DataError, KvcsError, ManifestError
from kvcs.kv import MANIFEST, SIGNED_MANIFEST, parse_manifest
from kvcs.testing import MemoryNetwork, run

MIB = 2**20
SIZE = 4 * MIB
HUGE = (10**9, 2**32 - 1, 2**53 - 1, 2**53, 2**64, 10**30)


def filled(part, head=b"", tail=b""):
    """Texts of the same form, of any size."""
    return lambda size: head + part * (size // len(part)) + tail


TEXTS = {
    "brackets": filled(b"["),
    "braces": filled(b'{"a":'),
    "both": filled(b'[{"":'),
    "closed": lambda size: b"[" * size + b"]" * size,
    "flat": filled(b"0,", b"[", b"0]"),
    "empty strings": filled(b'"",', b"[", b'""]'),
    "escapes": filled(b"\\u0000", b'{"a":"', b'"}'),
    "quotes": filled(b'"'),
    "backslashes": filled(b"\\"),
    "digits": filled(b"1"),
    "decimals": filled(b"1", b"1."),
    "spaces": filled(b" "),
    "zeros": bytes,
    "not UTF-8": filled(b"\xff", b'"', b'"'),
    "members": filled(b'"a":0,', b"{", b'"a":0}'),
    "surrogates": filled(b"\\ud800", b'{"a":"', b'"}'),
}


def edited(change):
    """The newest version of a genuine manifest, with one change."""
    members = json.loads(versions(genuine())[-1])
    change(members)
    return json.dumps(members).encode()


def setting(*path):
    *way, last, value = path

    def change(members):
        holder = members
        for step in way:
            holder = holder[step]
        holder[last] = value

    return change


def repeat_segment(count):
    def change(members):
        one = members["segments"][0]
        members["segments"] = [
            {**one, "segment": n, "first_block": n * BLOCKS, "object_digests": {}}
            for n in range(count)
        ]

    return change


PROMISES = {
    **{f"layers {n}": edited(setting("layers", n)) for n in HUGE},
    **{f"compat layers {n}": edited(setting("compat", "layers", n)) for n in HUGE},
    **{f"head_dim {n}": edited(setting("compat", "head_dim", n)) for n in HUGE},
    **{f"kv_heads {n}": edited(setting("compat", "kv_heads", n)) for n in HUGE},
    **{f"block_tokens {n}": edited(setting("block_tokens", n)) for n in HUGE},
    **{f"blocks {n}": edited(setting("segments", 0, "blocks", n)) for n in (*HUGE, 0, -1)},
    **{f"first_block {n}": edited(setting("segments", 0, "first_block", n)) for n in HUGE},
    "floating layers": edited(setting("layers", 4.0)),
    "another dtype": edited(setting("compat", "dtype", "float32")),
    "another model": edited(setting("compat", "weights_sha256", "33" * 32)),
    "many segments": edited(repeat_segment(5000)),
    "many tracks": edited(setting("segments", 0, "tracks", [f"k.c{n}.s0" for n in range(100)])),
    "digests of too many layers": edited(
        setting("segments", 0, "object_digests", {"k.raw.s0": [["00" * 32] * BLOCKS] * 9})
    ),
    "digests of too many blocks": edited(
        setting("segments", 0, "object_digests", {"k.raw.s0": [["00" * 32] * 9] * LAYERS})
    ),
    "digests that are none": edited(
        setting("segments", 0, "object_digests", {"k.raw.s0": [["zz" * 32] * BLOCKS] * LAYERS})
    ),
    "the same member twice": versions(genuine())[-1].replace(b'"kvcs":1', b'"kvcs":1,"kvcs":1'),
}


def plain(data):
    copy = genuine()
    objects = copy.tracks.pop(SIGNED_MANIFEST)
    copy.tracks[MANIFEST] = [objects[-1]._replace(payload=data)]
    return copy


def signed(data):
    copy = genuine()
    copy.tracks[SIGNED_MANIFEST] = [
        copy.tracks[SIGNED_MANIFEST][-1]._replace(payload=encode_sign1(data, KEY))
    ]
    return copy


WAYS = {"plain": (plain, ConsumerConfig()), "signed": (signed, TRUST)}


HOSTILE = {**PROMISES, **{name: TEXTS[name](SIZE) for name in ("brackets", "escapes")}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_gives_nothing_and_one_sentence(way, name):
    copy, config = WAYS[way]
    outcome = run(retrieve(Liar(copy(HOSTILE[name])), config=config))

    assert (outcome.layers, outcome.verdict) == (0, None)
    assert isinstance(outcome.error, DataError | ConfigError)
    assert len(str(outcome.error)) < 300
    # Of the virtual clock: it is refused at once, and nobody waits for a better one.
    assert outcome.seconds < 1
    # More memory than the consumer has is no fault of the manifest.
    assert sum(outcome.refused.values()) == isinstance(outcome.error, DataError)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_costs_no_more_than_its_text(way, name):
    copy, config = WAYS[way]
    hostile = copy(HOSTILE[name])

    begun = time.process_time()
    run(retrieve(Liar(hostile), config=config))
    used = time.process_time() - begun
    tracemalloc.start()
    try:
        run(retrieve(Liar(hostile), config=config))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    # Of the whole retrieval, session, publisher and the copies on the way included.
    assert used < 1
    assert peak < 8 * len(HOSTILE[name]) + MIB


def peak_of(data):
    tracemalloc.start()
    try:
        with pytest.raises(ManifestError):
            parse_manifest(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def seconds_of(data):
    times = []
    for _ in range(3):
        begun = time.process_time()
        with pytest.raises(ManifestError):
            parse_manifest(data)
        times.append(time.process_time() - begun)
    return min(times)


@pytest.mark.parametrize("name", TEXTS)
def test_memory_and_time_grow_no_faster_than_the_text(name):
    text, smaller = TEXTS[name](SIZE), TEXTS[name](SIZE // 16)

    # A list of its values is the most that a refused text may take.
    assert peak_of(text) < 8 * len(text)
    # Sixteen times as long: linear work takes sixteen times as long, quadratic work 256 times.
    assert seconds_of(text) < 100 * max(seconds_of(smaller), 1e-4)


def exact(copy, config, **options):
    """Retrieve a publication of which nothing is known but the name."""

    async def scenario():
        network = MemoryNetwork()
        async with Liar(copy).open(network), connect(URL, transport=network) as connection:
            consumer = Consumer(connection, scope_key=SCOPE_KEY, config=config)
            retrieval = consumer.retrieve(consumer.candidate(copy.name), timeout=2.0, **options)
            async with asyncio.timeout(30), retrieval:
                async for _ in retrieval:
                    raise AssertionError("there is no such layer")
                return retrieval.verdict

    return run(scenario())


@pytest.mark.parametrize("way", WAYS)
def test_a_million_blocks_that_never_come_cost_a_few_octets_each(way):
    copy, config = WAYS[way]
    blocks = 2**20

    def promise(members):
        members["segments"][0] |= {"blocks": blocks, "object_digests": {}, "complete": False}

    hostile = copy(edited(promise))
    tracemalloc.start()
    try:
        verdict = exact(hostile, config)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert verdict.verified <= 2 * LAYERS * BLOCKS
    assert not verdict.complete
    assert verdict.verified_prefix_blocks <= BLOCKS
    # Two tracks of four layers; the memory for Data is mapped, and never touched.
    assert peak < 64 * 2 * LAYERS * blocks


@pytest.mark.parametrize("way", WAYS)
def test_more_memory_than_is_allowed_is_never_asked_for(way):
    copy, config = WAYS[way]
    config = replace(config, max_memory_bytes=MIB)

    def promise(members):
        members["segments"][0] |= {"blocks": 2**20, "object_digests": {}, "complete": False}

    with pytest.raises(KvcsError, match="max_memory_bytes"):
        exact(copy(edited(promise)), config)


def test_the_descriptor_is_that_of_the_name():
    # A relay can promise another geometry only under another name.
    other = replace(DESCRIPTOR, head_dim=DESCRIPTOR.head_dim * 1024)
    data = edited(lambda members: members.update(compat=other.to_json()))

    with pytest.raises(DataError, match="another model"):
        exact(plain(data), ConsumerConfig())
