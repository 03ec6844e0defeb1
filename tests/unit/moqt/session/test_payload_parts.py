from kvcs.moqt.session.payload_parts import PayloadParts


def kinds(parts):
    return [type(part) for part in parts]


def test_a_large_part_is_kept_as_it_came():
    piece = bytes(5000)
    parts = PayloadParts()

    parts.add(memoryview(piece)[10:])

    (part,) = parts
    assert part.obj is piece


def test_small_parts_are_put_together():
    parts = PayloadParts()

    for octet in b"abc":
        parts.add(memoryview(bytes((octet,))))

    assert list(parts) == [b"abc"]


def test_a_part_that_is_small_beside_its_piece_does_not_keep_the_piece_alive():
    parts = PayloadParts()

    parts.add(memoryview(bytes(10_000))[:4000])
    parts.add(memoryview(bytes(10_000))[:6000])
    parts.add(memoryview(bytes(3000)))

    assert kinds(parts) == [bytearray, memoryview, memoryview]
    assert b"".join(parts) == bytes(13_000)


def test_cleared_parts_are_gone():
    parts = PayloadParts()
    parts.add(memoryview(b"abc"))

    parts.clear()

    assert list(parts) == []
