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
from collections.abc import Callable
from functools import partial
from typing import Final

__all__ = ("Link", "main")

_QUEUE_SECONDS: Final = 0.1
_SOCKET_BYTES: Final = 2**23
_BATCH: Final = 64

type _Address = tuple[str, int]


class Link:
    """Carries packets between whoever sends to `port` and an address behind it.

    Args:
        port: Where clients send, on all addresses.
        behind: Host and port of the server.
        rate_mbit_s: Rate in each direction, of all clients together.
        rtt_ms: Round-trip time of an empty link.
        loss: Part of the packets that is lost, 0 to 1.
    """

    def __init__(
        self, port: int, behind: tuple[str, int], *, rate_mbit_s: float, rtt_ms: float, loss: float
    ) -> None:
        self._behind = behind
        self._rate = rate_mbit_s * 1e6 / 8
        self._delay = rtt_ms / 2e3
        self._loss = loss
        # The same packets are lost each time, as far as the same ones are sent.
        self._random = random.Random(1)
        self._poll = select.poll()
        self._front = self._socket()
        self._front.bind(("0.0.0.0", port))
        #: The socket towards the server of each client, and the client of each socket.
        self._backs: dict[_Address, socket.socket] = {}
        self._clients: dict[int, tuple[socket.socket, _Address]] = {}
        self._free_at = {True: 0.0, False: 0.0}
        self._under_way: list[tuple[float, int, Callable[[], object]]] = []
        self._packets = 0

    def run(self) -> None:
        """Carry packets until the process is ended."""
        while True:
            for number, _ in self._poll.poll(self._deliver()):
                self._take(number)

    def _socket(self) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        made.setblocking(False)
        self._poll.register(made, select.POLLIN)
        return made

    def _deliver(self) -> float | None:
        """Send what has arrived; return the milliseconds until more has."""
        now, waiting = time.monotonic(), self._under_way
        while waiting and waiting[0][0] <= now:
            send = heapq.heappop(waiting)[2]
            try:
                send()
            except OSError:
                continue  # A cable that is down, or no room: it is lost.
        return 1e3 * max(0.0, waiting[0][0] - now) if waiting else None

    def _take(self, number: int) -> None:
        """Take what a socket has."""
        is_upward = number == self._front.fileno()
        source, client = (self._front, None) if is_upward else self._clients[number]
        for _ in range(_BATCH):
            try:
                packet, address = source.recvfrom(2**16)
            except BlockingIOError:
                return
            except OSError:
                continue  # Nobody was there for an earlier packet.
            if client is None:
                send = partial(self._back(address).send, packet)
            else:
                send = partial(self._front.sendto, packet, client)
            self._carry(send, len(packet), is_upward=is_upward)

    def _back(self, client: _Address) -> socket.socket:
        """Return the socket towards the server of a client."""
        back = self._backs.get(client)
        if back is None:
            back = self._backs[client] = self._socket()
            back.connect(self._behind)
            self._clients[back.fileno()] = (back, client)
        return back

    def _carry(self, send: Callable[[], object], size_bytes: int, *, is_upward: bool) -> None:
        now = time.monotonic()
        begins_at = max(now, self._free_at[is_upward])
        if self._random.random() < self._loss or begins_at - now > _QUEUE_SECONDS:
            return
        self._free_at[is_upward] = ends_at = begins_at + size_bytes / self._rate
        self._packets += 1
        heapq.heappush(self._under_way, (ends_at + self._delay, self._packets, send))


def main() -> None:
    """``python -m benchmarks.link PORT HOST HOST_PORT RATE_MBIT_S RTT_MS LOSS``."""
    port, host, host_port, *figures = sys.argv[1:]
    rate, rtt, loss = map(float, figures)
    link = Link(int(port), (host, int(host_port)), rate_mbit_s=rate, rtt_ms=rtt, loss=loss)
    print("{}", flush=True)  # It listens.
    link.run()


if __name__ == "__main__":
    main()
