"""KV caches in files: safetensors with a descriptor in the metadata.

Tensors are ``k.<layer>`` and ``v.<layer>``, ``[tokens, kv_heads, head_dim]``, and ``tokens``,
the token sequence, U32 or I64. Metadata: ``kvcs.format`` is ``"1"``, ``kvcs.compat`` is the
JSON of the Compatibility Descriptor. Tokens beyond the last whole block are ignored.

The safetensors library checks the framing of a file; what a KV cache adds to it is checked
here. Nothing needs numpy or torch.
"""

import array
import os
import secrets
import sys
from collections.abc import Buffer, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypedDict

from safetensors import SafetensorError
from safetensors import deserialize as _deserialize  # pyright: ignore[reportUnknownVariableType]

from kvcs.errors import DataError, FileFailed, LayoutMismatch
from kvcs.kv.identity import MAX_TOKEN, Descriptor, Dtype
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component
from kvcs.kv.strict_json import JsonLimits, decode_json, encode_json
from kvcs.replaceable import replaceable

__all__ = (
    "MAX_HEADER_BYTES",
    "SAMPLE_CACHE",
    "CacheFile",
    "LayerTensors",
    "StoredTensor",
    "decode_safetensors",
    "load_cache",
    "save_cache",
)

FORMAT: Final = "1"

# The cache that is shipped, made by examples/make_sample_cache.py; its text lies beside it.
SAMPLE_CACHE: Final = Path(__file__).parents[1] / "data" / "alice.safetensors"

# A header needs about 100 octets a tensor; this is room for the largest model there can be.
MAX_HEADER_BYTES: Final = 2**20
_HEADER_LIMITS: Final = JsonLimits(max_bytes=MAX_HEADER_BYTES, max_depth=3, max_values=2**17)

_SAFETENSORS_DTYPE: Final = {
    Dtype.FLOAT16: "F16",
    Dtype.BFLOAT16: "BF16",
    Dtype.FLOAT32: "F32",
    Dtype.FLOAT8_E4M3FN: "F8_E4M3",
    Dtype.FLOAT8_E4M3FNUZ: "F8_E4M3FNUZ",
    Dtype.FLOAT8_E5M2: "F8_E5M2",
    Dtype.FLOAT8_E5M2FNUZ: "F8_E5M2FNUZ",
}
_COMPONENTS: Final = (Component.K, Component.V)
_TOKEN_FORMAT: Final = {"U32": "I", "I64": "q"}


class StoredTensor(TypedDict):
    """One tensor as the safetensors library returns it.

    Attributes:
        dtype: Element type, for example ``"BF16"``.
        shape: Extents.
        data: The elements, C order, little-endian, in memory of their own.
    """

    dtype: str
    shape: list[int]
    data: bytearray


class LayerTensors(NamedTuple):
    """Keys and values of one layer, ``[tokens, kv_heads, head_dim]`` each, as octets."""

    k: memoryview
    v: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFile:
    """A KV cache in memory, whole blocks only.

    Attributes:
        descriptor: What it was computed with.
        tokens: The tokens of its blocks.
        layers: Tensors by layer index; all layers unless it was loaded as partial.
        ignored_tokens: Tokens of the file beyond the last whole block.
    """

    descriptor: Descriptor
    tokens: tuple[int, ...]
    layers: Mapping[int, LayerTensors]
    ignored_tokens: int = 0

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.tokens) // self.descriptor.block_tokens

    @property
    def note(self) -> str | None:
        """What the user should know about the file, or None."""
        if not self.ignored_tokens:
            return None
        return (
            f"the last {self.ignored_tokens} tokens are ignored: they do not fill a block of "
            f"{self.descriptor.block_tokens}"
        )


def load_cache(path: Path, *, partial: bool = False) -> CacheFile:
    """Load a cache; the file is read once.

    Args:
        path: File.
        partial: Accept a file that lacks layers, as a retrieval of some layers writes.

    Raises:
        FileFailed: The file cannot be read.
        DataError: It is damaged, or not a KV cache. The texts name the file.
    """
    try:
        header, data = _read(path)
        return _parse(header, decode_safetensors(data), partial=partial)
    except OSError as error:
        raise FileFailed(f"{path}: cannot be read: {error.strerror or error}") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def save_cache(path: Path, cache: CacheFile) -> None:
    """Save `cache`; the file appears at once and whole, or not at all.

    Raises:
        FileFailed: The file cannot be written.
        LayoutMismatch: A tensor does not have the octets that the descriptor asks for.
    """
    tensors = _tensors(cache)
    header: dict[str, Any] = {
        "__metadata__": {
            "kvcs.format": FORMAT,
            "kvcs.compat": cache.descriptor.canonical().decode(),
        }
    }
    offset = 0
    for name, dtype, shape, tensor in tensors:
        end = offset + memoryview(tensor).nbytes
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    head = encode_json(header).encode()
    head += b" " * (-len(head) % 8)
    with _replacing(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for *_, tensor in tensors:
            file.write(tensor)


def _tensors(cache: CacheFile) -> list[tuple[str, str, tuple[int, ...], Buffer]]:
    """Return name, dtype, shape and octets of everything in `cache`."""
    layout = Layout(cache.descriptor)
    dtype = _SAFETENSORS_DTYPE[cache.descriptor.dtype]
    tokens = len(cache.tokens)
    tensors: list[tuple[str, str, tuple[int, ...], Buffer]] = [
        ("tokens", "U32", (tokens,), _encode_tokens(cache.tokens))
    ]
    for layer_index, pair in sorted(cache.layers.items()):
        for component, tensor in zip(_COMPONENTS, pair, strict=True):
            layout.blocks(component, layer_index, tensor, count=cache.blocks)
            shape = layout.shape(component, layer_index, tokens)
            tensors.append((f"{component.label}.{layer_index}", dtype, shape, tensor))
    return tensors


def decode_safetensors(data: bytes) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file.

    Raises:
        DataError: `data` is not one.
    """
    try:
        return dict(_deserialize(data))  # pyright: ignore[reportUnknownArgumentType]
    except SafetensorError as error:
        raise DataError(f"not a safetensors file: {error}") from error


@contextmanager
def _replacing(path: Path) -> Generator[BinaryIO]:
    """Open a file beside `path`, which takes its place when everything went well."""
    try:
        place = replaceable(path)
        beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
        try:
            with beside.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise FileFailed(f"{path}: cannot be written: {error.strerror or error}") from error


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the header and the whole file, which is read only if the header is bounded."""
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > MAX_HEADER_BYTES:
            raise DataError("not a KV cache in safetensors form")
        head = file.read(length)
        if len(head) < length:
            raise DataError("the file ends inside its header")
        try:
            header = decode_json(head, _HEADER_LIMITS)
        except ValueError as error:
            raise DataError(f"not a KV cache in safetensors form: header: {error}") from error
        if not isinstance(header, dict):
            raise DataError("not a KV cache in safetensors form: the header is no JSON object")
        return header, prefix + head + file.read()


def _parse(
    header: Mapping[str, Any], entries: dict[str, StoredTensor], *, partial: bool
) -> CacheFile:
    descriptor = _parse_metadata(header.get("__metadata__") or {})
    tokens = _decode_tokens(entries.pop("tokens", None))
    ignored = len(tokens) % descriptor.block_tokens
    if ignored == len(tokens):
        raise DataError(f"{ignored} tokens are less than a block ({descriptor.block_tokens})")
    layers = _take_layers(entries, descriptor, len(tokens), partial=partial)
    if entries:
        raise DataError(f"unexpected tensor {min(entries)[:80]!r}")
    if not layers:
        raise DataError("no layer at all")
    return CacheFile(
        descriptor=descriptor,
        tokens=tokens[: len(tokens) - ignored],
        layers=layers,
        ignored_tokens=ignored,
    )


def _parse_metadata(metadata: Mapping[str, str]) -> Descriptor:
    found = metadata.get("kvcs.format", "none")
    if found != FORMAT:
        raise DataError(f"metadata kvcs.format must be {FORMAT!r}, got {found[:20]!r}")
    if "kvcs.compat" not in metadata:
        raise DataError("metadata lacks kvcs.compat, the descriptor")
    return Descriptor.decode(metadata["kvcs.compat"].encode())


def _take_layers(
    entries: dict[str, StoredTensor], descriptor: Descriptor, tokens: int, *, partial: bool
) -> dict[int, LayerTensors]:
    """Move the layers out of `entries`, cut to whole blocks."""
    layout = Layout(descriptor)
    blocks = tokens // descriptor.block_tokens
    layers: dict[int, LayerTensors] = {}
    lacking: list[int] = []
    for layer_index in range(descriptor.layers):
        names = {component: f"{component.label}.{layer_index}" for component in _COMPONENTS}
        if not any(name in entries for name in names.values()):
            lacking.append(layer_index)
            continue
        pair: list[memoryview] = []
        for component, name in names.items():
            shape = layout.shape(component, layer_index, tokens)
            tensor = _tensor(name, entries.pop(name, None), descriptor.dtype, shape)
            pair.append(tensor[: blocks * layout.data_bytes(component, layer_index)])
        layers[layer_index] = LayerTensors(*pair)
    if lacking and layers and not partial:
        raise LayoutMismatch(
            f"tensor k.{lacking[0]} is missing: the file has {len(layers)} of {descriptor.layers} "
            "layers, and all are needed"
        )
    return layers


def _tensor(
    name: str, entry: StoredTensor | None, dtype: Dtype, shape: tuple[int, ...]
) -> memoryview:
    if entry is None:
        raise LayoutMismatch(f"tensor {name} is missing")
    expected = _SAFETENSORS_DTYPE[dtype]
    if entry["dtype"] != expected:
        raise LayoutMismatch(f"tensor {name} has dtype {entry['dtype']}, the descriptor {expected}")
    if entry["shape"] != list(shape):
        raise LayoutMismatch(f"tensor {name} has shape {entry['shape']}, expected {list(shape)}")
    return memoryview(entry["data"]).toreadonly()


def _decode_tokens(entry: StoredTensor | None) -> tuple[int, ...]:
    if entry is None:
        raise DataError("the tensor 'tokens' is missing")
    if entry["dtype"] not in _TOKEN_FORMAT or len(entry["shape"]) != 1:
        raise DataError("the tensor 'tokens' must be U32 or I64 with one dimension")
    tokens = array.array(_TOKEN_FORMAT[entry["dtype"]], bytes(entry["data"]))
    if sys.byteorder == "big":
        tokens.byteswap()
    if tokens and not 0 <= min(tokens) <= max(tokens) <= MAX_TOKEN:
        raise DataError(f"a token is outside 0..{MAX_TOKEN}")
    return tuple(tokens)


def _encode_tokens(tokens: tuple[int, ...]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)
