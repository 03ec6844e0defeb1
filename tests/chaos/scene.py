"""The chaos: two relays in a row, their peers, honest and hostile, and what befalls them.

The child relay keeps Objects on disk too, and is started again on what it had there. All but the
parent are killed and started again, and all are stopped (SIGSTOP) now and then, as the seed has
it. The parent is killed once in a while; otherwise what it holds at the end of a life is what it
held at its start. Forgers serve false publications and false Objects of true ones. Then peace
comes back, and new consumers at both relays must get what a new publisher brings to the parent.
"""

import asyncio
import json
import random
import statistics
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.process import MIB, Actor
from tests.integration.network import free_port

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
#: Seconds of chaos for each time that the parent is killed; once at least.
PARENT_LIFE = 200.0
#: Tenths of a second after which somebody must have got what is published when peace is back.
RECOVERY = 600
#: A prompt that nobody but the last publisher publishes.
LAST_PROMPT = 99


@dataclass
class Report:
    """What came of it.

    Attributes:
        faults: What must not be, by kind; empty if all is well.
        counts: What was seen, by who and what.
        reasons: How often errors and gaps had which reason.
        kills: How often actors of a role were killed.
        lies: Kinds of lies in forgeries, with how many forgeries had them.
        usage: What the parent held in its present life, twice a second.
        beyond: Its resident memory beyond what its cache said to hold, in MiB, at the same times.
    """

    seed: int
    faults: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    reasons: Counter = field(default_factory=Counter)
    kills: Counter = field(default_factory=Counter)
    lies: Counter = field(default_factory=Counter)
    usage: list = field(default_factory=list)
    beyond: list = field(default_factory=list)

    def fault(self, kind, text):
        """Note what must not be: ``wrong``, ``late``, ``crash``, ``leak`` or ``lost``."""
        self.faults.append((kind, text))

    def receive(self, actor, fact):
        """Take what an actor tells."""
        match fact["kind"]:
            case "wrong" | "late":
                self.fault(fact["kind"], f"{actor.name}: {fact}")
            case "exit":
                self.fault("crash", f"{actor.name}: {fact}")
            case "relay":
                self._receive_relay(actor, fact)
            case "retrieved":
                self._receive_retrieval(fact)
            case "published":
                self.counts[f"published {fact['outcome']}"] += 1
            case "attacked":
                self.counts[f"attacked {fact['name']}"] += 1
            case "forged":
                self.counts["forgeries"] += bool(fact["lies"])
                self.counts["lies told"] += fact["told"]
                self.lies.update(fact["lies"])
            case _:
                pass

    def _receive_relay(self, actor, fact):
        """Add what counters have grown by since this life of a relay told them before."""
        for what in ("malformed_tracks", "disk_objects_read"):
            self.counts[f"{actor.name} {what}"] += fact[what] - actor.told.get(what, 0)
        actor.told = fact

    def _receive_retrieval(self, fact):
        self.counts[f"retrieved {fact['outcome']}"] += 1
        self.counts["lies refused"] += sum(fact.get("rejected", {}).values())
        self.reasons.update(f"rejected {reason}" for reason in fact.get("rejected", ()))
        self.reasons.update(f"missing {reason}" for reason in fact.get("reasons", ()))
        if fact["outcome"] == "verdict" and fact["reasons"]:
            self.counts["verdicts with missing"] += 1
        if fact.get("error"):
            self.reasons[f"verdict {fact['error']}"] += 1
        if fact.get("reason"):
            self.reasons[f"{fact['outcome']}: {fact['reason']}"[:100]] += 1

    def _total(self, *beginnings):
        return sum(count for what, count in self.counts.items() if what.startswith(beginnings))

    def facts(self):
        """Return the counts that matter, as a JSON object."""
        counts, faults = self.counts, Counter(kind for kind, _ in self.faults)
        return {
            "seed": self.seed,
            "publications": self._total("published "),
            "retrievals": self._total("retrieved "),
            "whole": counts["retrieved complete"],
            "verdicts_with_missing": counts["verdicts with missing"],
            "kills": dict(sorted(self.kills.items())),
            "forgeries": counts["forgeries"],
            "lies_told": counts["lies told"],
            "lies_refused": counts["lies refused"],
            "malformed_tracks": self._total("parent malformed", "child malformed"),
            "disk_objects_read": counts["child disk_objects_read"],
            "wrong_bytes": faults["wrong"],
            "late": faults["late"],
            "crashes": faults["crash"],
            "leaks": faults["leak"],
            "lost": faults["lost"],
        }

    def text(self):
        lines = [f"seed {self.seed}"]
        for counts in (self.counts, self.reasons, self.lies):
            lines += [f"  {name:<40} {count}" for name, count in sorted(counts.items())]
        if self.usage:
            rss = [one.rss_mib for one in self.usage]
            lines.append(
                f"  parent relay, last life: {rss[0]:.0f} MiB at first, {max(rss):.0f} at most,"
                f" {rss[-1]:.0f} at last; files {self.usage[0].files} to {self.usage[-1].files},"
                f" threads {self.usage[0].threads} to {self.usage[-1].threads}"
            )
        lines += [f"FAULT {kind} {text}" for kind, text in self.faults]
        return "\n".join([*lines, json.dumps(self.facts())])


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
        child_disk = str(self.directory / "disk")
        self.child = self.relay("child", [self.parent.settings["url"]], disk=child_disk)
        near, far = self.parent, self.child
        self.peers = [
            *(self.peer("publisher", relay) for relay in (near, near, far)),
            *(self.peer("consumer", relay) for relay in (near, near, far, far)),
            *(self.peer("intruder", relay) for relay in (near, near, far, far)),
            *(self.peer("forger", relay) for relay in (near, near, far)),
        ]

    def relay(self, name, upstream, *, disk=None):
        port = free_port()
        settings = {
            **self.common,
            "port": port,
            "url": f"moqt://127.0.0.1:{port}/",
            "cache_bytes": CACHE_MIB * MIB,
            "upstream": upstream,
            "disk": disk,
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
        await asyncio.sleep(0.5)
        self.first = self.parent.usage()

    async def close(self):
        for actor in self.actors:
            if actor.process is not None:
                await actor.kill()

    # Chaos.

    async def trouble(self, seconds):
        """Kill and stop until the time is over."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        end = began + seconds
        victims = [*self.peers, self.child]
        lives = max(1, round(seconds / PARENT_LIFE)) + 1
        deaths = [began + seconds * number / lives for number in range(1, lives)]
        async with asyncio.TaskGroup() as group:
            while loop.time() < end:
                await asyncio.sleep(self.chance.expovariate(1 / 0.7))
                victim = self.chance.choice(victims)
                if deaths and loop.time() > deaths[0]:
                    deaths.pop(0)
                    await self.kill_parent()
                elif self.chance.random() < 0.5:
                    await self.kill(victim, self.chance.uniform(0, 1))
                else:
                    victim = self.chance.choice([*victims, self.parent])
                    longest = 2.0 if victim is self.parent else 8.0
                    pause = self.chance.uniform(0.05, longest)
                    group.create_task(self.pause(victim, pause))

    async def kill(self, victim, pause):
        """Kill an actor, and start it again after so many seconds."""
        self.report.kills[victim.name if victim.role == "relay" else victim.role] += 1
        await victim.kill()
        await asyncio.sleep(pause)
        await victim.start(seed=self.chance.randrange(2**32))

    async def kill_parent(self):
        """See that the parent has not grown, kill it, and begin anew."""
        check_growth(self.report)
        await self.kill(self.parent, self.chance.uniform(0, 3))
        await self.parent.until("open")
        self.report.usage.clear()
        self.report.beyond.clear()
        self.first = self.parent.usage()

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
            parent = self.parent
            if parent.is_running and not (parent.is_stopped or parent.is_killed):
                usage = parent.usage()
                cache_bytes = parent.facts.get("relay", {}).get("cache_bytes", 0)
                self.report.usage.append(usage)
                self.report.beyond.append(usage.rss_mib - cache_bytes / MIB)
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
            for _ in range(RECOVERY):
                await asyncio.sleep(0.1)
                if any(fact.get("outcome") == "complete" for fact in outcomes):
                    break
            else:
                last = f"{outcomes[-3:]}, {relay.facts.get('relay')}"
                self.report.fault("lost", f"no recovery at the {relay.name}: {last}")

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
            self.report.fault("leak", f"parent holds what is gone: {self.parent.facts['relay']}")
        await asyncio.sleep(SETTLED)


def check_usage(report, first, last):
    """See that the parent kept to its budgets, and that nothing grew, in its last life."""
    peak = max(one.rss_mib for one in report.usage)
    allowed = first.rss_mib + CACHE_MIB + RSS_OVER_MIB
    if peak > allowed + RSS_TROUBLE_MIB or last.rss_mib > allowed:
        text = f"{peak:.0f} MiB resident at most, {last.rss_mib:.0f} at the end"
        report.fault("leak", f"parent: {text}, {first.rss_mib:.0f} at the start")
    for what in ("files", "threads"):
        before, after = getattr(first, what), getattr(last, what)
        if after > before + KEPT:
            report.fault("leak", f"parent: {after} {what} at the end, {before} at the start")
    check_growth(report)


def check_growth(report):
    """See that the parent did not grow from the second quarter of its life to the last.

    What its cache holds is left out: early in a life it is not full.
    """
    beyond = report.beyond
    quarter = len(beyond) // 4
    if quarter >= 60:
        early = statistics.median(beyond[quarter : 2 * quarter])
        late = statistics.median(beyond[-quarter:])
        if late > early + RSS_GROWTH_MIB:
            text = f"grew from {early:.0f} to {late:.0f} MiB beyond its cache"
            report.fault("leak", f"parent: {text}")


def check_logs(report, directory):
    """See that no process has met a bug of its own."""
    for log in sorted(Path(directory).glob("*.log")):
        text = log.read_text(errors="replace")
        for sign in ("Traceback", "Fatal Python error"):
            if sign in text:
                start = text.index(sign)
                report.fault("crash", f"{log.name}: {text[start : start + 3000]}")


async def run(seconds, seed, directory=None):
    """Let it go on for so long; return the report. The logs stay in a directory that is named."""
    report = Report(seed)
    async with AsyncExitStack() as stack:
        if directory is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvcs-chaos-"))
        scene = Scene(seed, directory, report)
        stack.push_async_callback(scene.close)
        await scene.open()
        for peer in scene.peers:
            await peer.start()
        watching = asyncio.create_task(scene.watch())
        await scene.trouble(seconds)
        for actor in scene.actors:
            actor.resume()
        for peer in [peer for peer in scene.peers if peer.role in {"intruder", "forger"}]:
            await peer.kill()
        await scene.recover()
        await scene.leave()
        watching.cancel()
        if scene.parent.is_running:
            check_usage(report, scene.first, scene.parent.usage())
        else:
            report.fault("crash", "the parent relay is gone")
        check_logs(report, directory)
    if not report.counts["retrieved complete"]:
        report.fault("lost", "nobody got anything")
    return report
