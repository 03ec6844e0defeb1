"""The event loop goes on while a manifest of 10 MB is published, and while it is received."""

import asyncio
import json
import os
import sys
from dataclasses import replace

import pytest
from tests.unit.client.heartbeat import worst_gap

from kvcs.client.config import ConsumerConfig, PublisherConfig
from kvcs.client.manifest_versions import ManifestVersions
from kvcs.client.publisher import Publisher
from kvcs.cose import Algorithm, SigningKey
from kvcs.kv import Component, DataTrackName, ScopeKey, TrustedProducers, sign_manifest
from kvcs.kv.descriptor import Descriptor, Dtype
from kvcs.kv.sealing import ObjectKey
from kvcs.moqt.wire.object import Object

SCOPE_KEY = ScopeKey(bytes(range(32)))
KEY = SigningKey(b"producer-1", Algorithm.ES256, bytes(31) + b"\x07")
OBJECT_KEY = ObjectKey(key_id=7, secret=bytes(range(16)))
LAYERS, BLOCKS = 320, 256
DESCRIPTOR = Descriptor(
    layers=LAYERS,
    block_tokens=1,
    dtype=Dtype.FLOAT16,
    position="rope-applied",
    weights_sha256="11" * 32,
    tokenizer_sha256="22" * 32,
    kv_heads=1,
    head_dim=1,
)
TRACKS = tuple(DataTrackName(component, "raw", 0) for component in (Component.K, Component.V))
ROUNDS = 5


@pytest.fixture(autouse=True)
def quick_switches():
    """Let threads hand over the interpreter sooner than after the usual 5 ms.

    What is left of a gap is what no thread can interrupt, on a fast machine too.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    yield
    sys.setswitchinterval(before)


def digests(layers):
    """Digests of some layers of one track."""
    return tuple(tuple(os.urandom(32) for _ in range(BLOCKS)) for _ in range(layers))


async def published(config):
    """Publish the version with the last layer, and return the gap and the manifest track."""
    publisher = Publisher(scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=config)
    async with publisher.publication(range(BLOCKS)) as publication:
        await publication.add_segment()
        tracks = publication.tracks
        segment = replace(
            tracks.manifest.segments[0],
            object_digests={str(name): digests(LAYERS - 1) for name in TRACKS},
        )
        tracks.manifest = tracks.manifest.with_segment(segment)
        payloads = {name: [(b"", digest) for digest in digests(1)[0]] for name in TRACKS}
        gap = await worst_gap(publication.publish_layer(0, LAYERS - 1, payloads))
        (newest,) = [obj for obj in tracks.manifest_track.store.objects() if obj.group_id == 1]
        assert len(newest.payload) > 10_000_000
        publication.abort()
    return gap, tracks


@pytest.mark.parametrize("object_key", [None, OBJECT_KEY], ids=["signed", "sealed"])
async def test_the_loop_goes_on_while_a_large_manifest_is_published(object_key):
    config = PublisherConfig(signing_key=KEY, object_key=object_key)
    in_loop = replace(config, write_threshold_bytes=None)

    inside = [(await published(in_loop))[0] for _ in range(ROUNDS)]
    beside = [(await published(config))[0] for _ in range(ROUNDS)]

    assert min(beside) < min(inside) / 2, (beside, inside)


async def received(name, data, config):
    """Take one version, and return the gap."""
    done = asyncio.Event()
    refused = []
    versions = ManifestVersions(
        name,
        config,
        check=lambda _: None,
        on_manifest=lambda _: done.set(),
        on_refused=lambda error, _: refused.append(error) or done.set(),
    )
    versions.is_signed = True
    obj = Object(group_id=1, object_id=0, subgroup_id=0, publisher_priority=0, payload=data)

    async def take():
        versions.receive(obj)
        await done.wait()

    gap = await worst_gap(take())
    assert refused == []
    return gap


async def test_the_loop_goes_on_while_a_large_manifest_is_received():
    _, tracks = await published(PublisherConfig(signing_key=KEY))
    name, manifest = tracks.name, tracks.manifest
    data, text = sign_manifest(manifest, name, 1, KEY), manifest.encode()
    config = ConsumerConfig(trusted_producers=TrustedProducers((KEY.public,)))
    in_loop = replace(config, parse_threshold_bytes=None)

    async def parse_in_one_piece():
        await asyncio.get_running_loop().run_in_executor(None, json.loads, text)

    inside = [await received(name, data, in_loop) for _ in range(ROUNDS)]
    in_one_piece = [await worst_gap(parse_in_one_piece()) for _ in range(ROUNDS)]
    beside = [await received(name, data, config) for _ in range(ROUNDS)]

    # A thread alone is no help: one call that parses everything keeps the interpreter for itself.
    assert min(beside) < 0.6 * max(in_one_piece), (beside, in_one_piece)
    assert min(beside) < min(inside) / 3, (beside, inside)
