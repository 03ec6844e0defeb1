"""Caches recorded from an engine, and given back to one."""

import pytest

from kvcs.engines.file import SAMPLE_CACHE, load_cache, save_cache
from kvcs.engines.interface import NO_SPLIT, PassPlan
from kvcs.engines.recording import CachePrefix, record_cache
from kvcs.errors import DataError
from kvcs.kv.identity import Descriptor, Dtype


class CountingEngine:
    """Row t of layer l holds l and t."""

    def prefill(self, tokens, sink, *, plan=NO_SPLIT):
        for first, end in plan.passes(0, len(tokens)):
            sink.begin_pass(first, end - first)
            for layer in range(2):
                k = b"".join(bytes((layer, t)) for t in range(first, end))
                v = b"".join(bytes((layer, 100 + t)) for t in range(first, end))
                sink.take_layer(layer, k, v)

    def descriptor(self, block_tokens):
        return Descriptor(
            layers=2,
            kv_heads=1,
            head_dim=1,
            block_tokens=block_tokens,
            dtype=Dtype.FLOAT16,
            position="none",
            weights_sha256="11" * 32,
            tokenizer_sha256="22" * 32,
        )


@pytest.mark.parametrize("plan", [NO_SPLIT, PassPlan(pass_tokens=3)])
def test_a_recording_holds_whole_blocks_of_every_layer(plan):
    cache = record_cache(CountingEngine(), range(11), block_tokens=4, plan=plan)

    assert cache.tokens == tuple(range(8))
    assert cache.ignored_tokens == 3
    assert bytes(cache.layers[1].k) == b"".join(bytes((1, t)) for t in range(8))
    assert bytes(cache.layers[0].v) == b"".join(bytes((0, 100 + t)) for t in range(8))


def test_a_recording_can_be_saved(tmp_path):
    cache = record_cache(CountingEngine(), range(8), block_tokens=4)

    save_cache(tmp_path / "cache.safetensors", cache)

    assert load_cache(tmp_path / "cache.safetensors") == cache


def test_less_than_a_block_is_refused():
    with pytest.raises(DataError, match="3 tokens do not fill a block of 4"):
        record_cache(CountingEngine(), range(3), block_tokens=4)


@pytest.mark.parametrize(("blocks", "tokens"), [(None, 8), (1, 4)])
def test_a_prefix_gives_the_wanted_blocks(blocks, tokens):
    prefix = CachePrefix(record_cache(CountingEngine(), range(8), block_tokens=4), blocks=blocks)

    k, v = prefix.wait_layer(1)

    assert prefix.tokens == tokens
    assert bytes(k) == b"".join(bytes((1, t)) for t in range(tokens))
    assert len(v) == 2 * tokens
    assert prefix.shorter() is None


def test_the_sample_is_a_whole_cache_of_its_text():
    cache = load_cache(SAMPLE_CACHE)

    assert (cache.blocks, len(cache.layers), cache.ignored_tokens) == (4, 30, 0)
    assert (cache.descriptor.block_tokens, cache.descriptor.dtype) == (64, Dtype.BFLOAT16)
    assert len(set(map(bytes, (pair.k for pair in cache.layers.values())))) == 30
    assert SAMPLE_CACHE.with_suffix(".txt").read_text(encoding="utf-8").startswith("Alice was")
