import pytest

from kvcs.client.memory import HostMemory, Placement
from kvcs.errors import LayoutMismatch
from kvcs.kv.naming import Component


class Given:
    def __init__(self, buffer):
        self.buffer_given = buffer
        self.asked = []

    def buffer(self, component, layer_index, size_bytes):
        self.asked.append((component, layer_index, size_bytes))
        return self.buffer_given


def test_placement_asks_once_per_component_and_layer():
    memory = Given(bytearray(8))
    placement = Placement(memory)

    placement.view(Component.K, 2, 8)[3] = 7
    again = placement.view(Component.K, 2, 8)

    assert again[3] == 7
    assert memory.asked == [(Component.K, 2, 8)]


def test_placement_takes_memory_of_any_element_type():
    array = memoryview(bytearray(8)).cast("H")

    assert Placement(Given(array)).view(Component.V, 0, 8).nbytes == 8


@pytest.mark.parametrize(
    "buffer", [bytes(8), bytearray(9), memoryview(bytearray(16))[::2]], ids=["ro", "size", "step"]
)
def test_placement_refuses_memory_that_it_cannot_fill(buffer):
    with pytest.raises(LayoutMismatch):
        Placement(Given(buffer)).view(Component.K, 0, 8)


def test_host_memory_is_zeroed_and_of_the_size_asked_for():
    assert HostMemory().buffer(Component.K, 0, 5) == bytearray(5)
