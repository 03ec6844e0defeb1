"""The baselines: the same bytes through aiopquic, without MOQT and without kvcs.

`RawSource` sends on request, 8 unidirectional streams of 2 MiB at a time, the shape that costs
aiopquic least. `RawSink` asks and counts. `Forwarder` stands between one source and several
sinks and copies every stream to all of them: what a relay would cost that understands nothing
and keeps nothing. Settings are those of `kvcs.transport`, and received bytes gather for as
long as they do there.
"""

import asyncio
import time
from collections import deque
from typing import Any, Final

from aiopquic.quic.configuration import QuicConfiguration
from aiopquic.quic.connection import QuicConnection, QuicEngine
from aiopquic.quic.events import HandshakeCompleted, StreamDataReceived

from kvcs.transport.interface import TransportConfig
from kvcs.transport.pump import Look, gather_interval

__all__ = ("Forwarder", "RawSink", "RawSource")

STREAM_BYTES: Final = 2 * 2**20
STREAMS: Final = 8
_TICK: Final = 0.001
_PIECE: Final = 256 * 1024


def _configuration(*, is_client: bool, certificate: dict[str, str]) -> QuicConfiguration:
    config = TransportConfig()
    quic = QuicConfiguration(
        alpn_protocols=["raw"],
        is_client=is_client,
        idle_timeout=config.idle_timeout,
        keep_alive_interval=config.idle_timeout / 3,
        max_data=config.max_data,
        max_stream_data=config.max_stream_data,
        max_streams_uni=config.max_uni_streams,
        max_streams_bidi=config.max_bidi_streams,
        stream_ring_cap=config.stream_ring_bytes,
        congestion_control_algorithm=config.congestion_control,
        tx_max_queued_bytes=None,
    )
    if is_client:
        quic.cafile = certificate["ca"]
        quic.server_name = "localhost"
    else:
        quic.load_cert_chain(certificate["certificate"], certificate["key"])
    return quic


class _Outgoing:
    """Streams of one connection to one receiver, refilled by tick."""

    def __init__(self, quic: QuicConnection) -> None:
        self._quic = quic
        self._pending: dict[int, deque[tuple[bytes, bool]]] = {}

    def write(self, stream_id: int, data: bytes, *, fin: bool) -> None:
        queue = self._pending.get(stream_id)
        if queue is None and self._push(stream_id, data, fin=fin):
            return
        self._pending.setdefault(stream_id, deque()).append((data, fin))

    def tick(self) -> None:
        for stream_id, queue in list(self._pending.items()):
            while queue and self._push(stream_id, *queue[0]):
                queue.popleft()
            if not queue:
                del self._pending[stream_id]

    def _push(self, stream_id: int, data: bytes, fin: bool) -> bool:  # noqa: FBT001
        try:
            self._quic.send_stream_data(stream_id, data, fin)
        except BufferError:
            return False
        return True


class _Server:
    """Accepts connections and drains them at once: sinks send next to nothing."""

    def __init__(self, port: int, certificate: dict[str, str], on_event: Any) -> None:
        self._on_event = on_event
        self._engine = QuicEngine(
            configuration=_configuration(is_client=False, certificate=certificate),
            create_protocol=self._create,
        )
        self._engine._start_transport(port=port)  # noqa: SLF001 - aiopquic's own way to serve
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._engine.eventfd, self._engine.drain_and_route)

    def _create(self, quic: QuicConnection, stream_handler: Any = None) -> "_Peer":
        del stream_handler
        return _Peer(quic, self._on_event)


class _Peer:
    def __init__(self, quic: QuicConnection, on_event: Any) -> None:
        self.quic = quic
        self._on_event = on_event

    def _process_events(self) -> None:
        while (event := self.quic.next_event()) is not None:
            self._on_event(self.quic, event)

    def close(self) -> None:
        self.quic.close()


class RawSource:
    """Sends as many bytes as a sink asks for."""

    def __init__(self, port: int, certificate: dict[str, str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._block = bytes(STREAM_BYTES)
        self._server = _Server(port, certificate, self._receive)

    def _receive(self, quic: QuicConnection, event: Any) -> None:
        if isinstance(event, StreamDataReceived) and event.data:
            size = int.from_bytes(event.data)
            self._refill(quic, [size], set())

    def _refill(self, quic: QuicConnection, left: list[int], active: set[int]) -> None:
        active -= {stream_id for stream_id in active if not quic.tx_data_ring_used(stream_id)}
        while left[0] and len(active) < STREAMS:
            size = min(left[0], STREAM_BYTES)
            stream_id = quic.get_next_available_stream_id(is_unidirectional=True)
            data = self._block if size == STREAM_BYTES else self._block[:size]
            quic.send_stream_data(stream_id, data, end_stream=True)
            active.add(stream_id)
            left[0] -= size
        if left[0]:
            self._loop.call_later(_TICK, self._refill, quic, left, active)


class _Client:
    """A connection that drains its events, and lets much of it gather.

    Attributes:
        sent: Bytes that were passed on since the last look.
    """

    def __init__(self, port: int, certificate: dict[str, str], on_event: Any) -> None:
        self.sent = 0
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self.quic = QuicConnection(
            configuration=_configuration(is_client=True, certificate=certificate)
        )
        self.quic._start_transport(port=0)  # noqa: SLF001 - aiopquic's own way to connect
        self.connected = self._loop.create_future()
        self._loop.add_reader(self.quic.eventfd, self._wake)
        self.quic.connect(("127.0.0.1", port))

    def _wake(self) -> None:
        received = 0
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                self.connected.set_result(None)
            elif isinstance(event, StreamDataReceived):
                received += len(event.data)
                self._on_event(event)
        sent, self.sent = self.sent, 0
        if received > 4096:
            self._loop.remove_reader(self.quic.eventfd)
            interval = gather_interval(Look(received, sent, starved=False))
            self._loop.call_later(interval, self._resume)

    def _resume(self) -> None:
        self._loop.add_reader(self.quic.eventfd, self._wake)
        self._wake()

    def ask(self, size: int) -> None:
        stream_id = self.quic.get_next_available_stream_id()
        self.quic.send_stream_data(stream_id, size.to_bytes(8), end_stream=True)


class RawSink:
    """Asks for bytes and counts them."""

    def __init__(self, port: int, certificate: dict[str, str]) -> None:
        self._client = _Client(port, certificate, self._receive)
        self._left = 0
        self._done: asyncio.Future[float] | None = None

    async def ready(self) -> None:
        """Wait for the connection."""
        await self._client.connected

    async def take(self, size: int) -> float:
        """Receive `size` octets; return the seconds that it took."""
        self._left = size
        self._done = asyncio.get_running_loop().create_future()
        started_at = time.monotonic()
        self._client.ask(size)
        return await self._done - started_at

    def _receive(self, event: StreamDataReceived) -> None:
        self._left -= len(event.data)
        if self._left <= 0 and self._done is not None and not self._done.done():
            self._done.set_result(time.monotonic())


class Forwarder:
    """Copies what a source sends to `sinks` sinks, once all of them have asked."""

    def __init__(self, port: int, source_port: int, certificate: dict[str, str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked: dict[QuicConnection, _Outgoing] = {}
        self._streams: dict[int, dict[_Outgoing, int]] = {}
        self._quics: dict[_Outgoing, QuicConnection] = {}
        self.sinks = 1
        self._source = _Client(source_port, certificate, self._forward)
        self._server = _Server(port, certificate, self._receive)
        self._tick()

    async def ready(self) -> None:
        """Wait for the connection to the source."""
        await self._source.connected

    def _receive(self, quic: QuicConnection, event: Any) -> None:
        if isinstance(event, StreamDataReceived) and event.data:
            outgoing = self._asked[quic] = _Outgoing(quic)
            self._quics[outgoing] = quic
            if len(self._asked) == self.sinks:
                self._source.ask(int.from_bytes(event.data))

    def reset(self) -> None:
        """Forget the sinks of the last round."""
        self._asked.clear()
        self._streams.clear()
        self._quics.clear()

    def _forward(self, event: StreamDataReceived) -> None:
        streams = self._streams.get(event.stream_id)
        if streams is None:
            streams = self._streams[event.stream_id] = {
                outgoing: quic.get_next_available_stream_id(is_unidirectional=True)
                for quic, outgoing in self._asked.items()
            }
        data = bytes(event.data)
        for outgoing, stream_id in streams.items():
            outgoing.write(stream_id, data, fin=event.end_stream)
        self._source.sent += len(data) * len(streams)

    def _tick(self) -> None:
        for outgoing in self._asked.values():
            outgoing.tick()
        self._loop.call_later(_TICK, self._tick)
