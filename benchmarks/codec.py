"""``codec``: what one Object and one message cost in Python, without any transport.

The baseline of the session figures is one copy of the payload, which nobody can avoid.
"""

import time
from collections.abc import Callable

from benchmarks.method import MIN_ROUNDS, Result
from kvcs.kv import BlockPlace, Component, encode_payload
from kvcs.moqt.session.actions import RequestId, SendStream
from kvcs.moqt.session.events import ObjectReceived, SubscribeReceived
from kvcs.moqt.session.limits import SessionConfig, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire import Object, SubgroupHeader, Subscribe, decode_message
from kvcs.moqt.wire.buffer import Reader
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.subgroup import decode_object_header, encode_object_header
from kvcs.names import FullTrackName, TrackNamespace

SIZES = {"32KiB": 32 * 1024, "128KiB": 128 * 1024, "1MiB": 2**20}
PIECE_BYTES = 200 * 1024
TRACK = FullTrackName(TrackNamespace((b"kvcs-1", bytes(16), bytes(32), bytes(32), bytes(16))), b"k")


async def run(seconds: float) -> list[Result]:
    """Measure headers, a message, and Objects through a pair of sessions."""
    obj = Object(group_id=3, object_id=5, subgroup_id=0, publisher_priority=12, payload=bytes(99))
    header = encode_object_header(obj, previous_object_id=4, has_properties=False)
    parameters = Parameters(
        location_filter=LocationFilter.next_object(),
        fill=FillParameters(location_filter=LocationFilter.absolute_start(0, 0)),
    )
    message = Subscribe(request_id=2, track=TRACK, parameters=parameters)
    encoded = message.encode()
    budget = seconds / 10
    results = [
        _timed("codec/object_header/encode", budget, lambda: encode_object_header(
            obj, previous_object_id=4, has_properties=False)),
        _timed("codec/object_header/decode", budget, lambda: decode_object_header(
            Reader(header), previous_object_id=4, has_properties=False)),
        _timed("codec/subscribe/encode", budget, message.encode),
        _timed("codec/subscribe/decode", budget, lambda: decode_message(encoded)),
    ]  # fmt: skip
    for name, size in SIZES.items():
        results += _objects(name, size, budget)
    return results


def _timed(
    name: str, budget: float, call: Callable[[], object], baseline: float | None = None
) -> Result:
    return Result(name=name, value=_microseconds(call, budget), unit="µs", baseline=baseline)


def _microseconds(call: Callable[[], object], budget: float) -> float:
    """Return the microseconds of one call, the best round of several."""
    best = float("inf")
    for _ in range(MIN_ROUNDS):
        calls, started_at = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started_at) < budget / MIN_ROUNDS:
            call()
            calls += 1
        best = min(best, elapsed / calls)
    return 1e6 * best


def _objects(name: str, size: int, budget: float) -> list[Result]:
    count = max(8, 2**22 // size)
    payload = bytes(size)
    copy = _microseconds(lambda: bytes(memoryview(payload)), budget)
    place = BlockPlace(
        component=Component.K, codec=1, layer_index=0, block_index=0, token_start=0, token_count=64
    )
    send, receive = _session_microseconds(payload, count)
    return [
        Result(name=f"codec/{name}/send", value=send, unit="µs per Object", baseline=copy),
        Result(name=f"codec/{name}/receive", value=receive, unit="µs per Object", baseline=copy),
        _timed(f"codec/{name}/payload", budget, lambda: encode_payload(place, payload), copy),
    ]


def _session_microseconds(payload: bytes, count: int) -> tuple[float, float]:
    best_send = best_receive = float("inf")
    for _ in range(MIN_ROUNDS):
        send, receive = _once(payload, count)
        best_send, best_receive = min(best_send, send), min(best_receive, receive)
    return best_send, best_receive


def _once(payload: bytes, count: int) -> tuple[float, float]:
    client, server = (Session(side, SessionConfig()) for side in (Side.CLIENT, Side.SERVER))
    client.start(now=0)
    server.start(now=0)
    request_id = client.subscribe(TRACK, now=0)
    _carry(client, server)
    _carry(server, client)
    received = [event for event in server.take_events() if isinstance(event, SubscribeReceived)]
    server.accept_subscribe(RequestId(received[0].request_id), now=0)
    _carry(server, client)
    assert request_id == received[0].request_id
    header = SubgroupHeader(track_alias=0, group_id=0, subgroup_id=0, publisher_priority=0)
    stream_id = server.open_subgroup(request_id, header, priority=4, now=0)
    objects = [
        Object(group_id=0, object_id=n, subgroup_id=0, publisher_priority=0, payload=payload)
        for n in range(count)
    ]
    started_at = time.perf_counter()
    for obj in objects:
        server.send_object(stream_id, obj, now=0)
    actions = server.take_actions()
    send = (time.perf_counter() - started_at) / count
    data = b"".join(action.data for action in actions if isinstance(action, SendStream))
    pieces = [
        memoryview(data)[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)
    ]
    started_at = time.perf_counter()
    seen = 0
    for piece in pieces:
        client.receive_stream(stream_id, piece, False, now=0)
        seen += sum(isinstance(event, ObjectReceived) for event in client.take_events())
    receive = (time.perf_counter() - started_at) / count
    assert seen == count
    return 1e6 * send, 1e6 * receive


def _carry(source: Session, target: Session) -> None:
    for action in source.take_actions():
        if isinstance(action, SendStream):
            target.receive_stream(action.stream_id, action.data, action.fin, now=0)
