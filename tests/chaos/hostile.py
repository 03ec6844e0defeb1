"""What hostile, broken and greedy peers do to a relay; each attack ends by itself.

An attack gets the settings of its process, a client's configuration, and its own chance. What it
causes on its own connection is no concern of anybody; that it causes nothing elsewhere is what
the chaos is for.
"""

import asyncio
import contextlib
import socket
import time

from tests.attacks.garbage import SETUP, speak_garbage
from tests.chaos.material import DESCRIPTOR, PROMPTS, SCOPE_KEY, tokens

from kvcs.client import Consumer
from kvcs.endpoint.connect import connect
from kvcs.errors import KvcsError
from kvcs.kv import MANIFEST
from kvcs.moqt.codepoints import ALPN
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import FillParameters, Parameters
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.transport.picoquic import PicoquicFactory

EVERYTHING = Parameters(
    location_filter=LocationFilter.next_object(),
    fill=FillParameters(location_filter=LocationFilter.absolute_start(0, 0)),
)


@contextlib.asynccontextmanager
async def raw(settings, config):
    """A QUIC connection without MOQT."""
    transport = await PicoquicFactory().connect(
        "127.0.0.1", settings["port"], alpn=ALPN, tls=config.tls, config=config.transport
    )
    transport.set_listener(lambda _: None, lambda: None)
    try:
        yield transport
    finally:
        transport.close(0, "")
        await transport.wait_closed()


async def garbage(settings, config, chance):
    """Bytes that are no MOQT, on streams and datagrams, with resets in between."""
    async with raw(settings, config) as transport:
        await speak_garbage(transport, chance, most=30)


async def packets(settings, _config, chance):
    """UDP packets that are no QUIC, or the beginning of it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thrower:
        for _ in range(300):
            head = chance.choice([b"", b"\xc0\x00\x00\x00\x01", b"\x40", b"\xc0\xfa\xce\xb0\x0c"])
            packet = head + chance.randbytes(chance.randrange(1, 1300))
            with contextlib.suppress(OSError):
                thrower.sendto(packet, ("127.0.0.1", settings["port"]))


async def half_open(settings, config, chance):
    """A connection that never sends its SETUP, or half of it."""
    async with raw(settings, config) as transport:
        if chance.random() < 0.5:
            transport.write(2, SETUP[: chance.randrange(1, 4)])
        await asyncio.sleep(chance.uniform(1, 12))


async def tiny_writes(settings, config, chance):
    """A session octet by octet, up to a request that is never finished."""
    request = b"\x03\x00\x10" + chance.randbytes(chance.randrange(16))
    async with raw(settings, config) as transport:
        for octet in SETUP:
            transport.write(2, bytes([octet]))
            await asyncio.sleep(0.01)
        for octet in request:
            transport.write(0, bytes([octet]))
            await asyncio.sleep(0.01)
        await asyncio.sleep(chance.uniform(0, 3))


async def liar(settings, config, chance):
    """Streams whose lengths are lies, and streams on which nothing follows the header."""
    async with raw(settings, config) as transport:
        transport.write(2, SETUP)
        for number in range(chance.randrange(1, 100)):
            header = SubgroupHeader(
                track_alias=chance.randrange(4), group_id=number, subgroup_id=0,
                publisher_priority=0,
            ).encode()  # fmt: skip
            size = b"\xff" + chance.choice([2**20, 2**40, 2**62]).to_bytes(8)
            rest = chance.choice([b"", b"\x00", b"\x00" + size, b"\x00" + size + bytes(5000)])
            transport.write(6 + 4 * number, header + rest)
        await asyncio.sleep(chance.uniform(0, 3))


async def never_read(settings, config, chance):
    """Ask for everything, several times, and then take nothing."""
    async with connect(settings["url"], config) as connection:
        names = await namespaces(connection, chance)
        for name in names[:4]:
            for track in (MANIFEST, b"k.raw.s0", b"v.raw.s0"):
                connection.subscribe(FullTrackName(name, track), EVERYTHING, lambda _: None)
                connection.fetch(FullTrackName(name, track), Parameters(), lambda _: None)
        await asyncio.sleep(0.01)
        # The loop stands still; the library goes on to say that this peer is there.
        time.sleep(chance.uniform(0.5, 8))  # noqa: ASYNC251


async def requests(settings, config, chance):
    """Thousands of requests at once, most of them taken back."""
    async with connect(settings["url"], config) as connection:
        names = [*await namespaces(connection, chance), TrackNamespace((b"flood",))]
        for number in range(chance.choice([100, 1000, 6000])):
            if connection.closed:
                break
            name = FullTrackName(chance.choice(names), b"track %d" % (number % 50))
            ask = chance.choice([connection.subscribe, connection.fetch, connection.track_status])
            request_id = ask(name)
            if chance.random() < 0.8:
                connection.cancel(request_id)
            if number % 50 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(chance.uniform(0, 1))


async def updates(settings, config, chance):
    """More updates than anybody needs, each with a fill."""
    async with connect(settings["url"], config) as connection:
        for name in (await namespaces(connection, chance))[:2]:
            request_id = connection.subscribe(
                FullTrackName(name, b"k.raw.s0"), EVERYTHING, lambda _: None
            )
            await asyncio.sleep(0.05)
            for _ in range(chance.choice([10, 63])):
                if not connection.closed and connection.session.is_active(request_id):
                    parameters = Parameters(fill=EVERYTHING.fill)
                    with contextlib.suppress(KvcsError):
                        connection.session.update(request_id, parameters, now=connection.now)
            connection.wake()
        await asyncio.sleep(chance.uniform(0, 1))


async def announcements(settings, config, chance):
    """Namespaces and prefixes that nobody needs."""
    async with connect(settings["url"], config) as connection:
        for number in range(chance.choice([50, 500])):
            if connection.closed:
                break
            namespace = TrackNamespace((b"flood", b"%d" % number))
            chance.choice(
                [
                    connection.publish_namespace,
                    connection.subscribe_namespace,
                    connection.subscribe_tracks,
                ]
            )(namespace)
        await asyncio.sleep(chance.uniform(0, 2))


async def namespaces(connection, chance):
    """Return what is published."""
    consumer = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR)
    found = await consumer.discover(tokens(chance.randrange(PROMPTS)), timeout=2.0)
    return [candidate.name.namespace() for candidate in found]


ATTACKS = {
    attack.__name__: attack
    for attack in (
        garbage, packets, half_open, tiny_writes, liar, never_read, requests, updates,
        announcements,
    )
}  # fmt: skip
