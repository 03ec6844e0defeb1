from kvcs.transport.send_queue import PIECE_BYTES, SendQueue


class Rings:
    """Rings that keep what they take, until `drain`."""

    def __init__(self, *, full=False):
        self.full = full
        self.pushed = []
        self.levels = {}

    def push(self, stream_id, data, *, fin):
        if self.full:
            return False
        self.pushed.append((stream_id, data, fin))
        self.levels[stream_id] = self.levels.get(stream_id, 0) + len(data)
        return True

    def used(self, stream_id):
        return self.levels.get(stream_id, 0)

    def drain(self):
        self.levels.clear()


def test_write_that_fits_is_given_whole():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=1000)
    data = bytes(600)

    queue.append(2, data, fin=True)
    queue.flush()

    assert rings.pushed == [(2, data, True)]
    assert rings.pushed[0][1] is data
    assert queue.queued_bytes == 600


def test_write_beyond_the_ring_waits_and_goes_in_pieces():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=2 * PIECE_BYTES)
    data = bytes(range(256)) * (5 * PIECE_BYTES // 512)

    queue.append(2, data, fin=True)
    queue.flush()
    first = len(rings.pushed)
    while queue.streams:
        rings.drain()
        queue.pump()

    assert first == 2
    assert [len(piece) for _, piece, _ in rings.pushed] == [PIECE_BYTES] * 2 + [PIECE_BYTES // 2]
    assert b"".join(piece for _, piece, _ in rings.pushed) == data
    assert [fin for _, _, fin in rings.pushed] == [False, False, True]


def test_write_of_less_than_half_a_ring_waits_until_it_fits_whole():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=4 * PIECE_BYTES)
    data = bytes(3 * PIECE_BYTES // 2)

    queue.append(2, bytes(3 * PIECE_BYTES), fin=False)
    queue.append(2, data, fin=True)
    queue.flush()
    first = len(rings.pushed)
    rings.levels[2] = 2 * PIECE_BYTES
    queue.pump()

    assert first == 1
    assert rings.pushed[1][1] is data


def test_small_ring_makes_small_pieces():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=10)

    queue.append(2, bytes(25), fin=False)
    for _ in range(3):
        rings.drain()
        queue.pump()

    assert [len(piece) for _, piece, _ in rings.pushed] == [10, 10, 5]


def test_writes_of_a_stream_keep_their_order_behind_one_that_waits():
    rings = Rings(full=True)
    queue = SendQueue(rings, stream_bytes=1000)

    queue.append(2, b"first", fin=False)
    queue.flush()
    rings.full = False
    queue.append(6, b"other", fin=False)
    queue.flush()
    before = [data for _, data, _ in rings.pushed]
    queue.append(2, b"second", fin=True)
    queue.pump()

    assert before == [b"other"]
    assert [data for _, data, _ in rings.pushed] == [b"other", b"firstsecond"]


def test_small_writes_of_a_stream_are_joined():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=4 * PIECE_BYTES)
    small = bytes(7 * 1024)

    for _ in range(12):
        queue.append(2, small, fin=False)
    queue.append(2, b"", fin=True)
    queue.append(6, b"header", fin=False)
    queue.append(6, bytes(PIECE_BYTES), fin=True)
    queue.flush()

    assert [(stream_id, len(data), fin) for stream_id, data, fin in rings.pushed] == [
        (2, 9 * len(small), False),
        (2, 3 * len(small), True),
        (6, 6, False),
        (6, PIECE_BYTES, True),
    ]


def test_write_that_is_no_longer_small_is_handed_over_uncopied():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=4 * PIECE_BYTES)
    payloads = [bytes([n]) * (32 * 1024) for n in range(3)]

    for payload in payloads:
        queue.append(2, b"header", fin=False)
        queue.append(2, payload, fin=False)
    queue.flush()

    assert all(rings.pushed[2 * n + 1][1] is payload for n, payload in enumerate(payloads))
    assert [data for _, data, _ in rings.pushed[::2]] == [b"header"] * 3


def test_joined_writes_stay_below_the_limit_of_the_ring():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=10)

    queue.append(2, b"four", fin=False)
    queue.append(2, b"five5", fin=False)
    queue.append(2, b"two", fin=True)
    queue.flush()
    first = list(rings.pushed)
    rings.drain()
    queue.pump()

    assert first == [(2, b"fourfive5", False)]
    assert rings.pushed[1:] == [(2, b"two", True)]


def test_queue_says_whether_the_rings_have_taken_everything():
    rings = Rings(full=True)
    queue = SendQueue(rings, stream_bytes=10)

    queue.append(2, b"", fin=True)
    queue.flush()
    waiting = queue.is_waiting
    rings.full = False
    queue.pump()

    assert (waiting, queue.is_waiting) == (True, False)


def test_full_ring_is_asked_once_a_pump():
    rings = Rings(full=True)
    asked = []
    rings.push = lambda *_, **__: asked.append(1) or False
    queue = SendQueue(rings, stream_bytes=1000)

    queue.append(2, b"x", fin=False)
    queue.flush()
    queue.pump()
    queue.pump()

    assert len(asked) == 3


def test_queue_is_starved_while_a_ring_is_found_empty_that_had_more_to_come():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=1000)

    queue.append(2, bytes(600), fin=False)
    queue.append(2, bytes(600), fin=True)
    queue.append(6, bytes(100), fin=True)
    queue.flush()
    seen = []
    for level in (500, 0, 0):
        rings.levels[2] = level
        queue.pump()
        seen.append(queue.is_starved)

    assert seen == [False, True, False]


def test_small_write_before_a_large_one_is_given_alone():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=2 * PIECE_BYTES)

    queue.append(2, b"header", fin=False)
    queue.append(2, bytes(PIECE_BYTES), fin=False)
    queue.append(2, b"he", fin=False)
    queue.append(2, b"ader", fin=True)
    queue.flush()

    assert [(len(data), fin) for _, data, fin in rings.pushed] == [
        (6, False),
        (PIECE_BYTES, False),
        (6, True),
    ]


def test_queued_bytes_follow_the_rings():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=1000)

    queue.append(2, bytes(600), fin=False)
    queue.append(2, bytes(600), fin=True)
    queue.flush()
    rings.levels[2] = 100
    moved = queue.pump()

    assert moved == 500
    assert queue.queued_bytes == 700
    rings.drain()
    queue.pump()
    assert (queue.queued_bytes, queue.streams) == (0, 0)


def test_discard_forgets_what_waits_and_what_lies_in_the_ring():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=1000)
    queue.append(2, bytes(900), fin=False)
    queue.append(2, bytes(900), fin=False)
    queue.append(6, bytes(50), fin=False)

    queue.discard(2)
    queue.discard(10)

    assert (queue.queued_bytes, queue.streams) == (50, 1)


def test_empty_write_with_fin_ends_the_stream():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=1000)

    queue.append(2, b"", fin=True)
    queue.pump()

    assert rings.pushed == [(2, b"", True)]
    assert queue.streams == 0


def test_clear_forgets_everything():
    queue = SendQueue(Rings(), stream_bytes=10)
    queue.append(2, bytes(100), fin=True)

    queue.clear()

    assert (queue.queued_bytes, queue.streams) == (0, 0)


def test_octets_of_a_stream_that_wait_are_those_of_its_writes_and_its_ring():
    rings = Rings()
    queue = SendQueue(rings, stream_bytes=2 * PIECE_BYTES)

    queue.append(2, bytes(3 * PIECE_BYTES), fin=False)
    queue.append(2, bytes(10), fin=True)
    queue.flush()
    before = queue.unsent_bytes(2)
    rings.drain()
    queue.pump()
    rings.drain()

    assert (before, queue.unsent_bytes(6)) == (3 * PIECE_BYTES + 10, 0)
    assert queue.unsent_bytes(2) == 0
