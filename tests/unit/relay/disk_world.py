"""A relay core with a disk: files are real, and their thread is a list of jobs."""

from collections import deque

from tests.unit.relay.world import World

from kvcs.relay.auth import allow_all
from kvcs.relay.config import RelayLimits
from kvcs.relay.core import RelayCore
from kvcs.relay.disk.clock import DiskClock
from kvcs.relay.disk.config import DiskConfig
from kvcs.relay.disk.executor import DiskFailure, run_job
from kvcs.relay.disk.store import DiskStore

MIB = 2**20


class Jobs:
    """Runs disk operations when it is told to."""

    def __init__(self, store):
        self.store = store
        self.waiting = deque()
        self.failing = None  # what the next operations end with
        self.done = []

    def submit(self, job, done):
        self.waiting.append((job, done))

    def run(self, now):
        """Run what was submitted until now; tell whether that was anything."""
        due, self.waiting = self.waiting, deque()
        for job, done in due:
            self.done.append(job.func.__name__)
            done(self.failing or run_job(job, self.store), now)
        return bool(due)


class DiskWorld(World):
    """A world whose relay can be restarted on the same directory."""

    def __init__(self, directory, *, cache_bytes=64 * MIB, limits=None, **settings):
        super().__init__(cache_bytes=cache_bytes, **(limits or {}))
        self.directory = directory
        self.cache_bytes = cache_bytes
        self.limits = RelayLimits(**(limits or {}))
        self.config = DiskConfig(directory=directory, **settings)
        self.epoch = 1_000_000.0  # wall clock minus monotonic clock
        self.blocked = False  # the thread is stuck
        self._start()

    def wall(self):
        return self.now + self.epoch

    def _start(self):
        self.jobs = Jobs(DiskStore(self.directory))
        self.clock = DiskClock(self.wall, now=self.now)
        contents = self.jobs.store.contents(self.clock.stamp(self.now))
        self.core.open_disk(self.jobs, self.config, contents, clock=self.clock, now=self.now)
        self.settle()

    def restart(self, *, seconds=0.0, change=None):
        """Kill the relay with all sessions, and start another one a while later."""
        self.kill()
        self.clients.clear()
        if change is not None:
            change()
        self.now += seconds
        self.core = RelayCore(cache_bytes=self.cache_bytes, authorize=allow_all, limits=self.limits)
        self._start()

    def kill(self):
        self.jobs.store.close()

    def settle(self):
        super().settle()
        if not hasattr(self, "jobs"):
            return
        while not self.blocked and self.jobs.run(self.now):
            super().settle()

    def flush(self):
        """Let everything that waits be written."""
        self.pass_time(0.5)

    def fail(self, kind="error", reason="broken"):
        self.jobs.failing = DiskFailure(kind, reason)
