"""HTTP/1.1 for a few small answers: h11 for the protocol, asyncio for the bytes.

Theory of operation. `HttpServer` owns a listening socket and a task for every connection, all in
one task group. A connection is a loop: the head of a request, within a bounded size and time; an
answer from the function that was given; the answer's bytes, within a bounded time. Only GET and
HEAD without a body are understood. Whatever goes wrong on a connection ends that connection.
"""

import asyncio
import errno
import ipaddress
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qsl, urlsplit

import h11

from kvcs.admin.config import AdminLimits
from kvcs.errors import TransportError
from kvcs.transport.interface import Address, is_loopback

__all__ = ("HttpServer", "Request", "Response")

_logger = logging.getLogger("kvcs.admin")

# Small, so that a head exceeds its limit by little before that is noticed.
_READ_BYTES: Final = 4096
_MAX_FIELDS: Final = 16
_METHODS: Final = {b"GET", b"HEAD"}
_PLAIN: Final = "text/plain; charset=utf-8"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (
        "Content-Security-Policy",
        _POLICY,
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client wants.

    Attributes:
        path: Path, still escaped.
        query: Parameters; of those that occur several times the last one.
        accept: What the client wants to get.
    """

    path: str
    query: Mapping[str, str]
    accept: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer.

    Attributes:
        body: Its octets.
        content_type: What they are.
        status: Status code.
        headers: Further headers.
    """

    body: bytes
    content_type: str
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def text(cls, status: HTTPStatus, text: str) -> "Response":
        """Return a line of text."""
        return cls(f"{text}\n".encode(), _PLAIN, status)


class HttpServer:
    """A listener, from ``async with`` to its end."""

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[Request], Awaitable[Response]],
        *,
        limits: AdminLimits,
    ) -> None:
        """Prepare a listener; nothing is opened yet.

        Args:
            host: Address to listen on.
            port: TCP port; 0 picks a free one.
            answer: Answers a request; what it raises is answered with 500.
            limits: Bounds.
        """
        self._host = host
        self._port = port
        self._answer = answer
        self._limits = limits
        self._stack = AsyncExitStack()
        self._group = asyncio.TaskGroup()
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], _Conversation] = {}

    def __repr__(self) -> str:
        return f"<HttpServer {self._host} connections={len(self._tasks)}>"

    @property
    def address(self) -> Address:
        """Where clients connect; the port is the real one when 0 was asked for."""
        assert self._server is not None, "the listener is open"
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    async def __aenter__(self) -> Self:
        """Open the port.

        Raises:
            TransportError: It cannot be opened.
        """
        await self._stack.enter_async_context(self._group)
        try:
            self._server = await asyncio.start_server(
                self._accept, self._host, self._port, limit=2 * self._limits.max_request_bytes
            )
        except OSError as error:
            await self._stack.aclose()
            address = Address(self._host, self._port)
            # The loop puts the address into the text of the error, once more.
            number = error.errno or 0
            reason = os.strerror(number) if number in errno.errorcode else error.strerror
            raise TransportError(f"cannot listen on TCP {address}: {reason}") from error
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the port, then all connections."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await self._stack.aclose()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= self._limits.max_connections and not self._make_room():
            writer.transport.abort()
            return
        conversation = _Conversation(reader, writer, self._answer, self._limits, self._host)
        task = self._group.create_task(
            self._converse(conversation, writer), name="admin connection"
        )
        self._tasks[task] = conversation
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    def _make_room(self) -> bool:
        """End the oldest connection that asks nothing; False if there is none.

        Otherwise whoever opens enough of them keeps everybody away, those included who look
        whether the relay is alive.
        """
        for task, conversation in self._tasks.items():
            if conversation.is_waiting:
                del self._tasks[task]
                task.cancel()
                return True
        return False

    async def _converse(self, conversation: "_Conversation", writer: asyncio.StreamWriter) -> None:
        # Writing then waits for the last octet, so that nothing is left when the connection ends.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            while await conversation.turn():
                pass
            writer.close()
        except (TimeoutError, OSError, h11.RemoteProtocolError) as error:
            _logger.debug("connection ended: %r", error)
        except Exception:
            _logger.exception("connection failed")
        finally:
            if not writer.is_closing():
                writer.transport.abort()


class _Conversation:
    """One connection.

    Attributes:
        is_waiting: It waits for a request, or for the rest of one.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Callable[[Request], Awaitable[Response]],
        limits: AdminLimits,
        host: str,
    ) -> None:
        self.is_waiting = False
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._limits = limits
        self._is_local = is_loopback(host)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.max_request_bytes)

    async def turn(self) -> bool:
        """Answer one request; tell whether another may follow.

        Raises:
            RemoteProtocolError: The client does not speak HTTP/1.1, and was told so.
            TimeoutError: It took too long.
            OSError: It has gone.
        """
        self.is_waiting = True
        try:
            request = await self._receive()
        except h11.RemoteProtocolError as error:
            if self._http.our_state is h11.IDLE:
                status = HTTPStatus(error.error_status_hint)
                await self._send(Response.text(status, status.phrase))
            raise
        if request is None:
            return False
        self.is_waiting = False
        response = await self._respond(request)
        await self._send(response, with_body=request.method != b"HEAD")
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _receive(self) -> h11.Request | None:
        """Return the next request, or None when the client has gone."""
        event = self._http.next_event()
        if event is h11.NEED_DATA:
            async with asyncio.timeout(self._limits.idle_timeout):
                await self._read()
            async with asyncio.timeout(self._limits.request_timeout):
                while (event := self._http.next_event()) is h11.NEED_DATA:
                    await self._read()
        return event if isinstance(event, h11.Request) else None

    async def _read(self) -> None:
        self._http.receive_data(await self._reader.read(_READ_BYTES))

    async def _respond(self, request: h11.Request) -> Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            url = urlsplit(request.target.decode("ascii"))
            query = dict(parse_qsl(url.query, max_num_fields=_MAX_FIELDS))
        except ValueError:
            return Response.text(HTTPStatus.BAD_REQUEST, "not a path with parameters")
        try:
            accept = _header(request, b"accept")
            return await self._answer(Request(url.path, query, accept))
        except Exception:
            _logger.exception("request failed")
            return Response.text(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")

    def _refusal(self, request: h11.Request) -> Response | None:
        """Refuse what is not understood, and names that lead here by somebody else's doing."""
        if request.method not in _METHODS:
            text = "only GET and HEAD"
            allow = (("Allow", "GET, HEAD"),)
            status = HTTPStatus.METHOD_NOT_ALLOWED
            return Response(f"{text}\n".encode(), _PLAIN, status, allow)
        # Whoever stands between may read a length and a coding differently than we do.
        is_coded = bool(_header(request, b"transfer-encoding"))
        if is_coded or not isinstance(self._http.next_event(), h11.EndOfMessage):
            return Response.text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no body is read")
        if self._is_local and not _is_address(_header(request, b"host")):
            return Response.text(HTTPStatus.MISDIRECTED_REQUEST, "ask by address, or localhost")
        return None

    async def _send(self, response: Response, *, with_body: bool = True) -> None:
        """Send a response, whole, within its time."""
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            *_HEADERS,
            *response.headers,
        ]
        http = self._http
        head = h11.Response(
            status_code=response.status,
            reason=response.status.phrase.encode(),
            headers=[(name.encode(), value.encode()) for name, value in headers],
        )
        parts = [http.send(head)]
        if with_body:
            parts.append(http.send(h11.Data(data=response.body)))
        parts.append(http.send(h11.EndOfMessage()))
        # In one piece: writelines of Python 3.12.1 forgets to say that the buffer is full.
        self._writer.write(b"".join(part for part in parts if part))
        async with asyncio.timeout(self._limits.response_timeout):
            await self._writer.drain()


def _header(request: h11.Request, name: bytes) -> str:
    """Return the first header of that name, in lower case, or an empty text."""
    return next((value.decode("latin-1") for key, value in request.headers if key == name), "")


def _is_address(host: str) -> bool:
    """Tell whether a Host header has an IP address, or localhost.

    Any other name could be one that a web site made to lead to this machine, to read from a
    browser here what only this machine may see.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
