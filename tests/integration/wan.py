"""The way between two sites: carries UDP packets with a delay, and loses some of them.

``python -m tests.integration.wan PORT HOST HOST_PORT DELAY LOSS`` listens on all addresses and
carries what comes to HOST and back. It stands for ``tc netem``, which many kernels are built
without; the cables at both of its ends can be pulled all the same.
"""

import asyncio
import random
import sys

#: The same packets are lost each time, as far as the same ones are sent.
SEED = 1


class Way:
    """One direction: the delay and the loss."""

    def __init__(self, delay, loss):
        self._delay = delay
        self._loss = loss
        self._chance = random.Random(SEED)
        self._loop = asyncio.get_running_loop()

    def carry(self, send, *packet):
        if self._chance.random() >= self._loss:
            self._loop.call_later(self._delay, send, *packet)


class Far(asyncio.DatagramProtocol):
    """The socket towards HOST for one client."""

    def __init__(self, way, near, client):
        self._way = way
        self._near = near
        self._client = client

    def datagram_received(self, data, _address):
        self._way.carry(self._near.sendto, data, self._client)

    def error_received(self, _error):
        """A cable that is down loses what is sent on it."""


class Near(asyncio.DatagramProtocol):
    """The socket that clients send to."""

    def __init__(self, target, delay, loss):
        self._target = target
        self._ways = Way(delay, loss), Way(delay, loss)
        self._clients = {}

    def connection_made(self, transport):
        self._transport = transport

    def datagram_received(self, data, client):
        if client not in self._clients:
            self._clients[client] = asyncio.ensure_future(self._open(client))
        self._clients[client].add_done_callback(
            lambda opened: self._ways[0].carry(opened.result().sendto, data)
        )

    async def _open(self, client):
        loop = asyncio.get_running_loop()
        far, _ = await loop.create_datagram_endpoint(
            lambda: Far(self._ways[1], self._transport, client), remote_addr=self._target
        )
        return far

    def error_received(self, _error):
        """A cable that is down loses what is sent on it."""


async def main():
    port, host, host_port, delay, loss = sys.argv[1:]
    near = Near((host, int(host_port)), float(delay), float(loss))
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: near, local_addr=("0.0.0.0", int(port)))
    print("{}", flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
