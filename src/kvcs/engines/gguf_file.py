"""Llama checkpoints in GGUF, the format of llama.cpp.

Quantised tensors are widened to float32. llama.cpp keeps the rows of the query and key
projections in the order of its own rotary embedding; they are put back here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kvcs.engines.checkpoint import Checkpoint, Floats, LlamaConfig
from kvcs.errors import ConfigError

__all__ = ("load_gguf",)

# llama.cpp's names of a layer's parameters, and those of Hugging Face.
_LAYER_NAMES: Final = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_CONTROL_TOKEN: Final = 3


def load_gguf(path: Path) -> Checkpoint:
    """Load a Llama with a byte-level BPE tokenizer of the SmolLM family.

    Raises:
        ConfigError: `path` is not such a file.
    """
    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"{path}", "a GGUF file or a model directory", str(error)) from error
    fields = _Fields(path, reader)
    fields.expect("general.architecture", "llama")
    fields.expect("tokenizer.ggml.model", "gpt2")
    fields.expect("tokenizer.ggml.pre", "smollm")
    fields.expect("llama.rope.scaling.type", "none", default="none")
    config = _config(fields)
    weights: dict[str, Floats] = {}
    for tensor in reader.tensors:
        shape = tuple(int(extent) for extent in reversed(tensor.shape))
        # What is not quantised is a read-only view of the file, and is copied.
        weight = np.require(dequantize(tensor.data, tensor.tensor_type), np.float32, ["W"])
        name = _parameter_name(path, tensor.name)
        weights[name] = _restore_rows(name, weight.reshape(shape), config)
    return Checkpoint(
        config=config,
        weights=weights,
        tokenizer=_tokenizer(fields),
        chat_template=fields.value("tokenizer.chat_template", default=None),
    )


class _Fields:
    """The key-value part of a GGUF file."""

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self._path = path
        self._fields: Mapping[str, Any] = reader.fields

    def value(self, name: str, **default: Any) -> Any:
        if name in self._fields:
            return self._fields[name].contents()
        if "default" in default:
            return default["default"]
        raise ConfigError(f"{self._path}", f"the field {name}", "none")

    def expect(self, name: str, expected: str, **default: Any) -> None:
        got = self.value(name, **default)
        if got != expected:
            raise ConfigError(f"{self._path}: {name}", expected, str(got))


def _config(fields: _Fields) -> LlamaConfig:
    heads = int(fields.value("llama.attention.head_count"))
    hidden = int(fields.value("llama.embedding_length"))
    return LlamaConfig(
        layers=int(fields.value("llama.block_count")),
        hidden=hidden,
        intermediate=int(fields.value("llama.feed_forward_length")),
        heads=heads,
        kv_heads=int(fields.value("llama.attention.head_count_kv", default=heads)),
        head_dim=int(fields.value("llama.attention.key_length", default=hidden // heads)),
        vocabulary=len(fields.value("tokenizer.ggml.tokens")),
        context=int(fields.value("llama.context_length")),
        rope_theta=float(fields.value("llama.rope.freq_base", default=10000.0)),
        norm_epsilon=float(fields.value("llama.attention.layer_norm_rms_epsilon")),
        end_tokens=(int(fields.value("tokenizer.ggml.eos_token_id")),),
    )


def _parameter_name(path: Path, name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match name.split("."):
        case ["blk", layer_index, part, "weight"] if part in _LAYER_NAMES:
            return f"model.layers.{layer_index}.{_LAYER_NAMES[part]}.weight"
        case _:
            raise ConfigError(f"{path}", "the tensors of a Llama", name)


def _restore_rows(name: str, weight: Floats, config: LlamaConfig) -> Floats:
    """Undo llama.cpp's interleaving of the two halves of each head's rotary dimensions."""
    if name.endswith("q_proj.weight"):
        heads = config.heads
    elif name.endswith("k_proj.weight"):
        heads = config.kv_heads
    else:
        return weight
    rows, columns = weight.shape
    halves = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _tokenizer(fields: _Fields) -> Tokenizer:
    texts: list[str] = fields.value("tokenizer.ggml.tokens")
    kinds: list[int] = fields.value("tokenizer.ggml.token_type")
    merges: list[str] = fields.value("tokenizer.ggml.merges")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={text: token for token, text in enumerate(texts)},
            merges=[(left, right) for left, _, right in (pair.partition(" ") for pair in merges)],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [text for text, kind in zip(texts, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType]
        [AddedToken(text, special=True) for text in control]
    )
    return tokenizer
