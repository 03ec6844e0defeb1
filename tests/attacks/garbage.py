"""Bytes that are no MOQT, on streams and datagrams of a connection, with resets in between."""

import asyncio

__all__ = ("SETUP", "speak_garbage")

SETUP = b"\xaf\x00\x00\x00"  # a control stream whose SETUP has no options


async def speak_garbage(transport, chance, *, most):
    """Say at most so many random things to a peer, after a SETUP or without one."""
    if chance.random() < 0.7:
        transport.write(2, SETUP)
    for _ in range(chance.randrange(most)):
        stream_id = chance.choice([0, 4, 6, 8, 10, 12])
        match chance.randrange(5):
            case 0:
                transport.reset(stream_id, chance.randrange(2**30))
            case 1:
                transport.stop_sending(stream_id, chance.randrange(2**30))
            case 2:
                transport.send_datagram(chance.randbytes(chance.randrange(1, 1000)))
            case _:
                data = chance.randbytes(chance.choice([1, 10, 1000, 100_000]))
                transport.write(stream_id, data, fin=chance.random() < 0.5)
        await asyncio.sleep(chance.choice([0, 0.001]))
