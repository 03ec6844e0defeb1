"""The listener answers what it understands, and bounds everything else."""

import asyncio
import contextlib
import logging
from http import HTTPStatus

import pytest
from tests.unit.admin.conftest import talk

from kvcs.admin import AdminConfig, AdminLimits, AdminServer
from kvcs.admin.http import HttpServer, Response
from kvcs.errors import TransportError

PATHS = ["/", "/status.js", "/status.css", "/favicon.svg", "/healthz", "/readyz", "/metrics"]

SECOND = b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def raw(address, data, *, eof=False):
    """Send octets as they are; return what comes until the end."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(data)
    if eof:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("path", [*PATHS, "/status.json"])
async def test_everything_is_answered_with_the_same_guards(admin, ask, path):
    async with admin() as address:
        answer = await ask(address, path)

    assert answer.status == 200
    assert answer.body
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in answer.headers


async def test_head_has_no_body(admin, ask):
    async with admin() as address:
        answer = await ask(address, "/", method="HEAD")

    assert answer.status == 200
    assert int(answer.headers["content-length"]) > 1000
    assert answer.body == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
async def test_other_methods_are_refused(admin, ask, method):
    async with admin() as address:
        answer = await ask(address, "/", method=method)

    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/nothing", "//", "/../status.js", "/page/status.js", "/%2e%2e/"])
async def test_other_paths_are_not_there(admin, ask, path):
    async with admin() as address:
        assert (await ask(address, path)).status == 404


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 9999999\r\n\r\n",
        b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    ],
)
async def test_body_is_not_read(admin, fields):
    async with admin() as address:
        answer = await raw(address, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + fields)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "host", ["relay.example", "127.0.0.1.example", "", "[", "localhost.example:80", "a@b"]
)
async def test_foreign_name_is_refused_on_a_loopback_address(admin, ask, host):
    async with admin() as address:
        assert (await ask(address, "/status.json", headers=[("Host", host)])).status == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:4434", "[::1]:80", "192.0.2.1"])
async def test_own_names_are_served(admin, ask, host):
    async with admin() as address:
        assert (await ask(address, "/status.json", headers=[("Host", host)])).status == 200


async def test_name_is_free_on_another_address(relay, ask):
    async with AdminServer(relay, AdminConfig(host="0.0.0.0", port=0)) as server:
        address = ("127.0.0.1", server.address.port)
        answer = await ask(address, "/readyz", headers=[("Host", "relay.example")])

    assert answer.status == 200


async def test_listener_that_others_reach_is_warned_of(relay, caplog):
    with caplog.at_level(logging.WARNING, "kvcs.admin"):
        async with AdminServer(relay, AdminConfig(host="0.0.0.0", port=0)):
            pass

    assert "everybody who can reach" in caplog.text


async def test_connection_is_used_again(admin):
    async with admin() as address:
        reader, writer = await asyncio.open_connection(*address)
        first = await talk(reader, writer, address, "/healthz")
        second = await talk(reader, writer, address, "/readyz")
        writer.close()

    assert (first.text, second.text) == ("alive\n", "ready\n")


async def test_requests_that_come_together_are_answered_in_order(admin):
    request = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    async with admin() as address:
        answer = await raw(
            address,
            request % (b"healthz", b"") + request % (b"readyz", b"Connection: close\r\n"),
        )

    assert answer.index(b"alive") < answer.index(b"ready")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * 40_000, b"431"),
    ],
)
async def test_what_is_no_request_is_refused(admin, data, status):
    async with admin() as address:
        answer = await raw(address, data)

    assert answer.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("data", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
async def test_client_that_leaves_early_is_let_go(admin, ask, data):
    async with admin() as address:
        await raw(address, data, eof=True)

        assert (await ask(address, "/healthz")).status == 200


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n"])
async def test_client_that_stalls_is_let_go(admin, data):
    limits = AdminLimits(idle_timeout=0.05, request_timeout=0.05)
    async with admin(limits=limits) as address:
        assert await raw(address, data) == b""


async def test_client_that_does_not_read_is_let_go(admin):
    request = b"GET /status.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with admin(limits=AdminLimits(response_timeout=0.05)) as address:
        reader, writer = await asyncio.open_connection(*address, limit=1)
        # The answers fill the buffers of both ends, since nothing of them is read.
        writer.write(request * 3000)

        async with asyncio.timeout(10):
            with pytest.raises(ConnectionError):
                await until_closed(writer, request)

    assert not reader.at_eof()


async def until_closed(writer, data):
    """Write until that fails."""
    while True:
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_connection_beyond_the_limit_ends_the_oldest_that_asks_nothing(admin, ask):
    async with admin(limits=AdminLimits(max_connections=2)) as address:
        held = [await asyncio.open_connection(*address) for _ in range(2)]
        for reader, writer in held:
            assert (await talk(reader, writer, address, "/healthz")).status == 200

        assert (await ask(address, "/healthz")).status == 200
        with contextlib.suppress(ConnectionError):
            assert await held[0][0].read() == b""
        assert (await talk(*held[1], address, "/healthz")).status == 200
        for _, writer in held:
            writer.close()


async def test_connection_beyond_the_limit_is_closed_while_all_are_answered():
    go_on = asyncio.Event()

    async def answer(_):
        await go_on.wait()
        return Response.text(HTTPStatus.OK, "late")

    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with HttpServer("127.0.0.1", 0, answer, limits=AdminLimits(max_connections=1)) as server:
        first = asyncio.create_task(raw(server.address, request))
        await asyncio.sleep(0.05)
        assert await raw(server.address, request) == b""
        go_on.set()
        assert b"late" in await first


async def test_end_of_the_listener_ends_connections(admin):
    async with admin() as address:
        reader, writer = await asyncio.open_connection(*address)
        await talk(reader, writer, address, "/healthz")

    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def test_port_that_is_taken_is_named(admin, relay):
    async with admin() as address:
        with pytest.raises(
            TransportError, match=rf"cannot listen on TCP 127\.0\.0\.1:{address.port}"
        ):
            async with AdminServer(relay, AdminConfig(port=address.port)):
                pass


async def test_answer_that_fails_is_an_error_and_a_traceback_in_the_log(admin, ask, relay, caplog):
    def fail():
        raise RuntimeError("a bug")

    relay.statistics = fail
    async with admin() as address:
        answer = await ask(address, "/metrics")
        again = await ask(address, "/healthz")

    assert answer.status == 500
    assert "a bug" not in answer.text
    assert "a bug" in caplog.text
    assert again.status == 200
