"""A network that damages the bytes of one connection, in one direction or both."""

from dataclasses import dataclass

from kvcs.transport.interface import StopSending, StreamData, StreamReset


@dataclass
class Damage:
    """Random damage to the bytes of one connection.

    Attributes:
        chance: Seeded chance.
        rate: Chance that a piece of a stream is damaged.
        outgoing: Damage what the client sends.
        incoming: Damage what it receives.
    """

    chance: object
    rate: float = 0.05
    outgoing: bool = False
    incoming: bool = False

    def strike(self, data, fin):
        """Return the data and FIN to pass on, and a code to reset the stream with."""
        chance = self.chance
        if chance.random() >= self.rate:
            return data, fin, None
        data = bytearray(data)
        place = chance.randrange(len(data) + 1)
        match chance.randrange(9):
            case 0 | 1 | 2 if data:
                data[place % len(data)] ^= 1 << chance.randrange(8)
            case 3 if data:
                data[place % len(data)] = chance.choice([0x00, 0x7F, 0x80, 0xFE, 0xFF])
            case 4:
                data[place:place] = chance.randbytes(chance.randrange(1, 20))
            case 5:
                del data[place:]
            case 6:
                del data[place : place + chance.randrange(1, 20)]
            case 7:
                return bytes(data[:place]), True, None
            case 8:
                return bytes(data[:place]), False, chance.choice([0, 1, 2, 5, 2**62 - 1])
            case _:
                data += b"\xff" * 9
        return bytes(data), fin, None


class TamperedTransport:
    """A transport whose bytes are damaged on their way."""

    def __init__(self, transport, damage):
        self._transport = transport
        self._damage = damage
        self._ended = set()

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def write(self, stream_id, data, *, fin=False):
        if stream_id in self._ended:
            return
        code = None
        if self._damage.outgoing:
            data, fin, code = self._damage.strike(data, fin)
        if fin or code is not None:
            self._ended.add(stream_id)
        self._transport.write(stream_id, data, fin=fin)
        if code is not None:
            self._transport.reset(stream_id, code)

    def set_listener(self, on_events, on_writable):
        def receive(batch):
            on_events([other for event in batch for other in self._tamper(event)])

        self._transport.set_listener(receive, on_writable)

    def _tamper(self, event):
        if not self._damage.incoming or not isinstance(event, StreamData):
            return [event]
        stream_id = event.stream_id
        if stream_id in self._ended:
            return []
        data, fin, code = self._damage.strike(event.data, event.fin)
        if fin or code is not None:
            self._ended.add(stream_id)
        events = [StreamData(stream_id, data, fin)]
        if code is not None:
            kind = StreamReset if self._damage.chance.random() < 0.5 else StopSending
            events.append(kind(stream_id, code))
        return events


class TamperedNetwork:
    """The client's side of a network, on which damage happens."""

    def __init__(self, network, damage):
        self._network = network
        self._damage = damage

    async def connect(self, *args, **options):
        transport = await self._network.connect(*args, **options)
        return TamperedTransport(transport, self._damage)
