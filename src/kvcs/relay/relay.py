"""A caching relay: sessions of `endpoint.serve` around a `RelayCore`.

asyncio begins here: this file accepts connections, gives their events to the core, and
keeps one timer for everything that the core waits for.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from kvcs.endpoint.connect import ConnectConfig
from kvcs.endpoint.connection import Connection
from kvcs.endpoint.serve import ServeConfig, Server, serve
from kvcs.errors import TerminationCode
from kvcs.moqt.session.events import Event
from kvcs.moqt.session.session import Session
from kvcs.moqt.track.outbox import Outbox
from kvcs.moqt.track.walks import Walks
from kvcs.moqt.wire.token import Token
from kvcs.relay.ancestry import RELAY_ID_BYTES
from kvcs.relay.auth import Authorize
from kvcs.relay.circle import SECRET_BYTES
from kvcs.relay.config import RelayConfig
from kvcs.relay.core import RelayCore
from kvcs.relay.disk.opened import opened_disk
from kvcs.relay.egress import LOOK_INTERVAL, MAX_LOOK_INTERVAL, EgressBudget
from kvcs.relay.heap import Heap, glibc_map_large, glibc_trim, resident_bytes
from kvcs.relay.namespaces import PeerId
from kvcs.relay.report import Reporter, UpstreamReport
from kvcs.relay.statistics import Metrics, RelayStatistics
from kvcs.relay.uplink import Uplink
from kvcs.transport.interface import Address, TransportFactory

__all__ = ("Relay",)

# How often it is looked at who reads, and whether memory became free, in seconds.
_LOOK_INTERVAL: Final = 10.0
_TRIM_INTERVAL: Final = 0.5

_logger = logging.getLogger("kvcs.relay")


class Relay:
    """A relay, from ``async with`` to its end.

    Attributes:
        reporter: What it does and holds in detail, for those who operate it.

    Example:
        ::

            config = RelayConfig(tls=create_dev_certificate(directory).tls, authorize=allow_all)
            async with Relay(config) as relay:
                print(relay.address)
                await asyncio.sleep(60)
                print(relay.statistics())
    """

    def __init__(
        self,
        config: RelayConfig,
        *,
        transport: TransportFactory | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare a relay; nothing is opened yet.

        Args:
            config: Settings.
            transport: What carries the sessions; None for QUIC.
            rng: Chance of the relay's id and of waits; None for an unpredictable one.
        """
        rng = rng or random.SystemRandom()
        self._config = config
        self._upstream_tokens = config.upstream_tokens
        self._transport = transport
        self._core = RelayCore(
            cache_bytes=config.cache_bytes,
            authorize=config.authorize,
            limits=config.limits,
            relay_id=rng.randbytes(RELAY_ID_BYTES),
            secret=rng.randbytes(SECRET_BYTES),
            on_deadline=self._set_timer,
        )
        self._egress = EgressBudget[Connection](config.limits.max_queued_bytes)
        self._walks = Walks()
        self._heap = Heap(glibc_trim(), resident_bytes, budget_bytes=config.cache_bytes)
        self._uplink = Uplink(
            config.upstream,
            self._connect_config,
            lambda connection: self._take(connection, is_parent=True),
            backoff=config.upstream_backoff,
            rng=rng,
            transport=transport,
        )
        self._stack = AsyncExitStack()
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._links: dict[PeerId, Connection] = {}
        self.reporter = Reporter(self._core, self._links)

    def __repr__(self) -> str:
        return f"<Relay {self._core!r}>"

    @property
    def address(self) -> Address:
        """Where clients connect; the port is the real one when 0 was asked for."""
        assert self._server is not None, "the relay is open"
        return self._server.address

    @property
    def parent(self) -> str | None:
        """URL of the parent that is used now; None without one, or while it is not reached."""
        return self._uplink.url

    def upstreams(self) -> tuple[UpstreamReport, ...]:
        """Return what is known of each parent, in order of preference."""
        uplink = self._uplink
        now = 0.0 if self._loop is None else self._loop.time()
        errors = {uplink.url: self._core.parent_refusals.error(now=now)}
        if uplink.failed is not None:
            errors[uplink.failed] = str(uplink.last_error)
        return tuple(
            UpstreamReport(
                url=url,
                is_used=url == uplink.url,
                error=errors.get(url, ""),
            )
            for url in self._config.upstream
        )

    @property
    def policy(self) -> Authorize:
        """What decides every request."""
        return self._config.authorize

    @property
    def is_open(self) -> bool:
        """Whether the port is open and new clients are welcome."""
        return self._loop is not None and not self.is_draining

    @property
    def is_draining(self) -> bool:
        """Whether everybody was asked to leave."""
        return self._core.drain.deadline is not None

    def statistics(self) -> RelayStatistics:
        """Return a copy of all counters."""
        server = self._server
        return replace(
            self._core.statistics(),
            queued_bytes=self._egress.queued_bytes,
            window_bytes=0 if server is None else server.windows.size_bytes,
        )

    async def __aenter__(self) -> Self:
        """Open the port.

        Raises:
            TransportError: The port cannot be opened, or the certificate cannot be used.
            ConfigError: The directory for the disk cannot be used.
        """
        config = self._config
        self._loop = asyncio.get_running_loop()
        serve_config = ServeConfig(
            tls=config.tls,
            transport=config.transport,
            limits=config.limits.session,
            max_connections=config.limits.max_sessions,
            max_connections_per_address=config.limits.max_sessions_per_address,
            max_receive_rate=config.limits.max_receive_rate,
            max_window_bytes=config.limits.max_window_bytes,
            max_total_window_bytes=config.limits.max_total_window_bytes,
            max_filter_ranges=config.max_filter_ranges,
            private_options=self._core.tree.options,
        )
        server = serve(
            config.host, config.port, self._accept, config=serve_config, transport=self._transport
        )
        try:
            if config.disk is not None:
                await self._stack.enter_async_context(opened_disk(self._core, config.disk))
            self._server = await self._stack.enter_async_context(server)
        except BaseException:
            await self._stack.aclose()
            raise
        self._core.schedule(self._loop.time() + _LOOK_INTERVAL, self._close_stalled)
        glibc_map_large()
        self._core.schedule(self._loop.time() + _TRIM_INTERVAL, self._trim_heap)
        _logger.info("relay listens on %s", self._server.address)
        if config.upstream:
            tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
            uplink = tasks.create_task(self._uplink.keep(), name="uplink")
            self._stack.callback(uplink.cancel)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close all sessions, then the port; bounded in time."""
        await self._stack.aclose()
        if self._timer is not None:
            self._timer.cancel()
        self._loop = None

    async def drain(self, timeout: float, uri: str = "") -> None:  # noqa: ASYNC109
        """Ask everybody to leave, and wait until they have; then end the ``async with`` block.

        What is running goes on, new requests are refused with GOING_AWAY, and new sessions
        before their SETUP.

        Args:
            timeout: Seconds that everybody gets; who is still there then is closed.
            uri: Where to go, ``moqt://…``; empty is the URI of this relay, for a restart.
        """
        assert self._loop is not None, "the relay is open"
        assert self._server is not None, "the relay is open"
        self._server.leave()
        _logger.info("relay drains for at most %g s", timeout)
        self._core.drain.begin(timeout, uri, now=self._loop.time())
        self._look_for_end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._drained.wait()
        _logger.info("relay drained, %d sessions left", self.statistics().sessions)

    def review(self) -> None:
        """Decide again all that was allowed, since the policy changed; end what may not go on."""
        assert self._loop is not None, "the relay is open"
        self._core.admission.review.everything(now=self._loop.time())

    def authorize_upstream(self, tokens: tuple[Token, ...]) -> None:
        """Present other tokens to the parents from now on, also for what runs.

        Args:
            tokens: By value; at least one.

        Raises:
            LocalProtocolError: A token is by alias, or there is none.
        """
        assert self._loop is not None, "the relay is open"
        self._upstream_tokens = tokens
        self._uplink.authorize(tokens)
        self._core.tokens_replaced(now=self._loop.time())

    def _look_for_end(self) -> None:
        if self._core.drain.is_over:
            self._drained.set()

    def _connect_config(self) -> ConnectConfig:
        config = self._config
        return ConnectConfig(
            tls=config.upstream_tls,
            transport=config.transport,
            limits=config.limits.session,
            tokens=self._upstream_tokens,
            max_filter_ranges=config.max_filter_ranges,
            private_options=self._core.tree.options(),
        )

    def _accept(self, connection: Connection) -> None:
        self._take(connection, is_parent=False)

    def _take(self, connection: Connection, *, is_parent: bool) -> Callable[[], bool]:
        """Give the events of a connection to the core; return what tells whether it is in use."""
        connection.outbox = _RelayOutbox(connection, self._core.metrics, self._egress, self._walks)
        connection.on_closed(lambda: self._egress.forget(connection))
        peer = self._core.connect(connection, is_parent=is_parent)
        self._links[peer.id] = connection
        connection.on_closed(lambda: self._links.pop(peer.id, None) and None)

        def receive(event: Event) -> None:
            self._core.receive(peer, event, now=connection.now)

        connection.listen(receive)
        connection.on_closed(self._look_for_end)
        return lambda: self._core.uses(peer)

    def _close_stalled(self, now: float) -> None:
        """Close the sessions of subscribers that take nothing of what waits for them."""
        assert self._server is not None, "timers end with the relay"
        timeout = self._config.limits.reader_timeout
        for connection in tuple(self._server.connections):
            if self._egress.look(connection, connection.queued_bytes, now=now) > timeout:
                reason = f"excessive load: nothing was read for {timeout:g} s"
                connection.abort(TerminationCode.INTERNAL_ERROR, reason)
        self._core.schedule(now + _LOOK_INTERVAL, self._close_stalled)

    def _trim_heap(self, now: float) -> None:
        self._heap.look(self._core.metrics.evicted_bytes.total(), now=now)
        self._core.schedule(now + _TRIM_INTERVAL, self._trim_heap)

    def _set_timer(self) -> None:
        """Wake up at the earliest deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._core.next_deadline()
        if deadline is not None and self._loop is not None:
            self._timer = self._loop.call_at(deadline, self._advance, deadline)

    def _advance(self, deadline: float) -> None:
        """Let the core see a deadline; timers may fire a tick early."""
        self._timer = None
        assert self._loop is not None, "timers end with the loop"
        try:
            self._core.advance(now=max(self._loop.time(), deadline))
        finally:
            self._set_timer()


class _RelayOutbox(Outbox):
    """An outbox that counts what leaves the relay, and keeps to the budget of all sessions."""

    def __init__(
        self,
        connection: Connection,
        metrics: Metrics,
        egress: EgressBudget[Connection],
        walks: Walks,
    ) -> None:
        super().__init__(
            on_ready=connection.wake,
            is_drained=connection.is_drained,
            unsent_bytes=connection.unsent_bytes,
            walks=walks,
        )
        self._connection = connection
        self._metrics = metrics
        self._egress = egress
        self._look_at: float | None = None
        self._look_interval = LOOK_INTERVAL

    def next_deadline(self) -> float | None:
        """Return when `send` is due even without room or news, in monotonic seconds."""
        deadline, look_at = super().next_deadline(), self._look_at
        if deadline is None or look_at is None:
            return deadline if look_at is None else look_at
        return min(deadline, look_at)

    def send(self, session: Session, *, room: int, now: float) -> int:
        """Hand Objects to the session, and count their octets."""
        connection, egress = self._connection, self._egress
        before = egress.share(connection)
        granted = egress.grant(connection, connection.queued_bytes, room)
        if granted < room:
            egress.recount(_queued_bytes, now=now)
            granted = egress.grant(connection, connection.queued_bytes, room)
        self._relieve(now)
        if session.is_closed:
            return 0
        sent = super().send(session, room=granted, now=now)
        egress.sent(connection, sent)
        self._metrics.bytes_out += sent
        self._look_at = None
        if granted < room and not self.is_idle:
            goes_on = bool(sent) or egress.share(connection) < before
            self._look_again(goes_on, now)
        return sent

    def _look_again(self, goes_on: bool, now: float) -> None:  # noqa: FBT001
        """Come back soon, or less and less often for a reader that stands still."""
        interval = LOOK_INTERVAL if goes_on else 2 * self._look_interval
        self._look_interval = min(interval, MAX_LOOK_INTERVAL)
        self._look_at = now + self._look_interval

    def _relieve(self, now: float) -> None:
        """Close whoever makes what waits in all sessions exceed its bound."""
        egress = self._egress
        if egress.greediest() is not None:
            # Nobody goes for what has drained in silence.
            egress.recount(_queued_bytes, now=now)
        while (greedy := egress.greediest()) is not None:
            egress.forget(greedy)
            waiting = f"{greedy.queued_bytes} bytes wait for a peer that does not read"
            greedy.abort(TerminationCode.INTERNAL_ERROR, f"excessive load: {waiting}")


def _queued_bytes(connection: Connection) -> int:
    return connection.queued_bytes
