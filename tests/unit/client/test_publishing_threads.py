"""Layers and versions of the manifest are encoded in threads when they are large, and in order."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from kvcs.client import segment as segment_module
from kvcs.client.config import PublisherConfig
from kvcs.client.manifest_draft import ManifestDraft
from kvcs.client.publisher import Publisher
from kvcs.cose import Algorithm, SigningKey
from kvcs.errors import ConfigError, LocalProtocolError
from kvcs.kv import ScopeKey, TrustedProducers, verify_manifest
from kvcs.kv.descriptor import Descriptor, Dtype
from kvcs.kv.sealing import ObjectKey
from kvcs.names import Location

LAYERS = 4
DATA_BYTES = 2
SCOPE_KEY = ScopeKey(bytes(range(32)))
KEY = SigningKey(b"producer-1", Algorithm.ES256, bytes(31) + b"\x07")
PRODUCERS = TrustedProducers((KEY.public,))
SIGNED = PublisherConfig(signing_key=KEY)
ALWAYS = PublisherConfig(signing_key=KEY, write_threshold_bytes=0)


def publisher(config, *, head_dim=1):
    descriptor = Descriptor(
        layers=LAYERS,
        block_tokens=1,
        dtype=Dtype.FLOAT16,
        position="rope-applied",
        weights_sha256="11" * 32,
        tokenizer_sha256="22" * 32,
        kv_heads=1,
        head_dim=head_dim,
    )
    return Publisher(scope_key=SCOPE_KEY, descriptor=descriptor, config=config)


async def publish(segment, layer_index, *, head_dim=1):
    data = bytes(DATA_BYTES * head_dim * segment.blocks)
    await segment.publish_layer(layer_index, data, data)


def newest(publication):
    """Number of the newest version, and how many layers of each segment it lists."""
    *_, obj = publication.tracks.manifest_track.store.objects()
    segments = verify_manifest(obj.payload, PRODUCERS).manifest.segments
    listed = [len(segment.object_digests.get(segment.tracks[0], ())) for segment in segments]
    return obj.group_id, listed


class Watched:
    """Notes for each version whether it is written beside the event loop, and may hold it up."""

    def __init__(self, monkeypatch):
        self.beside = []
        self.gate = threading.Event()
        self.gate.set()
        self.error = None
        write, own = ManifestDraft.write, threading.get_ident()

        def watched(draft):
            if draft._payload is None:
                self.beside.append(threading.get_ident() != own)
                assert not self.beside[-1] or self.gate.wait(10)
                error, self.error = self.error, None
                if error is not None:
                    raise error
            return write(draft)

        monkeypatch.setattr(ManifestDraft, "write", watched)

    @asynccontextmanager
    async def holding(self, work):
        """Begin `work`, and go on while a version is written for it."""
        self.gate.clear()
        before = len(self.beside)
        task = asyncio.ensure_future(work)
        async with asyncio.timeout(10):
            while len(self.beside) == before:  # noqa: ASYNC110 - a thread answers
                await asyncio.sleep(0.001)
        try:
            yield task
        finally:
            self.gate.set()
            await asyncio.wait([task])


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


@pytest.mark.parametrize(("threshold", "beside"), [(2**18, [2, 3]), (0, [0, 1, 2, 3]), (None, [])])
async def test_a_version_is_written_in_a_thread_from_its_size_on(watched, threshold, beside):
    config = PublisherConfig(signing_key=KEY, write_threshold_bytes=threshold)
    assert PublisherConfig().write_threshold_bytes == 2**18
    # 2 tracks of 1000 blocks: 134 kB for each layer.
    async with publisher(config).publication(range(1000)) as publication:
        segment = await publication.add_segment()
        for layer_index in range(LAYERS):
            await publish(segment, layer_index)

        assert [version for version, it in enumerate(watched.beside) if it] == beside
        assert newest(publication) == (3, [LAYERS])
        await publication.complete()


@pytest.mark.parametrize(
    ("threshold", "blocks", "is_beside"),
    [(2**20, 64, True), (2**20, 63, False), (0, 1, True), (None, 64, False)],
)
async def test_a_layer_is_encoded_in_a_thread_from_its_size_on(
    monkeypatch, threshold, blocks, is_beside
):
    config = PublisherConfig(hash_threshold_bytes=threshold)
    assert PublisherConfig().hash_threshold_bytes == 2**20
    encode, threads = segment_module.encode_layer, set()

    def watched(*args):
        threads.add(threading.get_ident())
        return encode(*args)

    monkeypatch.setattr(segment_module, "encode_layer", watched)
    # Data of 8 KiB in each of two tracks: 64 blocks are 1 MiB.
    async with publisher(config, head_dim=4096).publication(range(blocks)) as publication:
        await publish(await publication.add_segment(), 0, head_dim=4096)
        publication.abort()

    assert (threads != {threading.get_ident()}) is is_beside


async def test_nothing_is_published_before_the_version_that_lists_it_is_written(watched):
    async with publisher(ALWAYS).publication(range(3)) as publication:
        segment = await publication.add_segment()
        tracks = publication.tracks

        async with watched.holding(publish(segment, 0)) as task:
            assert not task.done()
            assert newest(publication) == (0, [0])
            assert all(track.store.largest is None for track in tracks.data_tracks(0))
            assert segment.next_layer == 0

        assert newest(publication) == (1, [1])
        assert all(track.store.largest == Location(0, 3) for track in tracks.data_tracks(0))
        assert segment.next_layer == 1
        publication.abort()


async def test_versions_of_two_segments_come_one_after_the_other(watched):
    async with publisher(ALWAYS).publication(range(4)) as publication:
        first = await publication.add_segment(2)

        async with watched.holding(publish(first, 0)):
            second = asyncio.ensure_future(publication.add_segment(1))
            await asyncio.sleep(0.01)
            assert not second.done()
            assert newest(publication) == (0, [0])
        await asyncio.gather(*(publish(it, it.next_layer) for it in (first, await second)))

        assert newest(publication) == (4, [2, 1])
        publication.abort()


async def test_older_versions_are_not_dropped_for_one_that_is_being_written(watched):
    async with publisher(ALWAYS).publication(range(3)) as publication:
        segment = await publication.add_segment()

        async with watched.holding(publish(segment, 0)):
            publication._release()
            assert newest(publication) == (0, [0])
        publication._release()

        assert newest(publication) == (1, [1])
        publication.abort()


async def test_an_error_in_the_thread_is_the_callers_and_nothing_is_published(watched):
    async with publisher(ALWAYS).publication(range(3)) as publication:
        segment = await publication.add_segment()

        watched.error = ConfigError("object_key", "a key with another Key ID")
        with pytest.raises(ConfigError, match="object_key"):
            await publish(segment, 0)
        assert newest(publication) == (0, [0])
        assert segment.next_layer == 0
        await publish(segment, 0)

        # The number of a version that came to nothing is not given again.
        assert newest(publication) == (2, [1])
        publication.abort()


async def test_a_first_segment_that_fails_leaves_no_publication_behind(watched):
    here = publisher(ALWAYS)
    async with here.publication(range(3)) as publication:
        watched.error = ConfigError("object_key", "a key with another Key ID")
        with pytest.raises(ConfigError):
            await publication.add_segment(3)
        assert list(here.namespaces()) == []

        await publication.add_segment(2)

        assert publication.name.anchor_key == publication.block_keys[1]
        assert newest(publication) == (0, [0])
        publication.abort()


async def test_a_publication_may_end_while_a_version_is_written(watched):
    async with publisher(ALWAYS).publication(range(3)) as publication:
        segment = await publication.add_segment()
        async with watched.holding(publish(segment, 0)) as task:
            publication.abort()

        with pytest.raises(LocalProtocolError, match="over"):
            await task


async def test_who_gives_up_while_a_version_is_written_may_try_again(watched):
    config = PublisherConfig(
        signing_key=KEY,
        object_key=ObjectKey(key_id=7, secret=bytes(range(16))),
        write_threshold_bytes=0,
    )
    async with publisher(config).publication(range(3)) as publication:
        segment = await publication.add_segment()
        async with watched.holding(publish(segment, 0)) as task:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        await publish(segment, 0)

        # Version 1 may have been sealed by the thread: nothing else is sealed in its place.
        *_, obj = publication.tracks.manifest_track.store.objects()
        assert obj.group_id == 2
        assert segment.next_layer == 1
        publication.abort()
