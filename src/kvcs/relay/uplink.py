"""The session with the parent: dialled, kept, and dialled again.

asyncio begins here. One task keeps the session: it dials the parent that is due, gives its
events to the core, waits for the end, and begins again. A parent that says GOAWAY goes on
serving what it has begun, until another one is set up, which makes the core close it, or until
nothing of it is left; only then it is dialled again.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from kvcs.endpoint.connect import ConnectConfig, dial
from kvcs.endpoint.connection import Connection
from kvcs.endpoint.reconnect import Backoff
from kvcs.errors import ConnectionLost, KvcsError, ProtocolError, TransportError
from kvcs.moqt.session.events import Event, GoawayReceived
from kvcs.moqt.wire.token import Token
from kvcs.relay.parents import Parents
from kvcs.transport.interface import TransportFactory

__all__ = ("Uplink",)

# A parent that announced its end is let go after this time, whether another one was found or not.
_GOAWAY_PATIENCE: Final = 60.0
_LOOK_INTERVAL: Final = 0.25

_logger = logging.getLogger("kvcs.relay")


class Uplink:
    """Keeps a session with one of the parents.

    Attributes:
        url: The parent of the current session, None while there is none.
        failed: The parent of the last attempt or session that ended; None while all is well.
        last_error: Why it ended.
        attempts: Attempts so far.
    """

    def __init__(
        self,
        urls: tuple[str, ...],
        config: Callable[[], ConnectConfig],
        attach: Callable[[Connection], Callable[[], bool]],
        *,
        backoff: Backoff,
        rng: random.Random,
        transport: TransportFactory | None = None,
    ) -> None:
        """Prepare; nothing is dialled before `keep` runs.

        Args:
            urls: Parents in order of preference.
            config: Returns the settings of a new connection.
            attach: Takes a connection before its SETUP, and ends it if it cannot be used;
                returns what tells whether anything is still received on it.
            backoff: Waits between attempts at one parent.
            rng: Chance of the waits.
            transport: What carries the sessions; None for QUIC.
        """
        self.url: str | None = None
        self.failed: str | None = None
        self.last_error: KvcsError | None = None
        self.attempts = 0
        self._parents = Parents(urls, backoff=backoff, rng=rng)
        self._config = config
        self._attach = attach
        self._transport = transport
        self._since = 0.0
        self._leaving: set[str] = set()
        self._left = asyncio.Event()
        self._open: set[Connection] = set()

    def __repr__(self) -> str:
        return f"<Uplink {self.url} attempts={self.attempts}>"

    async def keep(self) -> None:
        """Have a parent until cancelled; then the session is closed, bounded in time."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as retiring:
            while True:
                self._left.clear()
                choice = self._parents.choose(self._leaving, now=loop.time())
                if choice is None:
                    await self._left.wait()
                    continue
                url, wait = choice
                await asyncio.sleep(wait)
                error = await self._live(url, retiring)
                now = loop.time()
                lived = 0.0 if self.url is None else now - self._since
                self.url = None
                self.failed, self.last_error = url, error
                is_clean = isinstance(error, ConnectionLost) and error.code == 0 and lived > 0
                self._parents.ended(url, lived=lived, is_clean=is_clean, now=now)
                _logger.warning("no session with the parent %s: %s", url, error)

    def authorize(self, tokens: tuple[Token, ...]) -> None:
        """Present other tokens in the sessions that are open; `config` gives them to new ones."""
        for connection in tuple(self._open):
            connection.authorize(tokens)

    async def _live(self, url: str, retiring: asyncio.TaskGroup) -> KvcsError:
        """Have one session until it ends, or its end is announced; return why."""
        self.attempts += 1
        going_away = asyncio.Event()
        uses: list[Callable[[], bool]] = []

        def prepare(connection: Connection) -> None:
            self._open.add(connection)
            connection.on_closed(lambda: self._open.discard(connection))
            uses.append(self._attach(connection))
            connection.listen(lambda event: _watch(event, going_away))
            connection.on_closed(going_away.set)

        try:
            connection = await dial(
                url, self._config(), transport=self._transport, on_connection=prepare
            )
        except (TransportError, ProtocolError) as error:
            return error
        self.url, self.failed, self.last_error = url, None, None
        self._since = connection.now
        _logger.info("the parent is %s", url)
        is_retiring = False
        try:
            await going_away.wait()
            if not connection.closed:
                self._leaving.add(url)
                retiring.create_task(self._retire(url, connection, uses[0]), name=f"retire {url}")
                is_retiring = True
                return ConnectionLost(0, "the parent is going away")
            error = await connection.wait_closed()
            return error or ConnectionLost(0, "closed")
        finally:
            if not is_retiring:
                await connection.close(flush=False)

    async def _retire(self, url: str, connection: Connection, is_used: Callable[[], bool]) -> None:
        """Let a parent serve what it has begun, for a bounded time."""
        try:
            for _ in range(round(_GOAWAY_PATIENCE / _LOOK_INTERVAL)):
                if connection.closed or not is_used():
                    break
                await asyncio.sleep(_LOOK_INTERVAL)
        finally:
            await connection.close(flush=False)
            self._leaving.discard(url)
            self._left.set()


def _watch(event: Event, going_away: asyncio.Event) -> None:
    if isinstance(event, GoawayReceived) and event.request_id is None:
        going_away.set()
