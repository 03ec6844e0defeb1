"""A connection that comes back: `PersistentConnection`.

This is the one place where a client retries. Delays grow to a cap and are drawn at random
from their upper half, so that the clients of a server that restarts do not return at once.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kvcs.endpoint.connect import ConnectConfig, dial
from kvcs.endpoint.connection import Connection
from kvcs.endpoint.url import parse_url
from kvcs.errors import (
    ConnectFailed,
    ConnectionLost,
    KvcsError,
    ProtocolError,
    TransportError,
)
from kvcs.moqt.session.events import Event, SetupComplete
from kvcs.transport.interface import Address, TransportFactory

__all__ = ("Backoff", "PersistentConnection")

_logger = logging.getLogger("kvcs.endpoint")


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
                listeners, sends requests, must not wait.
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
        self._address = str(Address(target.host, target.port))
        self._url = url
        self._config = config
        self._on_connected = on_connected
        self._backoff = backoff or Backoff()
        self._transport = transport
        self._rng = rng or random.SystemRandom()
        self._changed = asyncio.Condition()
        self._tasks = asyncio.TaskGroup()
        self._keeper: asyncio.Task[None] | None = None

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
        self._keeper.cancel()
        if isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(error_type, error, traceback)
        else:  # The group would wrap an error of the block, which is not its own.
            await self._tasks.__aexit__(None, None, None)

    async def connection(self, timeout: float | None = None) -> Connection:  # noqa: ASYNC109
        """Wait for a session that is set up.

        Args:
            timeout: Seconds; None waits as long as it takes.

        Raises:
            KvcsError: None in time; the last real error.
        """
        try:
            async with asyncio.timeout(timeout), self._changed:
                while self.current is None:
                    await self._changed.wait()
        except TimeoutError:
            reason = f"no connection within {timeout:g} s"
            raise self.last_error or ConnectFailed(self._address, reason) from None
        return self.current

    async def _keep(self) -> None:
        """Connect, wait for the end, wait a little, again; until cancelled."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            started_at = loop.time()
            try:
                await self._live()
                self.last_error = ConnectionLost(0, "closed by the server")
            except (TransportError, ProtocolError) as error:
                self.last_error = error
            lived = loop.time() - started_at
            failures = 1 if lived > self._backoff.maximum else failures + 1
            delay = self._backoff.delay(failures, self._rng)
            _logger.warning(
                "no session with %s (%s); next attempt in %.1f s",
                self._address,
                self.last_error,
                delay,
            )
            await asyncio.sleep(delay)

    async def _live(self) -> None:
        """One session from its start to its clean end.

        Raises:
            TransportError: It could not be made, or was lost.
            ProtocolError: A side broke a rule.
        """
        self.attempts += 1
        connection = await dial(
            self._url, self._config, transport=self._transport, on_connection=self._watch
        )
        try:
            await self._announce()
            error = await connection.wait_closed()
        finally:
            self.current = None
            await connection.close()
        if error is not None:
            raise error

    def _watch(self, connection: Connection) -> None:
        """Make a connection the current one at its SETUP, before any other event."""

        def receive(event: Event) -> None:
            if isinstance(event, SetupComplete):
                connection.unlisten(receive)
                self.current = connection
                self.last_error = None
                self._on_connected(connection)

        connection.listen(receive)
        connection.on_closed(self._lose)

    def _lose(self) -> None:
        self.current = None

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()
