"""Memory that is used again, and never while anybody sees it."""

from kvcs.client.workspace import MAX_FREE_BYTES, Workspace


def test_one_part_is_not_copied():
    part = memoryview(b"abc")

    assert Workspace().join([part], 3) is part


def test_parts_are_put_together_in_the_same_memory():
    workspace = Workspace()

    assert workspace.join([b"abcd", memoryview(b"ef")], 6) == b"abcdef"
    assert workspace.join([b"g", b"h"], 2) == b"gh"
    assert workspace.join([b"", b"ijklmnop"], 8) == b"ijklmnop"


def test_a_buffer_that_was_given_back_is_taken_again_for_its_size():
    workspace = Workspace()
    one = workspace.buffer(100)
    workspace.give_back(one)

    assert workspace.buffer(99) is not one
    assert workspace.buffer(100) is one
    assert workspace.buffer(100) is not one
    assert len(one) == 100


def test_a_buffer_that_somebody_sees_is_forgotten():
    workspace = Workspace()
    one = workspace.buffer(100)
    view = memoryview(one)[10:20]
    workspace.give_back(one)

    assert workspace.buffer(100) is not one
    assert len(view) == 10


def test_free_memory_is_bounded():
    workspace = Workspace()
    size = MAX_FREE_BYTES // 4
    buffers = [workspace.buffer(size) for _ in range(6)]
    for buffer in buffers:
        workspace.give_back(buffer)

    assert workspace._free_bytes <= MAX_FREE_BYTES
    assert sum(map(len, workspace._free[size])) == workspace._free_bytes


def test_nothing_is_not_kept():
    workspace = Workspace()
    workspace.give_back(workspace.buffer(0))

    assert workspace._free == {}
