"""Cache files: what is saved is what is loaded, and nothing else is accepted."""

import json
import struct

import pytest
from safetensors import deserialize

from kvcs.engines.file import CacheFile, LayerTensors, load_cache, save_cache
from kvcs.errors import DataError, LayoutMismatch
from kvcs.kv.identity import Descriptor

BLOCK_TOKENS = 4
COMPAT = {
    "layers": 2,
    "kv_heads": 2,
    "head_dim": 3,
    "block_tokens": BLOCK_TOKENS,
    "dtype": "bfloat16",
    "axes": "tokens,kv_heads,head_dim",
    "byte_order": "little",
    "position": "rope-applied",
    "weights_sha256": "11" * 32,
    "tokenizer_sha256": "22" * 32,
}
ROW_BYTES = 2 * 3 * 2


def tensor(tokens, seed):
    return memoryview(bytes((seed + i) % 256 for i in range(tokens * ROW_BYTES)))


def a_cache(tokens=8):
    return CacheFile(
        descriptor=Descriptor.parse(COMPAT),
        tokens=tuple(range(100, 100 + tokens)),
        layers={
            layer: LayerTensors(tensor(tokens, layer), tensor(tokens, 100 + layer))
            for layer in range(2)
        },
    )


def raw_file(tokens=8, token_format="I", **changes):
    """Return the parts of a valid file: header members, data."""
    shape = [tokens, 2, 3]
    parts = [
        ("tokens", "U32" if token_format == "I" else "I64", [tokens],
         struct.pack(f"<{tokens}{token_format}", *range(100, 100 + tokens)))
    ]  # fmt: skip
    for layer in range(2):
        parts.append((f"k.{layer}", "BF16", shape, tensor(tokens, layer)))
        parts.append((f"v.{layer}", "BF16", shape, tensor(tokens, 100 + layer)))
    header = {"__metadata__": {"kvcs.format": "1", "kvcs.compat": json.dumps(COMPAT)}}
    data = b""
    for name, dtype, extents, octets in parts:
        header[name] = {
            "dtype": dtype, "shape": extents, "data_offsets": [len(data), len(data) + len(octets)],
        }  # fmt: skip
        data += octets
    return header | changes, data


def assemble(header, data):
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data


def test_save_and_load_returns_the_same_cache(tmp_path):
    path = tmp_path / "cache.safetensors"

    save_cache(path, a_cache())

    loaded = load_cache(path)
    assert loaded == a_cache()
    assert loaded.blocks == 2
    assert loaded.note is None
    assert [file.name for file in tmp_path.iterdir()] == ["cache.safetensors"]


def test_save_writes_what_the_library_reads(tmp_path):
    path = tmp_path / "cache.safetensors"

    save_cache(path, a_cache())

    tensors = dict(deserialize(path.read_bytes()))
    assert sorted(tensors) == ["k.0", "k.1", "tokens", "v.0", "v.1"]
    assert tensors["v.1"]["shape"] == [8, 2, 3]
    assert tensors["v.1"]["dtype"] == "BF16"
    assert tensors["v.1"]["data"] == tensor(8, 101)


@pytest.mark.parametrize("token_format", ["I", "q"])
def test_load_accepts_both_token_dtypes(tmp_path, token_format):
    path = tmp_path / "cache.safetensors"
    path.write_bytes(assemble(*raw_file(token_format=token_format)))

    assert load_cache(path).tokens == tuple(range(100, 108))


@pytest.mark.parametrize("tokens", range(4, 13))
def test_load_ignores_what_does_not_fill_a_block(tmp_path, tokens):
    path = tmp_path / "cache.safetensors"
    path.write_bytes(assemble(*raw_file(tokens=tokens)))

    loaded = load_cache(path)

    whole = tokens // BLOCK_TOKENS * BLOCK_TOKENS
    assert loaded.tokens == tuple(range(100, 100 + whole))
    assert loaded.ignored_tokens == tokens - whole
    assert (loaded.note is None) == (tokens == whole)
    assert loaded.layers[1].v == tensor(tokens, 101)[: whole * ROW_BYTES]


def test_load_partial_accepts_missing_layers(tmp_path):
    path = tmp_path / "cache.safetensors"
    cache = a_cache()
    half = CacheFile(descriptor=cache.descriptor, tokens=cache.tokens, layers={1: cache.layers[1]})

    save_cache(path, half)

    assert load_cache(path, partial=True) == half
    with pytest.raises(DataError, match=r"tensor k\.0 is missing"):
        load_cache(path)


def test_save_refuses_a_tensor_of_another_size_and_leaves_nothing(tmp_path):
    cache = a_cache()
    cache.layers[1] = LayerTensors(tensor(7, 0), tensor(8, 0))

    with pytest.raises(LayoutMismatch, match="layer 1, component k"):
        save_cache(tmp_path / "cache.safetensors", cache)

    assert list(tmp_path.iterdir()) == []


def test_save_into_a_missing_folder_is_one_sentence(tmp_path):
    path = tmp_path / "missing" / "cache.safetensors"

    with pytest.raises(DataError, match=r"cache\.safetensors: cannot be written: No such file"):
        save_cache(path, a_cache())


def test_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "cache.safetensors"
    save_cache(path, a_cache())
    before = path.read_bytes()

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(DataError, match="No space left"):
        save_cache(path, a_cache(tokens=4))

    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["cache.safetensors"]


def test_load_of_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.safetensors: cannot be read: No such file"):
        load_cache(tmp_path / "nothing.safetensors")


def without(name):
    def lie(header, data):
        """Drop the last tensor, or a metadata member."""
        header = json.loads(json.dumps(header))
        if name in header["__metadata__"]:
            del header["__metadata__"][name]
            return assemble(header, data)
        entry = header.pop(name)
        start, end = entry["data_offsets"]
        for other in header.values():
            offsets = other.get("data_offsets")
            if offsets and offsets[0] >= end:
                other["data_offsets"] = [offset - (end - start) for offset in offsets]
        return assemble(header, data[:start] + data[end:])

    return lie


def with_entry(name, **members):
    def lie(header, data):
        header = header | {name: header[name] | members}
        return assemble(header, data)

    return lie


def with_compat(**members):
    def lie(header, data):
        metadata = {"kvcs.format": "1", "kvcs.compat": json.dumps(COMPAT | members)}
        return assemble(header | {"__metadata__": metadata}, data)

    return lie


def with_metadata(**metadata):
    def lie(header, data):
        metadata_ = header["__metadata__"] | {
            name.replace("_", "."): value for name, value in metadata.items()
        }
        return assemble(header | {"__metadata__": metadata_}, data)

    return lie


def with_extra_tensor(header, data):
    entry = {"dtype": "U8", "shape": [1], "data_offsets": [len(data), len(data) + 1]}
    return assemble(header | {"k.2": entry}, data + b"\0")


def negative_token(header, data):
    header, data = raw_file(token_format="q")
    return assemble(header, struct.pack("<q", -1) + data[8:])


def huge_token(header, data):
    header, data = raw_file(token_format="q")
    return assemble(header, struct.pack("<q", 2**32) + data[8:])


def duplicate_tensor(header, data):
    text = json.dumps(header)
    entry = json.dumps(header["k.0"])
    head = (text[:-1] + f', "k.0": {entry}}}').encode()
    return len(head).to_bytes(8, "little") + head + data


def constant(octets):
    return lambda _header, _data: octets


LIES = {
    "empty": (constant(b""), "not a KV cache in safetensors form"),
    "text": (constant(b"Alice was beginning to get very tired of"), "not a KV cache"),
    "json": (lambda header, _: json.dumps(header).encode(), "not a KV cache"),
    "cut in the length": (lambda header, data: assemble(header, data)[:5], "not a KV cache"),
    "cut in the header": (lambda header, data: assemble(header, data)[:90], "inside its header"),
    "cut in the data": (lambda header, data: assemble(header, data[:-1]), "not a safetensors"),
    "octets behind the data": (
        lambda header, data: assemble(header, data + b"\0"), "not a safetensors file",
    ),
    "huge header length": (
        lambda header, data: (2**62).to_bytes(8, "little") + assemble(header, data)[8:],
        "not a KV cache",
    ),
    "deep header": (constant(assemble({"a": [[[[[[]]]]]]}, b"")), "nested deeper"),
    "header of a list": (constant(assemble([], b"")), "no JSON object"),
    "header with a float": (with_entry("k.0", shape=[8.5, 2, 3]), "not an integer"),
    "header not UTF-8": (
        constant((8).to_bytes(8, "little") + b'{"\xff": 1}'), "not a KV cache",
    ),
    "duplicate tensor": (duplicate_tensor, "twice"),
    "overlapping offsets": (with_entry("v.0", data_offsets=[32, 128]), "not a safetensors file"),
    "reversed offsets": (with_entry("v.0", data_offsets=[224, 128]), "not a safetensors file"),
    "negative offset": (with_entry("tokens", data_offsets=[-32, 0]), "not a safetensors file"),
    "shape beyond the data": (with_entry("k.0", shape=[9, 2, 3]), "not a safetensors file"),
    "shape that overflows": (
        with_entry("k.0", shape=[2**31, 2**31, 2**31]), "not a safetensors file",
    ),
    "unknown dtype": (with_entry("k.0", dtype="PICKLE"), "not a safetensors file"),
    "other dtype of equal size": (with_entry("k.0", dtype="F16"), r"k\.0 has dtype F16"),
    "transposed": (with_entry("k.0", shape=[2, 8, 3]), r"k\.0 has shape \[2, 8, 3\]"),
    "flat": (with_entry("v.1", shape=[48]), r"v\.1 has shape \[48\]"),
    "tokens of two dimensions": (with_entry("tokens", shape=[4, 2]), "one dimension"),
    "tokens of another dtype": (with_entry("tokens", dtype="F32"), "must be U32 or I64"),
    "negative token": (negative_token, "outside 0"),
    "token beyond 32 bits": (huge_token, "outside 0"),
    "less than a block": (with_compat(block_tokens=16), "less than a block"),
    "no tokens": (without("tokens"), "'tokens' is missing"),
    "missing k": (without("k.0"), r"k\.0 is missing"),
    "missing v": (without("v.1"), r"v\.1 is missing"),
    "another tensor": (with_extra_tensor, r"unexpected tensor 'k\.2'"),
    "no format": (without("kvcs.format"), "kvcs.format must be '1', got 'none'"),
    "later format": (with_metadata(kvcs_format="2"), "kvcs.format must be '1', got '2'"),
    "no descriptor": (without("kvcs.compat"), "lacks kvcs.compat"),
    "no metadata": (
        lambda header, data: assemble(
            {name: entry for name, entry in header.items() if name != "__metadata__"}, data
        ),
        "kvcs.format",
    ),
    "metadata not text": (
        lambda header, data: assemble(header | {"__metadata__": {"kvcs.format": 1}}, data),
        "not a safetensors file",
    ),
    "metadata of a list": (
        lambda header, data: assemble(header | {"__metadata__": []}, data),
        "not a safetensors file",
    ),
    "descriptor not JSON": (with_metadata(kvcs_compat="{"), "descriptor"),
    "descriptor of another dtype": (with_compat(dtype="float16"), "has dtype BF16"),
    "descriptor of more layers": (with_compat(layers=3), r"k\.2 is missing"),
    "descriptor of fewer layers": (with_compat(layers=1), r"unexpected tensor 'k\.1'"),
    "descriptor of other heads": (with_compat(kv_heads=3), "has shape"),
    "descriptor with a null": (with_compat(adapter_sha256=None), "null"),
    "descriptor with endless layers": (with_compat(layers=2**40), "layers must be"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_load_refuses(tmp_path, name):
    lie, expected = LIES[name]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(lie(*raw_file()))

    with pytest.raises(DataError, match=expected) as caught:
        load_cache(path)

    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text


def test_load_refuses_every_cut(tmp_path):
    whole = assemble(*raw_file())
    path = tmp_path / "hostile.safetensors"

    for length in range(0, len(whole), 13):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError):
            load_cache(path)
