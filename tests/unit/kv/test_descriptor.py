"""The Compatibility Descriptor: its members, its canonical form, and what it refuses."""

from dataclasses import replace

import pytest

from kvcs.errors import DataError, UnsupportedEncoding
from kvcs.kv import Descriptor, Dtype
from kvcs.kv.descriptor import MAX_DIMENSION, MAX_LAYERS

CANONICAL = (
    b'{"axes":"tokens,kv_heads,head_dim","block_tokens":4,"byte_order":"little",'
    b'"dtype":"bfloat16","head_dim":128,"kv_heads":8,"layers":2,"position":"rope-applied",'
    b'"tokenizer_sha256":"2222222222222222222222222222222222222222222222222222222222222222",'
    b'"weights_sha256":"1111111111111111111111111111111111111111111111111111111111111111"}'
)
PER_LAYER = {"layer_kv_heads": [8, 1], "layer_k_dim": [64, 576], "layer_v_dim": [64, 132]}


def without(members, *names):
    return {name: value for name, value in members.items() if name not in names}


def test_canonical_form_is_the_published_vector(descriptor):
    assert descriptor.canonical() == CANONICAL
    assert Descriptor.decode(CANONICAL) == descriptor


def test_order_and_white_space_of_the_text_do_not_matter(descriptor):
    first, *others = CANONICAL[1:-1].decode().split(',"')
    text = " {" + " ,\n ".join([*(f'"{member}' for member in reversed(others)), first]) + "}\n"

    assert Descriptor.decode(text.encode()).canonical() == descriptor.canonical()


def test_per_layer_geometry_takes_the_place_of_the_uniform_one(descriptor):
    members = without(descriptor.to_json(), "kv_heads", "head_dim") | PER_LAYER

    parsed = Descriptor.parse(members)

    assert parsed.layer_k_dim == (64, 576)
    assert parsed.kv_heads is None
    assert parsed.to_json() == members
    assert b'"layer_k_dim":[64,576]' in parsed.canonical()


def test_an_adapter_is_absent_or_a_digest(descriptor):
    with_adapter = replace(descriptor, adapter_sha256="33" * 32)

    assert "adapter_sha256" not in descriptor.to_json()
    assert Descriptor.parse(with_adapter.to_json()) == with_adapter


def test_unknown_members_are_kept_and_hashed(descriptor):
    extra = {"tp_rank": 1, "note": "\u20ac", "flag": True, "list": [1, "a", False]}

    parsed = Descriptor.parse(descriptor.to_json() | extra)

    assert parsed.extra == extra
    assert parsed.canonical() != descriptor.canonical()
    assert Descriptor.decode(parsed.canonical()) == parsed


def test_a_dtype_given_by_its_name_is_the_dtype(descriptor):
    named = replace(descriptor, dtype="float16")

    assert named.dtype is Dtype.FLOAT16
    assert named == replace(descriptor, dtype=Dtype.FLOAT16)


@pytest.mark.parametrize("dtype", ["floaty", None, 16, []])
def test_an_unknown_dtype_is_refused_with_the_known_ones(dtype, descriptor):
    with pytest.raises(UnsupportedEncoding, match=r"member dtype must be one of float16, .*e5m2"):
        replace(descriptor, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "itemsize"),
    [
        ("float16", 2),
        ("bfloat16", 2),
        ("float32", 4),
        ("float8_e4m3fn", 1),
        ("float8_e4m3fnuz", 1),
        ("float8_e5m2", 1),
        ("float8_e5m2fnuz", 1),
    ],
)
def test_dtypes_have_their_size(dtype, itemsize, descriptor):
    parsed = Descriptor.parse(descriptor.to_json() | {"dtype": dtype})

    assert parsed.dtype is Dtype(dtype)
    assert parsed.dtype.itemsize == itemsize


def test_every_dtype_is_tested():
    assert len(Dtype) == 7


@pytest.mark.parametrize(
    "name",
    [
        "layers",
        "block_tokens",
        "dtype",
        "position",
        "weights_sha256",
        "tokenizer_sha256",
        "axes",
        "byte_order",
    ],
)
def test_a_missing_member_is_named(name, descriptor):
    with pytest.raises(DataError, match=f"lacks {name}"):
        Descriptor.parse(without(descriptor.to_json(), name))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "bf16"),
        ("dtype", "float8_e4m3"),
        ("dtype", 16),
        ("dtype", ["float16"]),
        ("axes", "kv_heads,tokens,head_dim"),
        ("byte_order", "big"),
    ],
)
def test_an_unknown_encoding_is_unsupported(name, value, descriptor):
    with pytest.raises(UnsupportedEncoding, match=f"descriptor member {name} must be"):
        Descriptor.parse(descriptor.to_json() | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layers", 0),
        ("layers", MAX_LAYERS + 1),
        ("layers", 10**9),
        ("layers", True),
        ("layers", "2"),
        ("layers", 2.0),
        ("block_tokens", -4),
        ("block_tokens", MAX_DIMENSION + 1),
        ("kv_heads", 0),
        ("head_dim", MAX_DIMENSION + 1),
        ("head_dim", [128]),
        ("position", 1),
        ("position", "\ud800"),
        ("weights_sha256", "11" * 31),
        ("weights_sha256", "AB" * 32),
        ("weights_sha256", "11" * 32 + "\n"),
        ("weights_sha256", 1),
        ("tokenizer_sha256", "llama"),
        ("adapter_sha256", ""),
        ("adapter_sha256", None),
        ("kv_heads", None),
        ("note", None),
        ("note", 1.5),
        ("note", {}),
        ("note", [[]]),
        ("note", [None]),
        ("note", 2**53),
        ("note", "\ud800"),
        ("note", ["\udfff"]),
        ("\ud800", 1),
    ],
)
def test_a_bad_member_is_named(name, value, descriptor):
    with pytest.raises(DataError) as caught:
        Descriptor.parse(descriptor.to_json() | {name: value})

    assert name in str(caught.value) or repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("layer_k_dim", [64], "layer_k_dim must list 2 integers"),
        ("layer_k_dim", 64, "layer_k_dim must list 2 integers"),
        ("layer_k_dim", [64, -1], r"layer_k_dim\[1\] must be an integer"),
        ("layer_v_dim", [64, "64"], r"layer_v_dim\[1\] must be an integer"),
        ("layer_v_dim", [64, MAX_DIMENSION + 1], r"layer_v_dim\[1\] must be an integer"),
    ],
)
def test_bad_per_layer_geometry_is_named(name, value, reason, descriptor):
    members = without(descriptor.to_json(), "kv_heads", "head_dim") | PER_LAYER | {name: value}

    with pytest.raises(DataError, match=reason):
        Descriptor.parse(members)


def test_a_layer_without_a_key_value_cache_is_refused_with_the_reason(descriptor):
    hybrid = PER_LAYER | {"layer_kv_heads": [8, 0]}
    members = without(descriptor.to_json(), "kv_heads", "head_dim") | hybrid

    with pytest.raises(DataError, match=r"layer 1 has no key-value cache .* not covered"):
        Descriptor.parse(members)


@pytest.mark.parametrize("left_out", [(), ("kv_heads",), ("head_dim",)])
def test_both_geometries_or_half_of_one_are_refused(left_out, descriptor):
    extra = {} if left_out else PER_LAYER

    with pytest.raises(DataError, match="in their place"):
        Descriptor.parse(without(descriptor.to_json(), *left_out) | extra)


def test_no_geometry_is_refused(descriptor):
    with pytest.raises(DataError, match="got neither"):
        Descriptor.parse(without(descriptor.to_json(), "kv_heads", "head_dim"))


@pytest.mark.parametrize("name", ["layers", "axes", "adapter_sha256"])
def test_a_known_member_cannot_hide_among_the_extra_ones(name, descriptor):
    with pytest.raises(DataError, match="cannot be an extra member"):
        replace(descriptor, extra={name: 1})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[]", "not a JSON object"),
        (b"{", "do not match"),
        (b'{"layers":2,"layers":2}', "twice"),
        (b'{"layers":2.0}', "not an integer"),
        (b'{"layers":NaN}', "not an integer"),
        (b'{"a":[[1]]}', "deeper than 2"),
        (b" " * (2**18 + 1), "at most 262144"),
    ],
)
def test_hostile_text_is_refused(text, reason):
    with pytest.raises(DataError, match=reason):
        Descriptor.decode(text)


def test_the_largest_lists_fit_the_limits_of_decoding(descriptor):
    counts = (MAX_DIMENSION,) * MAX_LAYERS
    large = replace(
        descriptor,
        layers=MAX_LAYERS,
        kv_heads=None,
        head_dim=None,
        layer_kv_heads=counts,
        layer_k_dim=counts,
        layer_v_dim=counts,
    )

    assert Descriptor.decode(large.canonical()) == large
