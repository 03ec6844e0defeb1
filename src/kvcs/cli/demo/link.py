"""A node's end of the line to the demo that started it."""

import asyncio
import os
import sys
from types import TracebackType
from typing import Self

from kvcs.cli.demo.messages import (
    MAX_LINE_BYTES,
    Command,
    Event,
    Go,
    decode_command,
    encode_line,
)

__all__ = ("Link",)


class Link:
    """Commands in, events out. When the demo closes the line, the node's task is cancelled.

    That is how no node outlives the demo, however that ends.

    Attributes:
        is_closed: The demo has closed the line, or is gone.
    """

    def __init__(self) -> None:
        self.is_closed = False
        # Events have the pipe to themselves: what a library prints goes to standard error.
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        self._group = asyncio.TaskGroup()
        self._listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        owner = asyncio.current_task()
        assert owner is not None
        self._listening = self._group.create_task(self._listen(owner), name="demo commands")
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._listening is not None
        self._listening.cancel()
        await self._group.__aexit__(error_type, error, traceback)

    def send(self, event: Event) -> None:
        """Tell the demo; it always reads."""
        self._out.write(encode_line(event))
        self._out.flush()

    async def receive(self) -> Command:
        """Wait for the next command."""
        return await self._commands.get()

    async def go(self) -> None:
        """Wait for `Go`."""
        command = await self.receive()
        assert isinstance(command, Go), "the demo sends one job, and then only Go"

    async def _listen(self, owner: asyncio.Task[object]) -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        while line := await reader.readline():
            self._commands.put_nowait(decode_command(line))
        self.is_closed = True
        owner.cancel()
