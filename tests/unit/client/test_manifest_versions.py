"""Versions of a manifest, as they come: order, threads, and what a refusal does."""

import asyncio
import threading
from dataclasses import replace

import pytest

from kvcs.client.config import ConsumerConfig
from kvcs.client.manifest_versions import ManifestVersions
from kvcs.cose import Algorithm, SigningKey
from kvcs.errors import KeyMismatch, ManifestError, NotAuthentic
from kvcs.kv import PublicationName, TrustedProducers, sign_manifest
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.wire.object import Object

KEY = SigningKey(b"producer-1", Algorithm.ES256, bytes(31) + b"\x07")
OTHER = SigningKey(b"producer-2", Algorithm.EDDSA, bytes(range(32)))
TRUST = ConsumerConfig(
    trusted_producers=TrustedProducers((KEY.public, OTHER.public)), parse_threshold_bytes=None
)
IN_THREAD = replace(TRUST, parse_threshold_bytes=0)


class Desk:
    """A manifest that grows by a layer with each version, and what is made of it."""

    def __init__(self, sample, config, *, check=lambda _: None):
        self.sample = sample
        self.name = PublicationName(
            scope_id=bytes(16),
            compatibility_id=bytes(32),
            anchor_key=sample.keys[3],
            publication_id=b"p" * 16,
        )
        self.taken = []
        self.refused = []
        self.versions = ManifestVersions(
            self.name,
            config,
            check=check,
            on_manifest=self.taken.append,
            on_refused=lambda error, discards: self.refused.append((error, discards)),
        )
        self.versions.is_signed = True

    def manifest(self, layers, *, extra=None):
        digests = {"k.raw.s0": self.sample.digests(1, layers)} if layers else {}
        segment = replace(self.sample.manifest.segments[0], object_digests=digests)
        return replace(self.sample.manifest.with_segment(segment), extra=extra or {})

    def receive(self, version, layers=None, *, place=None, key=KEY, payload=None, **changes):
        manifest = self.manifest(version if layers is None else layers)
        data = sign_manifest(manifest, self.name, version, key) if payload is None else payload
        obj = Object(
            group_id=version if place is None else place,
            object_id=0,
            subgroup_id=0,
            publisher_priority=0,
            payload=data,
        )
        self.versions.receive(obj._replace(**changes))

    async def settle(self):
        async with asyncio.timeout(10):
            while self.versions.is_busy:  # noqa: ASYNC110 - a callback of a thread
                await asyncio.sleep(0.001)

    @property
    def listed(self):
        return [
            len(manifest.segments[0].object_digests.get("k.raw.s0", ())) for manifest in self.taken
        ]


@pytest.fixture
def make(sample):
    return lambda config=TRUST, **options: Desk(sample, config, **options)


@pytest.mark.parametrize("config", [TRUST, IN_THREAD])
async def test_versions_are_taken_in_order_and_older_ones_passed_over(make, config):
    desk = make(config)

    for version in (0, 2, 1, 3, 3):
        desk.receive(version)
    await desk.settle()

    assert desk.listed == [0, 2, 3]
    assert desk.refused == []
    assert (desk.versions.version, desk.versions.key) == (3, KEY.public)


async def test_a_large_version_is_read_in_a_thread_and_the_event_loop_goes_on(make, monkeypatch):
    desk = make(IN_THREAD)
    threads, gate = [], threading.Event()
    read = desk.versions._read

    def watched(*args):
        threads.append(threading.current_thread())
        assert gate.wait(10)
        return read(*args)

    monkeypatch.setattr(ManifestVersions, "_read", lambda _self, *args: watched(*args))

    desk.receive(0)
    desk.receive(1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert desk.versions.is_busy
    assert desk.taken == []
    gate.set()
    await desk.settle()

    assert desk.listed == [0, 1]
    assert threading.main_thread() not in threads


async def test_a_small_version_does_not_overtake_a_large_one(make):
    size = len(sign_manifest(make().manifest(1), make().name, 0, KEY))
    desk = make(replace(TRUST, parse_threshold_bytes=size))

    desk.receive(0, 3)
    desk.receive(1, 3)
    desk.receive(2, 0)
    await desk.settle()

    assert desk.listed == [3, 3]
    assert [discards for _, discards in desk.refused] == [True]


async def test_of_too_many_that_wait_the_oldest_go(make):
    desk = make(replace(IN_THREAD, max_waiting_manifests=2))

    for version in range(6):
        desk.receive(version, min(version, 3))
    await desk.settle()

    assert desk.listed == [0, 3, 3]
    assert desk.versions.version == 5


async def test_nothing_is_taken_after_closing(make):
    desk = make(IN_THREAD)
    desk.receive(0)
    desk.receive(1)

    desk.versions.close()
    await desk.settle()
    desk.receive(2)

    assert desk.taken == desk.refused == []


@pytest.mark.parametrize("config", [TRUST, IN_THREAD])
async def test_a_version_that_cannot_be_believed_changes_nothing(make, config):
    desk = make(config)
    desk.receive(0)
    await desk.settle()

    desk.receive(1, payload=b"{}")
    desk.receive(1, place=2)
    desk.receive(3, key=OTHER)
    desk.receive(3, key=SigningKey.generate(b"producer-1"))
    await desk.settle()
    desk.receive(1)
    await desk.settle()

    assert desk.listed == [0, 1]
    assert all(isinstance(error, NotAuthentic) for error, _ in desk.refused)
    reasons = [error.reason for error, _ in desk.refused]
    assert sorted(reasons) == ["binding", "envelope", "key", "signature"]
    assert not any(discards for _, discards in desk.refused)
    assert desk.versions.error is None


@pytest.mark.parametrize("config", [TRUST, IN_THREAD])
async def test_a_producer_that_contradicts_itself_discards_its_publication(make, config):
    desk = make(config)
    desk.receive(0, 3)
    desk.receive(1, 2)
    await desk.settle()

    ((error, discards),) = desk.refused
    assert isinstance(error, ManifestError)
    assert discards


async def test_another_producers_contradiction_does_not(make):
    desk = make()
    desk.receive(0, 3)
    desk.receive(1, 2, key=OTHER)

    ((error, discards),) = desk.refused
    assert (error.reason, discards) == ("key", False)


async def test_a_version_of_another_model_discards_the_publication(make):
    def check(_):
        raise KeyMismatch("another model")

    desk = make(check=check)
    desk.receive(0)

    ((error, discards),) = desk.refused
    assert isinstance(error, KeyMismatch)
    assert discards
    assert desk.versions.error is error
    assert desk.versions.has_outcome


async def test_what_is_no_version_is_not_looked_at(make):
    desk = make()

    desk.receive(0, object_id=1)
    desk.receive(0, status=ObjectStatus.END_OF_GROUP, payload=b"")

    assert not desk.versions.has_outcome


async def test_another_peer_goes_on_where_the_first_one_was(make):
    first, second = make(), make()
    first.receive(2)

    second.versions.resume(first.versions)
    second.receive(1)
    second.receive(3, key=OTHER)
    second.receive(3)

    assert second.listed == [3]
    assert [error.reason for error, _ in second.refused] == ["key"]
