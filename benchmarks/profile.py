"""``profile``: where the CPU time of a publisher, a relay and a consumer goes, by layer.

A publication goes through a relay again and again to one consumer that verifies it. Meanwhile
py-spy, which must be on the path (``pip install py-spy``), notes what each process is doing,
and the system counts the CPU time of its threads. The samples of the event loop's thread share
out the CPU time of that thread, so that each figure is a part of the whole process. Samples of
the loop itself are left out: py-spy cannot tell there whether it works or waits.
"""

import asyncio
import os
import shutil
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

from benchmarks.method import Node, Result
from benchmarks.setup import certificate, free_port

LAYERS: Final = 16
SIZES: Final = {"32KiB": 32 * 1024, "128KiB": 128 * 1024, "1MiB": 2**20}
PUBLICATION_BYTES: Final = 2**26
#: Parts of paths: the first that fits the innermost frame of ours names the layer.
_PLACES: Final = (
    ("verify_payload", "hashing and header checks"),
    ("encode_payload", "hashing and header checks"),
    ("kvcs/kv/", "kv"),
    ("kvcs/client/", "client"),
    ("kvcs/relay/", "relay"),
    ("kvcs/endpoint/", "endpoint"),
    ("kvcs/moqt/track/", "moqt.track"),
    ("kvcs/moqt/", "moqt.session and moqt.wire"),
    ("kvcs/transport/", "transport"),
    ("aiopquic/", "transport"),
)


async def run(seconds: float) -> list[Result]:
    """Profile the path with Objects of each size.

    Raises:
        RuntimeError: There is no py-spy.
    """
    sampler = shutil.which("py-spy")
    if sampler is None:
        raise RuntimeError("py-spy is not on the path: pip install py-spy")
    results: list[Result] = []
    for name, object_bytes in SIZES.items():
        results += await _size(sampler, name, object_bytes, seconds)
    return results


async def _size(sampler: str, name: str, object_bytes: int, seconds: float) -> list[Result]:
    files, port = certificate(), free_port()
    blocks = max(1, PUBLICATION_BYTES // (2 * LAYERS * object_bytes))
    geometry = {"layers": LAYERS, "object_bytes": object_bytes}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        relay = await enter(Node("relay", certificate=files, port=port))
        await relay.ask("cpu")
        publisher = await enter(Node("publisher", certificate=files, relay_port=port, **geometry))
        consumer = await enter(Node("consumer", certificate=files, port=port))
        await _carry(publisher, consumer, blocks)
        profiles = {
            role: await stack.enter_async_context(_Profile(sampler, node.pid))
            for role, node in (("publisher", publisher), ("relay", relay), ("consumer", consumer))
        }
        carried, started_at = 0, time.monotonic()
        while not carried or time.monotonic() - started_at < seconds:
            carried += await _carry(publisher, consumer, blocks)
        parts = {role: await profile.seconds() for role, profile in profiles.items()}
    return [
        result
        for role, shares in parts.items()
        for result in _results(f"profile/{name}/{role}", shares, carried)
    ]


async def _carry(publisher: Node, consumer: Node, blocks: int) -> int:
    namespace = (await publisher.ask("publish", blocks=blocks))["namespace"]
    return (await consumer.ask("verified", namespace=namespace))["bytes"]


def _results(name: str, seconds: dict[str, float], carried: int) -> list[Result]:
    total = sum(seconds.values())
    parts = sorted(seconds.items(), key=lambda part: part[1], reverse=True)
    return [
        Result(name=f"{name}/all", value=total / (carried / 1e9), unit="CPU s/GB"),
        *(
            Result(name=f"{name}/{part}", value=100 * value / total, unit="% of that")
            for part, value in parts
            if value > 0
        ),
    ]


class _Profile:
    """CPU seconds of a process by layer, from the beginning of the context."""

    def __init__(self, sampler: str, pid: int) -> None:
        self._sampler = sampler
        self._pid = pid
        self._file = tempfile.NamedTemporaryFile(suffix=".raw")  # noqa: SIM115 - closed at exit
        self._before: dict[int, float] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        quiet = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(
            self._sampler, "record", "--pid", str(self._pid), "--rate", "200", "--duration", "600",
            "--format", "raw", "--threads", "--output", self._file.name, stdout=quiet, stderr=quiet,
        )  # fmt: skip
        self._before = _thread_seconds(self._pid)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        self._file.close()

    async def seconds(self) -> dict[str, float]:
        """Return the seconds of each layer of the event loop's thread, and of other threads."""
        after = _thread_seconds(self._pid)
        await self._stop()
        spent = {thread: now - self._before.get(thread, 0) for thread, now in after.items()}
        loop = spent.pop(self._pid)
        samples, threads = self._samples()
        workers = sum(spent.pop(thread, 0) for thread in threads)
        parts = {"QUIC thread": sum(spent.values()), "worker threads": workers}
        for place, count in samples.items():
            parts[place] = loop * count / sum(samples.values())
        return parts

    async def _stop(self) -> None:
        process = self._process
        assert process is not None
        if process.returncode is None:
            process.send_signal(2)
            await asyncio.wait_for(process.wait(), 20)

    def _samples(self) -> tuple[Counter[str], set[int]]:
        """Count samples of the event loop's thread by place; name other threads with Python."""
        samples, others = Counter[str](), set[int]()
        for line in Path(self._file.name).read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            thread, *frames = stack.split(";")
            thread_id = int(thread.partition("(")[2].partition(")")[0], 0)
            if thread_id != self._pid:
                others.add(thread_id)
            elif "asyncio/runners" not in frames[-1]:
                samples[_place(frames)] += int(count)
        return samples, others


def _place(frames: list[str]) -> str:
    """Name the layer of the innermost frame of ours."""
    for frame in reversed(frames):
        for part, place in _PLACES:
            if part in frame:
                return place
    return "asyncio"


def _thread_seconds(pid: int) -> dict[int, float]:
    """Return the CPU seconds of every thread of a process."""
    ticks = os.sysconf("SC_CLK_TCK")
    seconds: dict[int, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        seconds[int(task.name)] = (int(fields[11]) + int(fields[12])) / ticks
    return seconds
