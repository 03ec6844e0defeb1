"""A network in memory, for tests: seeded, on the event loop's time, with real faults.

Theory of operation: `MemoryNetwork` is a `TransportFactory`; every connection is a pair of
`MemoryTransport`. Each end has the send queue of the real adapter above rings that refuse
what does not fit. A wire per direction takes bytes out of the rings by priority, at the
link's bandwidth, and lets them arrive after its delay; pieces of different streams overtake
each other when the link reorders, pieces of one stream never do.

The faults are those of the real library. The receiver cannot pause a peer: what arrives is
delivered, or piles up in a stalled end until the stream windows are full. A peer that dies
is noticed at the idle timeout, with code 0. A close loses what is queued, unless the closing
end flushes. The reason of a close does not travel.

Time is the loop's and chance is seeded: on `kvcs.testing.VirtualClockLoop` the same seed
gives the same run, without waiting.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Final

from kvcs.errors import ConnectFailed, DraftRefused, TransportError
from kvcs.transport.interface import (
    Address,
    ClientTls,
    Closed,
    Datagram,
    Listener,
    ServerTls,
    StopSending,
    StreamData,
    StreamReset,
    Transport,
    TransportConfig,
    TransportEvent,
    TransportFactory,
)
from kvcs.transport.memory_link import Conditions, Credit, LinkProfile, Timers, Wire
from kvcs.transport.send_queue import SendQueue

__all__ = ("LinkProfile", "MemoryListener", "MemoryNetwork", "MemoryTransport")

_RETRY_INTERVAL: Final = 0.001
_MAX_DATAGRAM_BYTES: Final = 1200
_FIRST_EPHEMERAL_PORT: Final = 49152


class MemoryTransport(Transport):
    """One end of a connection in memory, with handles to make it fail.

    Attributes:
        config: Settings of this end.
        peer: The other end.
        local_address: This end.
    """

    def __init__(
        self, address: Address, config: TransportConfig, *, wires: tuple[Wire, Wire]
    ) -> None:
        """Create an end; the network joins it with its peer.

        Args:
            address: This end.
            config: Settings of this end.
            wires: Outgoing and incoming.
        """
        self.config = config
        self.local_address = address
        self.peer: MemoryTransport
        self._out, self._in = wires
        self._out.on_sent = self._pump
        self._out.on_empty = self._check_flushed
        self._in.on_arrival = self._receive
        self._queue = SendQueue(self._out.rings, stream_bytes=config.stream_ring_bytes)
        self._timers = Timers()
        self._inbox: list[TransportEvent] = []
        self._on_events: Callable[[Sequence[TransportEvent]], None] | None = None
        self._on_writable: Callable[[], None] = lambda: None
        self._above_low_water = False
        self._stalled = False
        self._closing: tuple[int, str] | None = None
        self._over: Closed | None = None
        self._released = asyncio.Event()

    def __repr__(self) -> str:
        return f"<MemoryTransport {self.local_address}, {self.queued_bytes} bytes queued>"

    # The interface.

    @property
    def peer_address(self) -> Address:
        """The other end."""
        return self.peer.local_address

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted and not yet on the wire."""
        return self._queue.queued_bytes

    @property
    def room(self) -> int:
        """Bytes below the high-water mark."""
        return max(0, self.config.high_water_bytes - self._queue.queued_bytes)

    @property
    def max_bidi_streams(self) -> int:
        """Bidirectional streams that the peer lets this end have open at a time."""
        return self.peer.config.max_bidi_streams

    @property
    def bytes_sent(self) -> int:
        """Stream bytes that this end has put on the wire."""
        return self._out.bytes_sent

    @property
    def is_over(self) -> bool:
        """Tell whether the connection has ended at this end."""
        return self._over is not None

    def is_drained(self, stream_id: int) -> bool:
        """Tell whether nothing of a stream waits."""
        return not self._queue.owes(stream_id)

    def unsent_bytes(self, stream_id: int) -> int:
        """Return the bytes of a stream that wait."""
        return self._queue.unsent_bytes(stream_id)

    def set_listener(
        self,
        on_events: Callable[[Sequence[TransportEvent]], None],
        on_writable: Callable[[], None],
    ) -> None:
        """Name the receiver; what arrived before is delivered on the next loop turn."""
        self._on_events = on_events
        self._on_writable = on_writable
        self._timers.soon("deliver", self._deliver)

    def write(self, stream_id: int, data: bytes, *, fin: bool = False) -> None:
        """Queue bytes on a stream."""
        if self._closing is None and self._over is None:
            self._queue.append(stream_id, data, fin=fin)
            self._queue.flush()
            self._settle()

    def reset(self, stream_id: int, code: int) -> None:
        """Abandon the sending side of a stream."""
        if self._over is None:
            self._queue.discard(stream_id)
            self._out.forget_stream(stream_id)
            self._out.send(StreamReset(stream_id, code), stream_id)
            self._pump()

    def stop_sending(self, stream_id: int, code: int) -> None:
        """Ask the peer to abandon its sending side of a stream."""
        if self._over is None:
            self._out.send(StopSending(stream_id, code))

    def set_priority(self, stream_id: int, priority: int) -> None:
        """Rank a stream."""
        self._out.set_priority(stream_id, priority)

    def send_datagram(self, data: bytes) -> None:
        """Send a datagram; one that is too large is dropped."""
        if self._over is None and len(data) <= _MAX_DATAGRAM_BYTES:
            self._out.send_datagram(Datagram(data))

    def close(self, code: int, reason: str) -> None:
        """Close; code 0 delivers what is queued first."""
        if self._closing is not None or self._over is not None:
            return
        self._closing = (code, reason)
        if code:
            self._close_now()
        else:
            deadline = self._timers.now + self.config.close_timeout
            self._timers.at("close", deadline, self._close_now)
            self._timers.soon("flushed", self._check_flushed)

    async def wait_closed(self) -> None:
        """Wait until the connection is over."""
        await self._released.wait()

    # Faults, for tests.

    def stall(self) -> None:
        """Stop taking events, as a process does that hangs; the connection stays up."""
        self._stalled = True

    def resume(self) -> None:
        """Take events again after `stall`."""
        self._stalled = False
        self._timers.soon("deliver", self._deliver)

    def kill(self) -> None:
        """Vanish like a killed process: the peer notices at its idle timeout."""
        self._end(Closed(0, "killed"))
        self._inbox.clear()
        self._out.stop()
        self._in.cut()
        self.peer.expect_silence()

    def cut(self) -> None:
        """Break the path: both ends notice at their idle timeout, unless it heals."""
        self._out.cut()
        self._in.cut()
        self.expect_silence()
        self.peer.expect_silence()

    def heal(self) -> None:
        """Repair a path that was cut; what was lost on it is sent again."""
        if self.is_over or self.peer.is_over:
            return
        self.expect_life()
        self.peer.expect_life()
        self._out.heal()
        self._in.heal()

    def expect_silence(self) -> None:
        """The peer sends nothing any more: start the idle timeout."""
        self._timers.at("idle", self._timers.now + self.config.idle_timeout, self._time_out)

    def expect_life(self) -> None:
        """The peer sends again: stop the idle timeout."""
        self._timers.cancel("idle")

    # What happens inside.

    def _pump(self) -> None:
        """Move bytes into the rings."""
        if self._over is None:
            self._queue.pump()
            self._settle()

    def _settle(self) -> None:
        """Tell everybody who waits for the queue."""
        queued = self._queue.queued_bytes
        if queued >= self.config.low_water_bytes:
            self._above_low_water = True
        elif self._above_low_water:
            self._above_low_water = False
            self._timers.soon("writable", self._on_writable)
        if self._out.rings.by_stream:
            self._out.wake()
        if self._queue.is_waiting:
            self._timers.at("retry", self._timers.now + _RETRY_INTERVAL, self._pump)
        self._check_flushed()

    def _receive(self, event: TransportEvent) -> None:
        if self._over is not None:
            return
        if isinstance(event, Closed):
            self._out.stop()
            self._end(event)
            return
        if isinstance(event, StreamReset) or (isinstance(event, StreamData) and event.fin):
            self._in.end_stream(event.stream_id)
            self._out.credit.end_half(event.stream_id, sent=False)
            self._out.wake()
        self._inbox.append(event)
        self._timers.soon("deliver", self._deliver)

    def _deliver(self) -> None:
        if self._on_events is None or self._stalled or not self._inbox:
            return
        batch, self._inbox = self._inbox, []
        for event in batch:
            if isinstance(event, StreamData):
                self._in.credit.give_back(event.stream_id, len(event.data))
        self._in.wake()
        self._on_events(batch)

    def _check_flushed(self) -> None:
        if self._closing is not None and not self._queue.streams and self._out.is_empty:
            self._close_now()

    def _close_now(self) -> None:
        if self._closing is None or self._over is not None:
            return
        code, reason = self._closing
        self._out.close(Closed(code, "closed by the peer", clean=not code))
        self._end(Closed(code, reason or "closed by us", clean=not code))

    def _time_out(self) -> None:
        timeout = self.config.idle_timeout
        self._out.stop()
        self._end(Closed(0, f"no packet from the peer for {timeout:g} s (idle timeout)"))

    def _end(self, closed: Closed) -> None:
        """Drop everything that is queued or under way; `closed` is the last event."""
        if self._over is not None:
            return
        self._over = closed
        self._queue.clear()
        self._timers.cancel_all()
        self._inbox.append(closed)
        self._timers.soon("deliver", self._deliver)
        self._released.set()


class MemoryListener(Listener):
    """An open port of a `MemoryNetwork`."""

    def __init__(
        self,
        network: "MemoryNetwork",
        address: Address,
        on_transport: Callable[[Transport], None],
        *,
        alpn: str,
        config: TransportConfig,
    ) -> None:
        self._network = network
        self._address = address
        self._on_transport = on_transport
        self.alpn = alpn
        self.config = config
        self.transports: list[MemoryTransport] = []

    @property
    def address(self) -> Address:
        """Where clients connect."""
        return self._address

    def accept(self, transport: MemoryTransport) -> None:
        """Take a finished connection."""
        self.transports.append(transport)
        self._on_transport(transport)

    def close(self) -> None:
        """Stop accepting and end all connections that are left."""
        self._network.release(self)
        for transport in self.transports:
            transport.close(0, "the server stops")


class MemoryNetwork(TransportFactory):
    """Connections in memory over links with one profile.

    Attributes:
        conditions: Profile of the links and their chance; the profile may be replaced while
            connections run.
        client_host: Address that servers see of the clients that connect from now on.
    """

    def __init__(self, seed: int = 0, profile: LinkProfile | None = None) -> None:
        """Create a network without hosts.

        Args:
            seed: Start of all chance.
            profile: What the links do; None for a fast, faultless link.
        """
        self.conditions = Conditions(seed, profile or LinkProfile())
        self.client_host = "127.0.0.1"
        self._transports: list[MemoryTransport] = []
        self._listeners: dict[int, MemoryListener] = {}
        self._ports = itertools.count(_FIRST_EPHEMERAL_PORT)

    @property
    def transports(self) -> list[MemoryTransport]:
        """Ends of living connections in order of their birth: client, server, client, ..."""
        self._transports = [transport for transport in self._transports if not transport.is_over]
        return list(self._transports)

    def release(self, listener: MemoryListener) -> None:
        """Free the port of a listener."""
        if self._listeners.get(listener.address.port) is listener:
            del self._listeners[listener.address.port]

    async def connect(
        self, host: str, port: int, *, alpn: str, tls: ClientTls, config: TransportConfig
    ) -> MemoryTransport:
        """Connect; certificates are not looked at.

        Raises:
            ConnectFailed: Nobody listens (after `TransportConfig.connect_timeout`, as on UDP),
                or the ALPN differs.
        """
        del tls
        address = Address(host, port)
        await asyncio.sleep(2 * self.conditions.profile.delay)
        listener = self._listeners.get(port)
        if listener is None:
            await asyncio.sleep(config.connect_timeout)
            raise ConnectFailed(str(address), f"no answer within {config.connect_timeout:g} s")
        if listener.alpn != alpn:
            raise DraftRefused(str(address), f"the server does not speak {alpn}")
        client_address = Address(self.client_host, next(self._ports))
        up = self._wire(config, listener.config, from_client=True)
        down = self._wire(listener.config, config, from_client=False)
        client = MemoryTransport(client_address, config, wires=(up, down))
        server = MemoryTransport(address, listener.config, wires=(down, up))
        client.peer, server.peer = server, client
        self._transports += (client, server)
        listener.accept(server)
        return client

    async def listen(
        self,
        address: Address,
        on_transport: Callable[[Transport], None],
        *,
        alpn: str,
        tls: ServerTls,
        config: TransportConfig,
    ) -> MemoryListener:
        """Accept connections; the host is only a name, the port decides.

        Raises:
            TransportError: The port is taken.
        """
        del tls
        port = address.port or next(self._ports)
        if port in self._listeners:
            raise TransportError(f"cannot listen on {address}: the port is taken")
        listener = MemoryListener(
            self, Address(address.host, port), on_transport, alpn=alpn, config=config
        )
        self._listeners[port] = listener
        return listener

    def _wire(
        self, sender: TransportConfig, receiver: TransportConfig, *, from_client: bool
    ) -> Wire:
        credit = Credit(receiver, is_client=from_client)
        return Wire(self.conditions, sender, credit=credit)
