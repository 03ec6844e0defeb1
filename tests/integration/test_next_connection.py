"""What is sent to one who is gone reaches nobody else.

The QUIC library gives a new connection the place in memory of one that has ended, and knows
connections by their place. A server that has not heard of the end yet (it was busy) must not have
its last words for the old one delivered to the new one: that would be another tenant's cache.
"""

import asyncio
import json
import sys
import time

from kvcs.transport.interface import Address, TransportConfig
from kvcs.transport.picoquic import PicoquicFactory

IDLE = 0.7
PATIENCE = 30

#: Connects when it is told to, and tells all that it hears.
_CLIENT = """
import asyncio, json, sys
from kvcs.transport.interface import ClientTls, Closed, TransportConfig
from kvcs.transport.picoquic import PicoquicFactory

def tell(*words):
    print(json.dumps(words), flush=True)

async def main():
    factory, config = PicoquicFactory(), TransportConfig(idle_timeout=float(sys.argv[2]))
    tell("ready")
    await asyncio.sleep(float(sys.stdin.readline()))
    transport = await factory.connect(
        "127.0.0.1", int(sys.argv[1]), alpn="test", tls=ClientTls(verify=False), config=config
    )
    transport.set_listener(
        lambda batch: [tell("heard", repr(event)) for event in batch], lambda: None
    )
    tell("connected")
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


class Client:
    """A client in a process of its own."""

    def __init__(self, process):
        self.process = process

    @classmethod
    async def start(cls, port):
        client = cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", _CLIENT, str(port), str(IDLE),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )
        )  # fmt: skip
        assert await client.word() == ["ready"]
        return client

    async def word(self):
        async with asyncio.timeout(PATIENCE):
            return json.loads(await self.process.stdout.readline())

    def connect(self, *, after=0.0):
        self.process.stdin.write(f"{after}\n".encode())

    async def kill(self):
        """End it, and close its pipes."""
        if self.process.returncode is None:
            self.process.kill()
            async with asyncio.timeout(PATIENCE):
                await self.process.communicate()


async def test_last_words_for_one_who_is_gone_do_not_reach_the_next_one(certificate):
    accepted = asyncio.Queue()

    def accept(transport):
        transport.set_listener(lambda _: None, lambda: None)
        accepted.put_nowait(transport)

    listener = await PicoquicFactory().listen(
        Address("127.0.0.1", 0),
        accept,
        alpn="test",
        tls=certificate.tls,
        config=TransportConfig(idle_timeout=IDLE),
    )
    port = listener.address.port
    first, second = await Client.start(port), await Client.start(port)
    try:
        first.connect()
        async with asyncio.timeout(PATIENCE):
            for_first = await accepted.get()
        second.connect(after=2 * IDLE + 0.5)
        await second.process.stdin.drain()
        await first.kill()

        # All of this passes while the server's loop stands still: the library alone sees that the
        # first one is gone, and answers the second one.
        time.sleep(2 * IDLE + 2.0)  # noqa: ASYNC251
        for_first.write(3, b"for the first one", fin=True)
        for_first.write(1, b"a request of the first one")
        for_first.send_datagram(b"for the first one")
        for_first.set_priority(3, 4)
        async with asyncio.timeout(PATIENCE):
            for_second = await accepted.get()
        # The first to arrive on a connection of its own.
        for_second.write(7, b"for the second one", fin=True)

        assert await second.word() == ["connected"]
        kind, heard = await second.word()
        assert kind == "heard"
        assert "stream_id=7" in heard
    finally:
        await first.kill()
        await second.kill()
        listener.close()
