import pytest

from kvcs.client.memory import HostMemory, Placement
from kvcs.errors import LayoutMismatch
from kvcs.kv.naming import Component


class Given:
    def __init__(self, make=bytearray):
        self.make = make
        self.asked = []

    def buffer(self, component, layer_index, size_bytes):
        self.asked.append((component, layer_index, size_bytes))
        return self.make(size_bytes)


def test_placement_asks_for_both_components_of_the_wanted_layers(sample):
    memory = Given()
    size = sample.layout.data_bytes(Component.K, 0)

    placement = Placement(memory, sample.layout, layers=(0, 2), blocks=3)
    placement.view(Component.V, 2)[5] = 7

    assert placement.view(Component.V, 2)[5] == 7
    assert memory.asked == [
        (component, layer_index, 3 * size)
        for layer_index in (0, 2)
        for component in (Component.K, Component.V)
    ]


def test_placement_takes_memory_of_any_element_type(sample):
    memory = Given(lambda size: memoryview(bytearray(size)).cast("H"))

    view = Placement(memory, sample.layout, layers=(0,), blocks=1).view(Component.K, 0)

    assert view.format == "B"


@pytest.mark.parametrize(
    "make",
    [
        bytes,
        lambda size: bytearray(size + 1),
        lambda size: memoryview(bytearray(2 * size))[::2],
    ],
    ids=["read-only", "size", "strided"],
)
def test_placement_refuses_memory_that_it_cannot_fill(sample, make):
    with pytest.raises(LayoutMismatch):
        Placement(Given(make), sample.layout, layers=(0,), blocks=1)


@pytest.mark.parametrize("size", [5, 1 << 20])
def test_host_memory_is_writable_zeroed_and_of_the_size_asked_for(size):
    view = memoryview(HostMemory().buffer(Component.K, 0, size))

    assert view == bytes(size)
    assert not view.readonly
