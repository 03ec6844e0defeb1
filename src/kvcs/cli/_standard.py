"""The standard files: there, whoever started the command, and what becomes of output that fails."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final, TextIO, cast

from kvcs.cli._errors import OutputFailed
from kvcs.cli._lossy import LossyStream
from kvcs.cli._runtime import writing

__all__ = ("drop_output", "error_stream", "open_standard_files", "to_output")

_FILES: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_standard_files() -> None:
    """Open nothing where a standard file is closed.

    Another file would get its number, be written to by whoever writes there, and be closed by
    nobody: the event loop ends the process at that.
    """
    for descriptor, (name, mode) in enumerate(_FILES):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def error_stream(patience: float, *, after_a_cut: str = "") -> TextIO:
    """Return standard error, which nobody has to read: text is lost that is not taken in time.

    Args:
        patience: Seconds that a write waits.
        after_a_cut: Written before what comes next where a text was lost in its middle.
    """
    with suppress(OSError, ValueError, AttributeError):
        stream = LossyStream(
            sys.stderr.fileno(), patience, encoding=sys.stderr.encoding, after_a_cut=after_a_cut
        )
        return cast("TextIO", stream)
    # A file takes all.
    return sys.stderr


@contextmanager
def to_output() -> Generator[None]:
    """Write to standard output meanwhile; a signal ends a write that stands still.

    Raises:
        OutputFailed: It cannot be written.
        BrokenPipeError: Nobody reads it any more.
        KeyboardInterrupt: SIGINT or SIGTERM arrived.
    """
    try:
        with writing():
            yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"standard output: {error.strerror or error}") from error


def drop_output() -> None:
    """Write no more to standard output: the interpreter would try to at its end."""
    # It may be no file at all.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
