"""Control messages out of the pieces in which a stream delivers them."""

from collections.abc import Iterator

from kvcs.moqt.wire.buffer import violation
from kvcs.moqt.wire.message import Message, decode_message
from kvcs.varint import NeedMore

__all__ = ("MessageStream",)


class MessageStream:
    """Receiving side of a control or request stream.

    Holds at most one unfinished message, so at most 64 KiB and a few octets.
    """

    __slots__ = ("_unfinished",)

    def __init__(self) -> None:
        self._unfinished = b""

    def __repr__(self) -> str:
        return f"MessageStream({len(self._unfinished)} octets held)"

    @property
    def is_unfinished(self) -> bool:
        """Whether the stream stands inside a message."""
        return bool(self._unfinished)

    def receive(self, data: bytes | memoryview, *, fin: bool) -> Iterator[Message]:
        """Give the messages that `data` completes.

        Raises:
            RemoteProtocolError: A message is malformed, or the stream ends inside one.
        """
        pieces = self._unfinished + data if self._unfinished else data
        self._unfinished = b""
        offset = 0
        while offset < len(pieces):
            try:
                message, offset = decode_message(pieces, offset)
            except NeedMore:
                self._unfinished = bytes(pieces[offset:])
                break
            yield message
        if fin and self._unfinished:
            raise violation(f"FIN inside a message, after {len(self._unfinished)} octets of it")
