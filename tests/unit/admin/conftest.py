import asyncio
from contextlib import asynccontextmanager

import h11
import pytest
from tests.unit.relay.world import World

from kvcs.admin import AdminConfig, AdminServer
from kvcs.relay.report import Reporter
from kvcs.transport.interface import Address


class FakeRelay:
    """What the admin listener sees of a relay, around a core without sockets."""

    def __init__(self):
        self.world = World()
        self.address = Address("127.0.0.1", 4433)
        self.is_open = True
        self.is_draining = False
        self.links = {}
        self.parents = ()
        self.reporter = Reporter(self.world.core, self.links)

    def upstreams(self):
        return self.parents

    def statistics(self):
        return self.world.core.statistics()


@pytest.fixture
def relay():
    return FakeRelay()


@pytest.fixture
def admin(relay):
    """Open an admin listener on a free port."""

    @asynccontextmanager
    async def opened(**settings):
        async with AdminServer(relay, AdminConfig(port=0, **settings)) as server:
            yield server.address

    return opened


class Answer:
    """What came back."""

    def __init__(self, head, body):
        self.status = head.status_code
        self.headers = {name.decode(): value.decode() for name, value in head.headers}
        self.body = body

    @property
    def text(self):
        return self.body.decode()


@pytest.fixture
def ask():
    """Ask once, with a client of its own."""

    async def asked(address, target="/", method="GET", headers=()):
        reader, writer = await asyncio.open_connection(*address)
        try:
            return await talk(reader, writer, address, target, method, headers)
        finally:
            writer.close()

    return asked


async def talk(reader, writer, address, target="/", method="GET", headers=()):
    client = h11.Connection(h11.CLIENT)
    names = {name.lower() for name, _ in headers}
    host = [] if "host" in names else [("Host", str(address))]
    writer.write(client.send(h11.Request(method=method, target=target, headers=[*host, *headers])))
    writer.write(client.send(h11.EndOfMessage()))
    head, body = None, b""
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        else:
            return Answer(head, body)
