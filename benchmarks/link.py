"""A link over a distance in user space: rate, delay and loss between two UDP ports.

It stands in for a network between sites where the system cannot emulate one. Packets leave in
order, after the time that they take at the rate of the link and half a round trip. A queue holds
what comes faster, for at most `_QUEUE_SECONDS`; what does not fit is dropped, as is a random part.
"""

import heapq
import random
import select
import socket
import sys
import time
from typing import Final

__all__ = ("Link", "main")

_QUEUE_SECONDS: Final = 0.1
_SOCKET_BYTES: Final = 2**23
_BATCH: Final = 64


class Link:
    """Carries packets between whoever sends to `port` and the port behind.

    Args:
        port: Where the client sends.
        behind: Where the server listens.
        rate_mbit_s: Rate in each direction.
        rtt_ms: Round-trip time of an empty link.
        loss: Part of the packets that is lost, 0 to 1.
    """

    def __init__(
        self, port: int, behind: int, *, rate_mbit_s: float, rtt_ms: float, loss: float
    ) -> None:
        self._front = _socket()
        self._front.bind(("127.0.0.1", port))
        self._back = _socket()
        self._back.connect(("127.0.0.1", behind))
        self._rate = rate_mbit_s * 1e6 / 8
        self._delay = rtt_ms / 2e3
        self._loss = loss
        self._random = random.Random(1)
        self._client: tuple[str, int] | None = None
        self._free_at = {self._front: 0.0, self._back: 0.0}
        self._under_way: list[tuple[float, int, socket.socket, bytes]] = []
        self._packets = 0

    def run(self) -> None:
        """Carry packets until the process is ended."""
        poll = select.poll()
        sockets = {one.fileno(): one for one in (self._front, self._back)}
        for number in sockets:
            poll.register(number, select.POLLIN)
        while True:
            for number, _ in poll.poll(self._deliver()):
                self._take(sockets[number])

    def _deliver(self) -> float | None:
        """Send what has arrived; return the milliseconds until more has."""
        now, waiting = time.monotonic(), self._under_way
        while waiting and waiting[0][0] <= now:
            _, _, destination, packet = heapq.heappop(waiting)
            try:
                if destination is self._back:
                    destination.send(packet)
                elif self._client is not None:
                    destination.sendto(packet, self._client)
            except OSError:
                continue  # Nobody is there, or no room: it is lost.
        return 1e3 * max(0.0, waiting[0][0] - now) if waiting else None

    def _take(self, source: socket.socket) -> None:
        for _ in range(_BATCH):
            try:
                packet, address = source.recvfrom(2**16)
            except OSError:
                return
            if source is self._front:
                self._client = address
            now = time.monotonic()
            begins_at = max(now, self._free_at[source])
            if self._random.random() < self._loss or begins_at - now > _QUEUE_SECONDS:
                continue
            self._free_at[source] = ends_at = begins_at + len(packet) / self._rate
            destination = self._back if source is self._front else self._front
            self._packets += 1
            arrival = (ends_at + self._delay, self._packets, destination, packet)
            heapq.heappush(self._under_way, arrival)


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
    made.setblocking(False)
    return made


def main() -> None:
    """``python -m benchmarks.link PORT BEHIND RATE_MBIT_S RTT_MS LOSS``."""
    port, behind, *figures = sys.argv[1:]
    rate, rtt, loss = map(float, figures)
    Link(int(port), int(behind), rate_mbit_s=rate, rtt_ms=rtt, loss=loss).run()


if __name__ == "__main__":
    main()
