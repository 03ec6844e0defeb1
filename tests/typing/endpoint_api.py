"""The types of `kvcs.endpoint`, `kvcs.transport` and `kvcs.testing`; checked, never run."""

from pathlib import Path
from typing import assert_type

import kvcs
from kvcs.endpoint import (
    Backoff,
    ConnectConfig,
    Connection,
    DevCertificate,
    PersistentConnection,
    ServeConfig,
    Server,
    create_dev_certificate,
    dial,
    parse_url,
)
from kvcs.endpoint.serve import serve
from kvcs.moqt import Session
from kvcs.testing import (
    LinkProfile,
    MemoryNetwork,
    MemoryTransport,
    VirtualClockLoop,
    run,
)
from kvcs.transport import Address, ClientTls, TransportConfig, TransportFactory


async def connect_and_serve(directory: Path) -> int:
    certificate = create_dev_certificate(directory, names=["relay.example"])
    assert_type(certificate, DevCertificate)
    assert_type(certificate.ca_file, Path)
    config = ConnectConfig(
        tls=ClientTls(ca_file=str(certificate.ca_file)),
        transport=TransportConfig(idle_timeout=30.0),
    )
    assert_type(parse_url("moqt://host:4433/path").host, str)
    async with serve(
        "127.0.0.1", 0, lambda _: None, config=ServeConfig(tls=certificate.tls)
    ) as server:
        assert_type(server, Server)
        assert_type(server.address, Address)
        async with kvcs.connect(f"moqt://{server.address}/", config) as connection:
            assert_type(connection, Connection)
            assert_type(connection.session, Session)
            assert_type(connection.closed, bool)
            assert_type(connection.now, float)
        dialled = await dial(f"moqt://{server.address}/", config)
        await dialled.close()
        keeper = PersistentConnection(
            f"moqt://{server.address}/", config, backoff=Backoff(maximum=1.0)
        )
        async with keeper:
            assert_type(keeper.current, Connection | None)
    return 1


def simulate(directory: Path) -> None:
    network = MemoryNetwork(seed=1, profile=LinkProfile(delay=0.1))
    factory: TransportFactory = network
    assert_type(network.transports, list[MemoryTransport])
    assert_type(run(connect_and_serve(directory), seed=1), int)
    assert_type(VirtualClockLoop().time(), float)
    del factory
