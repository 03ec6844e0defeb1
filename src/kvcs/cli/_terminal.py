"""A terminal that is drawn on and may not be read: whoever draws waits for a second and goes on.

A terminal that nobody reads, or that is paused, takes some thousand octets and then nothing, and a
write to it does not return. A picture that is drawn again in a moment can be left out instead.
"""

import io
import os
import select
import time
from typing import Final

__all__ = ("Terminal",)

_PATIENCE: Final = 1.0


class Terminal(io.TextIOBase):
    """Text for the terminal behind a file descriptor; what it does not take in time is lost.

    Args:
        descriptor: A terminal; it stays as it is, since others may write to it too.
        patience: Seconds that a write waits. As long as nothing is taken after one that waited in
            vain, no other one waits.

    Raises:
        OSError: It is no terminal, or cannot be opened anew.
    """

    encoding = "utf-8"

    def __init__(self, descriptor: int, patience: float = _PATIENCE) -> None:
        super().__init__()
        # Opened anew: that writes do not wait holds for all who share an open file.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        self._descriptor = os.open(os.ttyname(descriptor), flags)
        self._patience = patience
        self._is_stuck = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Write text, or as much of it as the terminal takes."""
        left = memoryview(text.encode(self.encoding, "replace"))
        deadline = time.monotonic() + (0 if self._is_stuck else self._patience)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
                self._is_stuck = False
            except BlockingIOError:
                self._is_stuck = not self._has_room(deadline - time.monotonic())
                if self._is_stuck:
                    break
        return len(text)

    def close(self) -> None:
        """Close it; the terminal itself stays open for others."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def _has_room(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(max(0.0, seconds) * 1000))
