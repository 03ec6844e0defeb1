"""The numpy Llama: right numbers, and the same numbers with a reused prefix."""

import pytest

# ruff: noqa: E402 - what needs the group light is imported once it is known to be there
np = pytest.importorskip("numpy", reason="the dependency group light is not installed")
pytest.importorskip("tokenizers", reason="the dependency group light is not installed")

from kvcs.engines.interface import NO_SPLIT, PassPlan, PrefixLost
from kvcs.engines.reference import Cache, CaptureCache, Llama, ReferenceEngine, StreamingCache
from kvcs.errors import ConfigError, LayoutMismatch
from kvcs.kv.identity import Dtype
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component

PROMPT = tuple((7 * i + 3) % 49 for i in range(14))
DTYPES = [Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16]


class Recorder:
    """A sink that keeps copies, joined over passes."""

    def __init__(self):
        self.passes = []
        self.layers = {}
        self.order = []

    def begin_pass(self, first_token, tokens):
        self.passes.append((first_token, tokens))

    def take_layer(self, layer_index, k, v):
        self.order.append(layer_index)
        old_k, old_v = self.layers.get(layer_index, (b"", b""))
        self.layers[layer_index] = (old_k + bytes(k), old_v + bytes(v))


class Source:
    """A prefix of recorded layers; those in `lost` do not come."""

    def __init__(self, recorder, tokens, lost=(), shorter=None):
        self.tokens = tokens
        self.asked = []
        self._recorder = recorder
        self._lost = lost
        self._shorter = shorter

    def wait_layer(self, layer_index):
        self.asked.append(layer_index)
        if layer_index in self._lost:
            raise PrefixLost(layer_index, "lost")
        k, v = self._recorder.layers[layer_index]
        size = len(k) // len(PROMPT) * self.tokens
        return k[:size], v[:size]

    def shorter(self):
        return self._shorter


def recorded(engine, plan=NO_SPLIT):
    recorder = Recorder()
    engine.prefill(PROMPT, recorder, plan=plan)
    return recorder


def oracle(checkpoint, tokens):
    """A second, naive implementation in float64: loops over heads, complex rotation."""
    config = checkpoint.config
    weights = {name: weight.astype(np.float64) for name, weight in checkpoint.weights.items()}
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-np.arange(half) / half)

    def normalized(x, name):
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_epsilon)
        return x / scale * weights[name]

    def rotated(x):
        z = x[:, :half] + 1j * x[:, half:]
        z = z * np.exp(1j * np.outer(np.arange(len(x)), frequencies))
        return np.concatenate([z.real, z.imag], axis=1)

    x = weights["model.embed_tokens.weight"][list(tokens)]
    for layer in range(config.layers):
        name = f"model.layers.{layer}."
        h = normalized(x, name + "input_layernorm.weight")
        heads = []
        for head in range(config.heads):
            shared = head // (config.heads // config.kv_heads)
            rows = slice(head * config.head_dim, (head + 1) * config.head_dim)
            kv_rows = slice(shared * config.head_dim, (shared + 1) * config.head_dim)
            q = rotated(h @ weights[name + "self_attn.q_proj.weight"][rows].T)
            k = rotated(h @ weights[name + "self_attn.k_proj.weight"][kv_rows].T)
            v = h @ weights[name + "self_attn.v_proj.weight"][kv_rows].T
            scores = q @ k.T / np.sqrt(config.head_dim)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            scores = np.exp(scores - scores.max(1, keepdims=True))
            heads.append(scores / scores.sum(1, keepdims=True) @ v)
        x = x + np.concatenate(heads, 1) @ weights[name + "self_attn.o_proj.weight"].T
        h = normalized(x, name + "post_attention_layernorm.weight")
        gate = h @ weights[name + "mlp.gate_proj.weight"].T
        up = h @ weights[name + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[name + "mlp.down_proj.weight"].T
    return x[-1]


@pytest.mark.parametrize("passes", [None, 1, 5])
def test_forward_agrees_with_a_naive_implementation(tiny, passes):
    model = Llama(tiny)
    cache = Cache(tiny.config, Dtype.FLOAT32)

    for start, end in PassPlan(pass_tokens=passes).passes(0, len(PROMPT)):
        state = model.forward(PROMPT[start:end], cache)

    assert cache.tokens == len(PROMPT)
    np.testing.assert_allclose(state, oracle(tiny, PROMPT), rtol=1e-4, atol=1e-5)


def test_a_model_with_a_head_of_its_own_uses_it(tiny):
    head = np.zeros((50, 16), np.float32)
    state = Llama(tiny).forward(PROMPT, Cache(tiny.config, Dtype.FLOAT32))
    head[33] = state
    untied = type(tiny)(
        config=tiny.config,
        weights={**tiny.weights, "lm_head.weight": head},
        tokenizer=tiny.tokenizer,
    )

    assert Llama(untied).next_token(state) == 33


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("plan", [NO_SPLIT, PassPlan(pass_tokens=4), PassPlan(pass_tokens=5)])
def test_prefill_hands_out_every_layer_of_every_pass_in_the_layout(tiny, dtype, plan):
    engine = ReferenceEngine(tiny, dtype=dtype)
    layout = Layout(engine.descriptor(2))

    recorder = recorded(engine, plan)

    assert recorder.order == list(range(3)) * len(recorder.passes)
    assert sum(tokens for _, tokens in recorder.passes) == len(PROMPT)
    for layer_index, pair in recorder.layers.items():
        for component, tensor in zip((Component.K, Component.V), pair, strict=True):
            assert len(layout.blocks(component, layer_index, tensor)) == len(PROMPT) // 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reused", [1, 4, 13])
def test_a_reused_prefix_gives_bit_equal_states_to_the_same_split(tiny, dtype, reused):
    engine = ReferenceEngine(tiny, dtype=dtype)
    model = Llama(tiny)
    recorder = recorded(engine, PassPlan(split_at=reused))
    local = Cache(tiny.config, dtype)
    model.forward(PROMPT[:reused], local)
    expected = model.forward(PROMPT[reused:], local)

    cache = StreamingCache(tiny.config, dtype, Source(recorder, reused))
    state = model.forward(PROMPT[reused:], cache)

    assert np.array_equal(state, expected)
    assert cache.tokens == len(PROMPT)
    assert len(cache.waits) == 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("plan", [NO_SPLIT, PassPlan(pass_tokens=3)])
def test_tokens_are_equal_with_and_without_reuse(tiny, dtype, plan):
    engine = ReferenceEngine(tiny, dtype=dtype)
    recorder = recorded(engine, plan)
    expected = engine.generate(PROMPT, new_tokens=8)

    generation = engine.generate(PROMPT, new_tokens=8, source=Source(recorder, 12), plan=plan)

    assert generation.tokens == expected.tokens
    assert generation.reused_tokens == 12
    assert expected.reused_tokens == 0


def test_each_layer_is_waited_for_once_and_only_when_it_is_needed(tiny):
    engine = ReferenceEngine(tiny)
    source = Source(recorded(engine), 12, lost={1})

    with pytest.raises(PrefixLost):
        engine.open_run(source).advance(PROMPT[12:])

    assert source.asked == [0, 1]


def test_a_prefix_lost_in_the_middle_gives_the_same_tokens(tiny):
    engine = ReferenceEngine(tiny)
    recorder = recorded(engine)
    expected = engine.generate(PROMPT, new_tokens=8)

    generation = engine.generate(PROMPT, new_tokens=8, source=Source(recorder, 12, lost={2}))

    assert generation.tokens == expected.tokens
    assert generation.reused_tokens == 0
    assert generation.failure.layer_index == 2


def test_a_shorter_prefix_that_is_there_is_used(tiny):
    engine = ReferenceEngine(tiny)
    recorder = recorded(engine)
    expected = engine.generate(PROMPT, new_tokens=8)
    source = Source(recorder, 12, lost={2}, shorter=Source(recorder, 4))

    generation = engine.generate(PROMPT, new_tokens=8, source=source)

    assert generation.tokens == expected.tokens
    assert generation.reused_tokens == 4


@pytest.mark.parametrize("size", [0, 11, 13])
def test_a_layer_of_another_size_is_refused(tiny, size):
    engine = ReferenceEngine(tiny)
    recorder = recorded(engine)
    source = Source(recorder, 12)
    k, v = recorder.layers[1]
    recorder.layers[1] = (k[: size * 32], v)

    with pytest.raises(LayoutMismatch, match="a layer of the prefix has"):
        engine.generate(PROMPT, new_tokens=1, source=source)


def test_what_the_sink_gets_is_a_copy_of_what_attention_uses(tiny):
    cache = CaptureCache(tiny.config, Dtype.FLOAT32, recorder := Recorder())
    keys = np.ones((2, 2, 4), np.float32)

    cache.update(0, keys, 2 * keys)

    assert recorder.layers[0] == (keys.tobytes(), (2 * keys).tobytes())


def test_descriptor_holds_what_changes_the_bytes(tiny):
    descriptor = ReferenceEngine(tiny, dtype=Dtype.BFLOAT16).descriptor(8)

    assert (descriptor.layers, descriptor.kv_heads, descriptor.head_dim) == (3, 2, 4)
    assert (descriptor.block_tokens, descriptor.dtype) == (8, Dtype.BFLOAT16)
    assert descriptor.position == "rope-applied,theta=10000"
    assert descriptor.weights_sha256 == tiny.weights_sha256()
    assert descriptor.extra == {"norm_epsilon": "1e-05"}


def test_one_changed_weight_is_another_descriptor(tiny):
    weights = dict(tiny.weights)
    weights["model.norm.weight"] = weights["model.norm.weight"] + np.eye(1, 16, 3, np.float32)[0]
    other = type(tiny)(config=tiny.config, weights=weights, tokenizer=tiny.tokenizer)

    assert ReferenceEngine(other).descriptor(8) != ReferenceEngine(tiny).descriptor(8)


def test_text_and_tokens(tiny):
    engine = ReferenceEngine(tiny)

    assert engine.tokenize("w3 w10 w49") == (3, 10, 49)
    assert engine.detokenize((3, 10)) == "w3 w10"


@pytest.mark.parametrize("tokens", [(), (50,), (-1,), (1,) * 65])
def test_prompts_that_the_model_cannot_take_are_refused(tiny, tokens):
    with pytest.raises(ConfigError, match="prompt"):
        ReferenceEngine(tiny).prefill(tokens, Recorder())


def test_new_tokens_count_against_the_context(tiny):
    with pytest.raises(ConfigError, match="1 to 64 tokens"):
        ReferenceEngine(tiny).generate(PROMPT, new_tokens=51)


def test_other_dtypes_are_refused(tiny):
    with pytest.raises(ConfigError, match="float8_e4m3fn"):
        ReferenceEngine(tiny, dtype=Dtype.FLOAT8_E4M3FN)
