"""A connection that comes back: `PersistentConnection`.

This is the one place where a client retries. Delays grow to a cap and are drawn at random
from their upper half, so that the clients of a server that restarts do not return at once.

A server that is about to stop says so with GOAWAY. Then a new session is made first, at the URI
that it names or at the same one, and the old one is left to finish what runs on it: until that
is done, and at most for as long as the server grants. A server that sends everybody away at
once counts as one that cannot be reached, so that two of them cannot play ball with a client.

Source: MOQT draft 22, Sections 6.6.1, 7.4.1 and 9.2.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from kvcs.endpoint.connect import ConnectConfig, dial
from kvcs.endpoint.connection import Connection
from kvcs.endpoint.url import parse_url
from kvcs.errors import (
    CertificateRefused,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DraftRefused,
    KvcsError,
    ProtocolError,
    SessionRefused,
    TransportError,
)
from kvcs.moqt.session.events import Event, GoawayReceived, SetupComplete
from kvcs.moqt.wire.token import Token
from kvcs.transport.interface import Address, TransportFactory

__all__ = ("MAX_MOVES", "Backoff", "PersistentConnection")

_logger = logging.getLogger("kvcs.endpoint")

# Sessions in a row that servers send elsewhere at once before the first URL is tried again.
MAX_MOVES: Final = 4
# What the server itself says, and will say again until somebody mends something.
_REFUSALS: Final = (CertificateRefused, DraftRefused, SessionRefused)
# How often it is looked whether a session that is to end has anything left to do.
_LOOK_INTERVAL: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait between attempts.

    Attributes:
        initial: Seconds after the first failure.
        factor: Growth with each further failure.
        maximum: Longest wait in seconds. A session that lived longer starts again at `initial`.
    """

    initial: float = 0.25
    factor: float = 2.0
    maximum: float = 10.0

    def delay(self, failures: int, rng: random.Random) -> float:
        """Draw the wait after so many failures in a row, at least one."""
        full = min(self.maximum, self.initial * self.factor ** min(failures - 1, 64))
        return full * rng.uniform(0.5, 1.0)


class PersistentConnection:
    """Keeps one session to a server while its ``async with`` block runs.

    Attributes:
        current: The session that is set up now, or None.
        last_error: Why the last attempt or session ended; None while all is well.
        attempts: Attempts so far.
    """

    def __init__(
        self,
        url: str,
        config: ConnectConfig | None = None,
        *,
        on_connected: Callable[[Connection], None] = lambda _: None,
        backoff: Backoff | None = None,
        transport: TransportFactory | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare; nothing is connected before the block is entered.

        Args:
            url: ``moqt://host[:port]/path``.
            config: Settings of each connection.
            on_connected: Called for each new session as soon as it is set up; registers
                listeners, sends requests, must not wait. After a GOAWAY the session before
                may still be there, until what runs on it has ended.
            backoff: Waits between attempts.
            transport: What carries the sessions; None for QUIC.
            rng: Chance of the waits; None for an unpredictable one.

        Raises:
            ConfigError: The URL is wrong.
        """
        target = parse_url(url)
        self.current: Connection | None = None
        self.last_error: KvcsError | None = None
        self.attempts = 0
        self._noted = ""
        self._waiting = 0
        self._refusals = 0
        self._address = str(Address(target.host, target.port))
        self._url = url
        self._config = config or ConnectConfig()
        self._hosts = frozenset((target.host, *self._config.goaway_hosts))
        self._on_connected = on_connected
        self._backoff = backoff or Backoff()
        self._transport = transport
        self._rng = rng or random.SystemRandom()
        self._changed = asyncio.Condition()
        self._tasks = asyncio.TaskGroup()
        self._keeper: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._open: set[Connection] = set()

    def __repr__(self) -> str:
        return f"<PersistentConnection {self._address}, current {self.current}>"

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._keeper = self._tasks.create_task(self._keep(), name=f"keep {self._address}")
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._keeper is not None
        for task in (self._keeper, *self._retiring):
            task.cancel()
        if isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(error_type, error, traceback)
        else:  # The group would wrap an error of the block, which is not its own.
            await self._tasks.__aexit__(None, None, None)

    async def connection(self, timeout: float | None = None) -> Connection:  # noqa: ASYNC109
        """Wait for a session that is set up.

        Attempts go on, but a server that answers and refuses is not waited for longer than for
        the attempt that is due.

        Args:
            timeout: Seconds; None waits as long as it takes.

        Raises:
            CertificateRefused, DraftRefused, SessionRefused: So ended an attempt meanwhile.
            KvcsError: None in time; the last real error.
        """
        before = self._refusals
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout), self._changed:
                while self.current is None:
                    if self._refusals != before and self.last_error is not None:
                        raise self.last_error.with_traceback(None)
                    await self._changed.wait()
        except TimeoutError:
            reason = f"no connection within {timeout:g} s"
            raise self.last_error or ConnectFailed(self._address, reason) from None
        finally:
            self._waiting -= 1
        return self.current

    def authorize(self, tokens: tuple[Token, ...]) -> None:
        """Present other tokens from now on: in this session, and in those that follow.

        Args:
            tokens: By value; at least one.

        Raises:
            LocalProtocolError: A token is by alias, or there is none.
        """
        self._config = replace(self._config, tokens=tokens)
        for connection in tuple(self._open):
            connection.authorize(tokens)

    async def _keep(self) -> None:
        """Connect, wait for the end, wait a little, again; until cancelled."""
        loop = asyncio.get_running_loop()
        url, failures, moves = self._url, 0, 0
        while True:
            started_at = loop.time()
            goaway: GoawayReceived | None = None
            try:
                goaway = await self._live(url)
                self.last_error = ConnectionLost(0, "closed by the server")
            except (TransportError, ProtocolError) as error:
                self.last_error = error
                self._refusals += isinstance(error, _REFUSALS)
                await self._announce()
            is_short = loop.time() - started_at <= self._backoff.maximum
            moves = moves + 1 if goaway is not None and is_short else 0
            url = self._following(url, goaway, moves)
            if goaway is not None and not is_short:
                failures = 0
                continue
            failures = failures + 1 if is_short else 1
            await self._pause(failures)

    async def _pause(self, failures: int) -> None:
        delay = self._backoff.delay(failures, self._rng)
        reason = str(self.last_error)
        # The same again, for as long as a server is away, is no news; nor is what whoever waits
        # is told.
        is_told = self._waiting > 0 and isinstance(self.last_error, _REFUSALS)
        level = logging.DEBUG if is_told or reason == self._noted else logging.WARNING
        self._noted = reason
        _logger.log(
            level,
            "no session with %s (%s); next attempt in %.1f s",
            self._address,
            reason,
            delay,
        )
        await asyncio.sleep(delay)

    def _following(self, url: str, goaway: GoawayReceived | None, moves: int) -> str:
        """Return where to connect next."""
        if goaway is None or moves > MAX_MOVES:
            return self._url
        if not goaway.uri:
            return url
        try:
            target = parse_url(goaway.uri)
        except ConfigError:
            _logger.warning("%s asks us to go to a URI that is none", self._address)
            return url
        if target.host not in self._hosts:
            _logger.warning("%s asks us to go to another host, which is not allowed", self._address)
            return url
        return goaway.uri

    async def _live(self, url: str) -> GoawayReceived | None:
        """One session from its start to its clean end, or to the GOAWAY of the server.

        Raises:
            TransportError: It could not be made, or was lost.
            ProtocolError: A side broke a rule.
        """
        self.attempts += 1
        news = asyncio.Event()
        goaways: list[GoawayReceived] = []

        def leave(goaway: GoawayReceived) -> None:
            goaways.append(goaway)
            news.set()

        def prepare(connection: Connection) -> None:
            self._watch(connection)
            self._open.add(connection)
            connection.on_closed(lambda: self._open.discard(connection))
            connection.on_goaway(leave)
            connection.on_closed(news.set)

        connection = await dial(url, self._config, transport=self._transport, on_connection=prepare)
        is_kept = False
        try:
            await self._announce()
            await news.wait()
            is_kept = bool(goaways) and not connection.closed
        finally:
            self._lose(connection)
            if not is_kept:
                await connection.close()
        if is_kept:
            self._retire(connection, goaways[0].timeout)
        if goaways:
            return goaways[0]
        error = await connection.wait_closed()
        if error is not None:
            raise error
        return None

    def _retire(self, connection: Connection, timeout: float) -> None:
        """Let a session end when nothing runs on it any more, in bounded time."""
        timeout = timeout or self._config.limits.goaway_timeout
        _logger.info("%s asks us to leave within %.1f s", self._address, timeout)
        task = self._tasks.create_task(
            self._finish(connection, connection.now + timeout), name=f"leave {self._address}"
        )
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _finish(self, connection: Connection, deadline: float) -> None:
        try:
            while not connection.closed and connection.now < deadline:
                if connection.session.is_quiet and self.current is not None:
                    break
                await asyncio.sleep(_LOOK_INTERVAL)
        finally:
            await connection.close(reason="moved")

    def _watch(self, connection: Connection) -> None:
        """Make a connection the current one at its SETUP, before any other event."""

        def receive(event: Event) -> None:
            if isinstance(event, SetupComplete):
                connection.unlisten(receive)
                self.current = connection
                self.last_error = None
                self._noted = ""
                self._on_connected(connection)

        connection.listen(receive)
        connection.on_closed(lambda: self._lose(connection))

    def _lose(self, connection: Connection) -> None:
        if self.current is connection:
            self.current = None

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()
