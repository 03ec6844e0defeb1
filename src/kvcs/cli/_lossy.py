"""Text that may be lost, for a terminal, pipe or socket that may not be read.

What nobody reads, or a terminal that is paused, takes some thousand octets and then nothing, and a
write to it does not return. A picture that is drawn again in a moment, or a line of a log, can be
left out instead: whoever writes waits for a moment, and goes on.
"""

import errno
import io
import os
import select
import socket
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

__all__ = ("LossyStream",)

# Seconds after which it is tried again where there is said to be room.
_PAUSE: Final = 0.001
# A pipe that says that it has room takes so much.
_PIPE_BYTES: Final = select.PIPE_BUF


class LossyStream(io.TextIOBase):
    """Text for what is behind a file descriptor; what is not taken in time is lost.

    Args:
        descriptor: A terminal, pipe or socket; it stays as it is, since others may write to it too.
        patience: Seconds that a write waits. As long as nothing is taken after one that waited in
            vain, no other one waits.
        encoding: How text is encoded.
        after_a_cut: Written before the next text where one was lost in its middle.

    Raises:
        OSError: It is something else, or cannot be opened anew.
    """

    def __init__(
        self,
        descriptor: int,
        patience: float,
        *,
        encoding: str = "utf-8",
        after_a_cut: str = "",
    ) -> None:
        super().__init__()
        self._encoding = encoding
        self._owned = ExitStack()
        self._descriptor = descriptor
        self._put = self._opened(os.fstat(descriptor).st_mode)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)
        self._patience = patience
        self._after_a_cut = after_a_cut
        self._is_stuck = self._is_cut = False

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How text is encoded; what cannot be is replaced."""
        return self._encoding

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Tell whether it is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Write text, or as much of it as is taken."""
        if self._is_cut:
            text = self._after_a_cut + text
        left = whole = memoryview(text.encode(self._encoding, "replace"))
        deadline = time.monotonic() + (0 if self._is_stuck else self._patience)
        while left:
            try:
                left = left[self._put(left) :]
                self._is_stuck = False
            except BlockingIOError:
                seconds = deadline - time.monotonic()
                if seconds <= 0 or not self._has_room(seconds):
                    self._is_stuck = True
                    break
                time.sleep(_PAUSE)
            except OSError:
                # Who read it has gone; that ends nothing else.
                break
        self._is_cut = bool(left) and (self._is_cut or len(left) < len(whole))
        return len(text)

    def close(self) -> None:
        """Close it; what is behind it stays open for others."""
        if not self.closed:
            self._owned.close()
        super().close()

    def _opened(self, mode: int) -> Callable[[memoryview], int]:
        """Return what writes some octets, or raises BlockingIOError."""
        if os.isatty(self._descriptor):
            # Opened anew: that writes do not wait holds for all who share an open file.
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            self._descriptor = descriptor = os.open(os.ttyname(self._descriptor), flags)
            self._owned.callback(os.close, descriptor)
            return lambda octets: os.write(descriptor, octets)
        if stat.S_ISFIFO(mode):
            return self._put_into_pipe
        if stat.S_ISSOCK(mode):
            carrier = socket.socket(fileno=os.dup(self._descriptor))
            self._owned.enter_context(carrier)
            return lambda octets: carrier.send(octets, socket.MSG_DONTWAIT)
        raise OSError(errno.ENOTSUP, "no terminal, pipe or socket")

    def _put_into_pipe(self, octets: memoryview) -> int:
        # It may belong to another user, and then cannot be opened anew.
        if not self._has_room(0):
            raise BlockingIOError
        return os.write(self._descriptor, octets[:_PIPE_BYTES])

    def _has_room(self, seconds: float) -> bool:
        return bool(self._poll.poll(max(0.0, seconds) * 1000))
