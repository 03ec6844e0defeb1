"""Two connections in memory, and what their listeners heard."""

from contextlib import asynccontextmanager

from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.testing import MemoryNetwork, run
from kvcs.transport.interface import ServerTls

URL = "moqt://localhost:4433/path"
TLS = ServerTls(certificate_file="unused", private_key_file="unused")
NAMESPACE = TrackNamespace((b"kvcs", b"test"))
TRACK = FullTrackName(NAMESPACE, b"track")


class Heard(list):
    """A listener that keeps what it hears, and may answer."""

    def __init__(self, answer=lambda _: None):
        super().__init__()
        self._answer = answer

    def __call__(self, event):
        self.append(event)
        self._answer(event)

    def of(self, kind):
        return [event for event in self if isinstance(event, kind)]


class Peers:
    """A server and the connections that it accepted."""

    def __init__(self):
        self.network = MemoryNetwork(seed=1)
        self.connections = []
        self.heard = Heard()
        self.answer = lambda _connection, _event: None
        self.server = None

    def accept(self, connection):
        self.connections.append(connection)

        def receive(event):
            self.heard(event)
            self.answer(connection, event)

        connection.listen(receive)


@asynccontextmanager
async def peers(*, network=None, port=4433, **config):
    bench = Peers()
    bench.network = network or bench.network
    async with serve(
        "127.0.0.1",
        port,
        bench.accept,
        config=ServeConfig(tls=TLS, **config),
        transport=bench.network,
    ) as server:
        bench.server = server
        yield bench


@asynccontextmanager
async def connected(bench, url=URL, **config):
    async with connect(url, ConnectConfig(**config), transport=bench.network) as connection:
        yield connection, bench.connections[-1]


def scenario(function):
    """Run an async test on the virtual clock."""

    def test():
        run(function(), seed=3)

    test.__name__ = function.__name__
    return test
