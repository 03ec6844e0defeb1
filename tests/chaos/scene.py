"""The chaos: two relays in a row, publishers, consumers and intruders, and what befalls them.

The parent relay lives through everything: what it holds at the end is what it held at the start.
The child, the publishers, the consumers and the intruders are killed and started again, and all
are stopped (SIGSTOP) now and then, as the seed has it. Then peace comes back, and new
consumers at both relays must get what a new publisher brings to the parent.
"""

import asyncio
import random
import socket
import statistics
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.process import MIB, Actor

from kvcs.endpoint.certificate import create_dev_certificate

CACHE_MIB = 64
#: What the parent may have beyond its start and its cache when all is quiet again.
RSS_OVER_MIB = 64
#: What it may have on top while there is trouble: the budget of those who read, and what may be
#: under way from those who write, whose data piles up in the library while the relay stands still.
RSS_TROUBLE_MIB = 32 + 64
#: How much more it may have late in the chaos than early.
RSS_GROWTH_MIB = 24
#: Files and threads that a library may open once and keep.
KEPT = 3
#: Sessions of peers that are gone end with the idle timeout.
QUIET = 20.0
#: Memory that is free is given back every half minute.
SETTLED = 31.0
#: A prompt that nobody but the last publisher publishes.
LAST_PROMPT = 99


@dataclass
class Report:
    """What came of it.

    Attributes:
        faults: What must not be; empty if all is well.
        counts: What was seen, by who and what.
    """

    seed: int
    faults: list[str] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    usage: list = field(default_factory=list)

    def receive(self, actor, fact):
        """Take what an actor tells."""
        match fact["kind"]:
            case "wrong" | "late" | "exit":
                self.faults.append(f"{actor.name}: {fact}")
            case "relay":
                if fact["malformed_tracks"]:
                    self.counts["malformed tracks seen"] += 1
            case "retrieved" | "published" | "attacked":
                key = fact.get("outcome") or fact["name"]
                self.counts[f"{actor.role} {key}"] += 1
                for reason in fact.get("reasons", ()):
                    self.counts[f"{actor.role} {key} {reason}"] += 1
                if fact.get("reason"):
                    self.counts[f"{actor.role} {fact['reason']}"[:100]] += 1
            case _:
                pass

    def text(self):
        lines = [f"seed {self.seed}"]
        lines += [f"  {name:<40} {count}" for name, count in sorted(self.counts.items())]
        if self.usage:
            rss = [one.rss_mib for one in self.usage]
            lines.append(
                f"  parent relay: {rss[0]:.0f} MiB at first, {max(rss):.0f} at most,"
                f" {rss[-1]:.0f} at last; files {self.usage[0].files} to {self.usage[-1].files},"
                f" threads {self.usage[0].threads} to {self.usage[-1].threads}"
            )
        return "\n".join([*lines, *(f"FAULT {fault}" for fault in self.faults)])


class Scene:
    """All processes of one run."""

    def __init__(self, seed, directory, report):
        self.chance = random.Random(seed)
        self.report = report
        self.directory = Path(directory)
        files = create_dev_certificate(self.directory)
        self.common = {
            "ca": str(files.ca_file),
            "certificate": str(files.certificate_file),
            "key": str(files.private_key_file),
        }
        self.parent = self.relay("parent", [])
        self.child = self.relay("child", [self.parent.settings["url"]])
        near, far = self.parent, self.child
        self.peers = [
            *(self.peer("publisher", relay) for relay in (near, near, far)),
            *(self.peer("consumer", relay) for relay in (near, near, far, far)),
            *(self.peer("intruder", relay) for relay in (near, near, far, far)),
        ]

    def relay(self, name, upstream):
        port = free_port()
        settings = {
            **self.common,
            "port": port,
            "url": f"moqt://127.0.0.1:{port}/",
            "cache_bytes": CACHE_MIB * MIB,
            "upstream": upstream,
        }
        return Actor(name, "relay", settings, self.directory / f"{name}.log", self.report.receive)

    def peer(self, role, relay, **settings):
        name = f"{role}-{self.chance.randrange(10**6)}"
        settings = {
            "ca": self.common["ca"],
            "url": relay.settings["url"],
            "port": relay.settings["port"],
            "seed": self.chance.randrange(2**32),
            **settings,
        }
        return Actor(name, role, settings, self.directory / f"{name}.log", self.report.receive)

    @property
    def actors(self):
        return [self.parent, self.child, *self.peers]

    async def open(self):
        for relay in (self.parent, self.child):
            await relay.start()
            await relay.until("open")

    async def close(self):
        for actor in self.actors:
            if actor.process is not None:
                await actor.kill()

    # Chaos.

    async def trouble(self, seconds):
        """Kill and stop until the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        victims = [*self.peers, self.child]
        async with asyncio.TaskGroup() as group:
            while loop.time() < end:
                await asyncio.sleep(self.chance.expovariate(1 / 0.7))
                victim = self.chance.choice(victims)
                if self.chance.random() < 0.5:
                    self.report.counts[f"killed {victim.role}"] += 1
                    await victim.kill()
                    await asyncio.sleep(self.chance.uniform(0, 1))
                    await victim.start(seed=self.chance.randrange(2**32))
                else:
                    victim = self.chance.choice([*victims, self.parent])
                    longest = 2.0 if victim is self.parent else 8.0
                    pause = self.chance.uniform(0.05, longest)
                    group.create_task(self.pause(victim, pause))

    async def pause(self, victim, seconds):
        if victim.is_running and not victim.is_stopped:
            self.report.counts[f"stopped {victim.role}"] += 1
            life = victim.lives
            victim.stop()
            await asyncio.sleep(seconds)
            if victim.lives == life:
                victim.resume()

    async def watch(self):
        """Note what the parent holds."""
        while True:
            if not self.parent.is_stopped and self.parent.is_running:
                self.report.usage.append(self.parent.usage())
            await asyncio.sleep(0.5)

    # Peace.

    async def recover(self):
        """A new publisher at the parent reaches new consumers at both relays."""
        publisher = self.peer("publisher", self.parent, prompt=LAST_PROMPT)
        self.peers.append(publisher)
        await publisher.start()
        for relay in (self.parent, self.child):
            consumer = self.peer("consumer", relay, prompt=LAST_PROMPT)
            self.peers.append(consumer)
            outcomes = []
            consumer.on_fact = lambda actor, fact, outcomes=outcomes: (
                outcomes.append(fact), self.report.receive(actor, fact)
            )  # fmt: skip
            await consumer.start()
            for _ in range(300):
                await asyncio.sleep(0.1)
                if any(fact.get("outcome") == "complete" for fact in outcomes):
                    break
            else:
                self.report.faults.append(f"no recovery at the {relay.name}: {outcomes[-3:]}")

    async def leave(self):
        """All peers go away; the parent must hold nothing of them."""
        for peer in self.peers:
            await peer.kill()
        await self.child.kill()
        deadline = asyncio.get_running_loop().time() + QUIET
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.5)
            told = self.parent.facts["relay"]
            if not (told["sessions"] or told["subscriptions"] or told["fetches"]):
                break
        else:
            self.report.faults.append(f"parent holds what is gone: {self.parent.facts['relay']}")
        await asyncio.sleep(SETTLED)


def check_usage(report, first, last):
    """See that the parent kept to its budgets, and that nothing grew."""
    usage, faults = report.usage, report.faults
    peak = max(one.rss_mib for one in usage)
    allowed = first.rss_mib + CACHE_MIB + RSS_OVER_MIB
    if peak > allowed + RSS_TROUBLE_MIB or last.rss_mib > allowed:
        text = f"{peak:.0f} MiB resident at most, {last.rss_mib:.0f} at the end"
        faults.append(f"parent: {text}, {first.rss_mib:.0f} at the start")
    for what in ("files", "threads"):
        before, after = getattr(first, what), getattr(last, what)
        if after > before + KEPT:
            faults.append(f"parent: {after} {what} at the end, {before} at the start")
    quarter = len(usage) // 4
    if quarter >= 60:
        early = statistics.median(one.rss_mib for one in usage[quarter : 2 * quarter])
        late = statistics.median(one.rss_mib for one in usage[-quarter:])
        if late > early + RSS_GROWTH_MIB:
            faults.append(f"parent: grew from {early:.0f} to {late:.0f} MiB")


def check_logs(report, directory):
    """See that no process has met a bug of its own."""
    for log in sorted(Path(directory).glob("*.log")):
        text = log.read_text(errors="replace")
        if "Traceback" in text:
            start = text.index("Traceback")
            report.faults.append(f"{log.name}: {text[start : start + 3000]}")


async def run(seconds, seed):
    """Let it go on for so long; return the report."""
    report = Report(seed)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvcs-chaos-"))
        scene = Scene(seed, directory, report)
        stack.push_async_callback(scene.close)
        await scene.open()
        await asyncio.sleep(0.5)
        first = scene.parent.usage()
        for peer in scene.peers:
            await peer.start()
        watching = asyncio.create_task(scene.watch())
        await scene.trouble(seconds)
        for actor in scene.actors:
            actor.resume()
        for peer in [peer for peer in scene.peers if peer.role == "intruder"]:
            await peer.kill()
        await scene.recover()
        await scene.leave()
        watching.cancel()
        check_usage(report, first, scene.parent.usage())
        if not scene.parent.is_running:
            report.faults.append("the parent relay is gone")
        check_logs(report, directory)
    if not report.counts["consumer complete"]:
        report.faults.append("nobody got anything")
    return report


def free_port():
    """Return a UDP port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
