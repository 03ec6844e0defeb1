"""Where the octets of a block lie in a tensor."""

import hashlib
from array import array
from dataclasses import replace

import pytest

from kvcs.errors import LayoutMismatch
from kvcs.kv import Component, Dtype, Layout, layer_digest

BLOCK_BYTES = 4 * 8 * 128 * 2  # of the fixture: tokens, heads, elements, octets


@pytest.fixture
def uneven(descriptor):
    """Layers of different shapes: one as usual, one with a single latent head."""
    return Layout(
        replace(
            descriptor,
            kv_heads=None,
            head_dim=None,
            layer_kv_heads=(8, 1),
            layer_k_dim=(64, 576),
            layer_v_dim=(64, 132),
        )
    )


@pytest.fixture
def small(descriptor):
    """Return a layout of 2 heads of 3 elements, two tokens a block, of any dtype."""

    def make(dtype):
        return Layout(replace(descriptor, dtype=dtype, block_tokens=2, kv_heads=2, head_dim=3))

    return make


def test_sizes_are_those_of_the_example_of_the_specification(layout):
    assert layout.data_bytes(Component.K, 0) == layout.data_bytes(Component.V, 1) == 8192
    assert layout.data_bytes(Component.KV, 0) == 2 * 8192
    assert layout.layers == 2
    assert layout.block_tokens == 4
    assert repr(layout) == "<Layout layers=2 block_tokens=4>"


@pytest.mark.parametrize("dtype", Dtype)
def test_sizes_follow_the_dtype(dtype, small):
    assert small(dtype).data_bytes(Component.K, 0) == 2 * 2 * 3 * dtype.itemsize


def test_every_layer_may_have_its_own_geometry(uneven):
    assert uneven.data_bytes(Component.K, 0) == 4 * 8 * 64 * 2
    assert uneven.data_bytes(Component.K, 1) == 4 * 576 * 2
    assert uneven.data_bytes(Component.V, 1) == 4 * 132 * 2
    assert uneven.data_bytes(Component.KV, 1) == 4 * (576 + 132) * 2
    assert uneven.shape(Component.K, 1, 12) == (12, 1, 576)
    assert uneven.shape(Component.V, 1, 12) == (12, 1, 132)


def test_a_shape_is_of_keys_or_of_values(layout):
    assert layout.shape(Component.K, 0, 12) == (12, 8, 128)
    with pytest.raises(LayoutMismatch, match="kv has no shape"):
        layout.shape(Component.KV, 0, 12)


@pytest.mark.parametrize("component", Component)
def test_blocks_are_views_that_add_up_to_the_tensor(component, layout):
    tensor = bytearray(b"".join(bytes([octet]) * 2048 for octet in range(24)))

    blocks = layout.blocks(component, 0, tensor)

    assert b"".join(blocks) == tensor
    assert {block.nbytes for block in blocks} == {layout.data_bytes(component, 0)}
    tensor[0] = 99
    assert blocks[0][0] == 99
    blocks[-1][-1] = 77
    assert tensor[-1] == 77


def test_blocks_of_read_only_memory_are_read_only(layout):
    assert all(block.readonly for block in layout.blocks(Component.K, 0, bytes(BLOCK_BYTES)))


def test_blocks_are_in_the_order_of_tokens(small):
    tokens = memoryview(array("H", range(4 * 6))).cast("B").cast("H", (4, 2, 3))

    first, second = small(Dtype.BFLOAT16).blocks(Component.K, 0, tokens)

    assert first == array("H", range(12)).tobytes()
    assert second == array("H", range(12, 24)).tobytes()


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        (Dtype.FLOAT16, "e"),
        (Dtype.FLOAT16, "H"),
        (Dtype.BFLOAT16, "H"),
        (Dtype.BFLOAT16, "h"),
        (Dtype.FLOAT32, "f"),
        (Dtype.FLOAT32, "I"),
        (Dtype.FLOAT8_E5M2, "B"),
        (Dtype.FLOAT8_E4M3FNUZ, "b"),
    ],
)
def test_elements_of_the_right_size_are_taken_with_or_without_a_shape(dtype, code, small):
    flat = memoryview(bytearray(24 * dtype.itemsize)).cast(code)
    shaped = memoryview(bytearray(24 * dtype.itemsize)).cast(code, (4, 2, 3))
    octets = memoryview(bytearray(24 * dtype.itemsize)).cast("B", (4, 2, 3 * dtype.itemsize))

    for tensor in (flat, shaped, octets):
        assert len(small(dtype).blocks(Component.V, 0, tensor)) == 2


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        (Dtype.FLOAT16, "f"),
        (Dtype.FLOAT16, "h"),
        (Dtype.FLOAT16, "d"),
        (Dtype.BFLOAT16, "e"),
        (Dtype.FLOAT32, "e"),
        (Dtype.FLOAT32, "i"),
        (Dtype.FLOAT32, "Q"),
        (Dtype.FLOAT8_E5M2, "e"),
        (Dtype.FLOAT8_E5M2, "H"),
    ],
)
def test_elements_of_another_dtype_are_refused(dtype, code, small):
    tensor = memoryview(bytearray(96)).cast(code)

    with pytest.raises(LayoutMismatch, match=f"layer 0, component k: expected octets or {dtype}"):
        small(dtype).blocks(Component.K, 0, tensor)


def test_big_endian_elements_are_refused(small):
    numpy = pytest.importorskip("numpy")

    for dtype in (">u2", ">f2"):
        tensor = numpy.zeros((4, 2, 3), dtype=dtype)
        with pytest.raises(LayoutMismatch, match="little-endian"):
            small(Dtype.FLOAT16).blocks(Component.K, 0, tensor)


def test_heads_before_tokens_are_refused(small):
    tensor = memoryview(bytearray(48)).cast("H", (2, 4, 3))

    with pytest.raises(LayoutMismatch, match=r"expected shape \(tokens, 2, 3\), got \(2, 4, 3\)"):
        small(Dtype.BFLOAT16).blocks(Component.K, 0, tensor)


def test_a_kv_tensor_has_no_shape_to_check(small):
    tensor = memoryview(bytearray(48)).cast("H", (2, 4, 3))

    assert len(small(Dtype.BFLOAT16).blocks(Component.KV, 0, tensor)) == 1


def test_memory_that_is_not_contiguous_is_refused(small):
    tensor = memoryview(bytearray(96))[::2]

    with pytest.raises(LayoutMismatch, match="layer 1, component v: empty or not contiguous"):
        small(Dtype.BFLOAT16).blocks(Component.V, 1, tensor)


@pytest.mark.parametrize(
    ("size_bytes", "count", "expected", "in_tokens"),
    [
        (0, None, "a multiple of 24", " (whole blocks of 2 tokens expected, 0 tokens given)"),
        (36, None, "a multiple of 24", " (whole blocks of 2 tokens expected, 3 tokens given)"),
        (23, None, "a multiple of 24", ""),
        (25, None, "a multiple of 24", ""),
        (47, 2, "48", ""),
        (49, 2, "48", ""),
        (24, 2, "48", " (4 tokens expected, 2 given)"),
        (60, 2, "48", " (4 tokens expected, 5 given)"),
        (72, 2, "48", " (4 tokens expected, 6 given)"),
        (0, 2, "48", " (4 tokens expected, 0 given)"),
    ],
)
def test_another_size_names_layer_component_expected_and_got(
    size_bytes, count, expected, in_tokens, small
):
    with pytest.raises(LayoutMismatch) as caught:
        small(Dtype.BFLOAT16).blocks(Component.K, 1, bytes(size_bytes), count=count)

    assert str(caught.value) == (
        f"layer 1, component k: expected {expected} octets, got {size_bytes}{in_tokens}"
    )


@pytest.mark.parametrize("tensor", [[0.0] * 12, None, "text"])
def test_what_is_no_buffer_is_refused_with_what_is_accepted(tensor, small):
    expected = f"layer 1, component k: .*buffer protocol.*numpy.*got {type(tensor).__name__}"

    with pytest.raises(LayoutMismatch, match=expected):
        small(Dtype.BFLOAT16).blocks(Component.K, 1, tensor)


def test_the_right_number_of_blocks_passes(small):
    assert len(small(Dtype.BFLOAT16).blocks(Component.K, 1, bytes(48), count=2)) == 2


def test_a_block_beyond_the_data_length_field_is_refused(descriptor):
    wide = replace(descriptor, kv_heads=2**16, head_dim=2**13)

    with pytest.raises(LayoutMismatch, match="layer 0: 8589934592 octets a block"):
        Layout(wide)


def test_the_layer_digest_is_over_keys_then_values():
    k, v = bytes(range(16)), bytes(range(16, 32))

    assert layer_digest(k, v) == hashlib.sha256(k + v).digest()
    assert layer_digest(memoryview(k), array("I", v)) == layer_digest(k, v)
    assert layer_digest(v, k) != layer_digest(k, v)
