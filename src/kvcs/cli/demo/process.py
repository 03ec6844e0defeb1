"""A process of the demo, seen from the demo: it is told its job and says what happens."""

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from kvcs.cli.demo.messages import (
    MAX_LINE_BYTES,
    Command,
    Event,
    Failed,
    Go,
    LayerPassed,
    decode_event,
    encode_line,
)
from kvcs.errors import KvcsError

__all__ = ("NodeFailed", "NodeProcess")

# Variables with the number of threads of the libraries that multiply matrices.
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Seconds that a process gets to end by itself once its job is done.
_STOP_TIMEOUT: Final = 5.0
_DEBUG: Final = "KVCS_DEBUG"
_KEPT_LINES: Final = 40


class NodeFailed(KvcsError):
    """A process of the demo gave up or ended.

    Attributes:
        name: Which one.
        reason: What it said, or how it ended.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"the {self.name} of the demo failed: {self.reason}"


class NodeProcess:
    """A child process; it does not outlive the ``async with`` block.

    When it fails, the block is cancelled and `NodeFailed` raised, whatever the block waits for.

    Args:
        name: What it is, for people.
        job: What it does.
        on_layer: Called for each layer that it reports.
    """

    def __init__(
        self, name: str, job: Command, *, on_layer: Callable[[LayerPassed], None] = lambda _: None
    ) -> None:
        self.name = name
        self._job = job
        self._on_layer = on_layer
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._log: deque[str] = deque(maxlen=_KEPT_LINES)
        self._failure = ""
        self._is_killed = False
        self._process: asyncio.subprocess.Process | None = None
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        # A session of its own: Ctrl-C reaches the demo alone, which ends its processes in order.
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kvcs",
            "demo-node",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
            limit=MAX_LINE_BYTES,
        )
        await self._group.__aenter__()
        self._group.create_task(self._watch(process), name=self.name)
        self._send(self._job)
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self._end()
        finally:
            self.kill()
            # The readers end with the process.
            await self._group.__aexit__(error_type, error, traceback)

    def go(self) -> None:
        """Let it take its next step."""
        self._send(Go())

    async def expect[T: Event](self, kind: type[T]) -> T:
        """Wait for its next event, which must be a `kind`.

        Raises:
            NodeFailed: It said something else.
        """
        event = await self._events.get()
        if not isinstance(event, kind):
            reason = f"it said {event!r:.200} instead of {kind.__name__}"
            raise NodeFailed(self.name, reason)
        return event

    async def ended(self) -> None:
        """Wait for its end, which the demo survives only if it is a good one."""
        assert self._process is not None
        await self._process.wait()

    def kill(self) -> None:
        """End it at once; that is no failure."""
        self._is_killed = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _end(self) -> None:
        """Close the line to it, and wait for its end in bounded time."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self._process.wait()

    def _send(self, command: Command) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(encode_line(command))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Take its events and its log; a bad end ends the demo."""
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_log(process.stderr), name=f"{self.name} log")
            await self._read_events(process.stdout)
        code = await process.wait()
        if not self._is_killed and (code or self._failure):
            reason = self._failure or f"it ended with exit code {code}"
            raise NodeFailed(self.name, reason)
        self._events.put_nowait(None)

    async def _read_events(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            match decode_event(line):
                case LayerPassed() as layer:
                    self._on_layer(layer)
                case Failed(reason=reason):
                    self._failure = reason
                case event:
                    self._events.put_nowait(event)

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self._log.append(line.decode(errors="replace").rstrip())

    @property
    def log(self) -> Sequence[str]:
        """The last lines of its standard error."""
        return tuple(self._log)


def _environment() -> dict[str, str]:
    """Return the environment of a process: two models compute at the same time.

    Threads that wait for each other by spinning, more of them than cores, take minutes for
    what is done in seconds.
    """
    threads = str(max(1, (os.cpu_count() or 2) // 2))
    # What is set for the commands of a user is not meant for the parties of the demo, keys least.
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KVCS_") or name == _DEBUG
    }
    return {**dict.fromkeys(_THREADS, threads), **own}
