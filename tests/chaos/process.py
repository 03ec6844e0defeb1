"""Processes of the chaos, and what the system says of them."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 2**20


@dataclass(frozen=True)
class Usage:
    """What a process holds."""

    rss_mib: float
    files: int
    threads: int


@dataclass
class Actor:
    """A process that can be killed, stopped and started again under the same name.

    Attributes:
        log: File of its standard error, of all its lives.
        on_fact: Called with what it tells.
        facts: The last fact of each kind.
        told: The last counters of its present life.
        lives: How often it was started.
        is_killed: It ends because we want it to.
    """

    name: str
    role: str
    settings: dict
    log: Path
    on_fact: callable
    facts: dict = field(default_factory=dict)
    told: dict = field(default_factory=dict)
    lives: int = 0
    is_killed: bool = False
    is_stopped: bool = False
    process: asyncio.subprocess.Process | None = None
    reading: asyncio.Task | None = None

    async def start(self, **changes):
        self.is_killed = self.is_stopped = False
        self.facts.clear()
        self.told = {}
        self.lives += 1
        settings = {**self.settings, **changes}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-X", "faulthandler",
                "-m", "tests.chaos.actor", self.role, json.dumps(settings),
                stdout=asyncio.subprocess.PIPE, stderr=log, limit=2**20,
            )  # fmt: skip
        self.reading = asyncio.create_task(self._read(), name=f"read {self.name}")

    async def _read(self):
        while line := await self.process.stdout.readline():
            fact = json.loads(line)
            self.facts[fact["kind"]] = fact
            self.on_fact(self, fact)
        code = await self.process.wait()
        if not self.is_killed:
            self.on_fact(self, {"kind": "exit", "code": code})

    @property
    def is_running(self):
        return self.process is not None and self.process.returncode is None

    async def until(self, kind):
        """Wait for a fact, a minute at most: a busy machine takes its time to start a process."""
        deadline = asyncio.get_running_loop().time() + 60
        while kind not in self.facts:
            if not self.is_running:
                raise RuntimeError(f"{self.name} ended: {self._last_words()}")
            if asyncio.get_running_loop().time() > deadline:
                raise RuntimeError(f"{self.name} does not say {kind}: {self._last_words()}")
            await asyncio.sleep(0.05)

    def _last_words(self):
        return self.log.read_text(errors="replace")[-2000:]

    def stop(self):
        self.is_stopped = True
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.is_stopped = False
        if self.is_running:
            self.process.send_signal(signal.SIGCONT)

    async def kill(self, number=signal.SIGKILL):
        self.is_killed = True
        if self.is_running:
            if self.is_stopped:
                self.resume()
            self.process.send_signal(number)
            try:
                async with asyncio.timeout(20):
                    await self.process.wait()
            except TimeoutError:
                self.on_fact(self, {"kind": "exit", "code": "does not end"})
                self.process.kill()
                await self.process.wait()
        await self.reading

    def usage(self):
        root = Path(f"/proc/{self.process.pid}")
        threads = next(
            line.split()[1]
            for line in (root / "status").read_text().splitlines()
            if line.startswith("Threads")
        )
        return Usage(
            rss_mib=int((root / "statm").read_text().split()[1]) * PAGE / MIB,
            files=len(list((root / "fd").iterdir())),
            threads=int(threads),
        )
