"""How things are measured here.

A case runs in processes of its own. Baseline and candidate take turns, at least five times
each, and the medians are compared: these machines are shared, and a ratio of the same run
says more than a figure. CPU seconds are those of the measured process, user and system.
"""

import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

__all__ = ("MIN_ROUNDS", "Node", "Result", "Sample", "compare", "median")

MIN_ROUNDS: Final = 5
_NODE_TIMEOUT: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of a benchmark.

    Attributes:
        name: Case, for example ``direct/32KiB/plain``.
        value: Median of the candidate.
        unit: Unit of value and baseline.
        baseline: Median of the baseline in the same run, or a bound; None where nothing is asked.
        ratio: value / baseline.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result with its ratio."""
        ratio = self.value / self.baseline if self.baseline else None
        return {**asdict(self), "ratio": ratio}


type Sample = dict[str, float]
type Measure = Callable[[], Awaitable[Sample]]


class Node:
    """A process of a benchmark: a role of `benchmarks.node`, one JSON line per question."""

    def __init__(self, role: str, **settings: Any) -> None:
        self._arguments = (role, json.dumps(settings))
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.node", *self._arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**24,
        )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer.

        Raises:
            RuntimeError: The process ended, or reports an error.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"command": command, **arguments}).encode() + b"\n")
        line = await asyncio.wait_for(process.stdout.readline(), _NODE_TIMEOUT)
        if not line:
            raise RuntimeError(f"{self._arguments[0]} ended while it was asked to {command}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._arguments[0]}: {answer['error']}")
        return answer


async def compare(measures: Sequence[Measure], *, rounds: int = MIN_ROUNDS) -> list[list[Sample]]:
    """Let the measures take turns; return the samples of each, a first round not counted."""
    samples: list[list[Sample]] = [[] for _ in measures]
    for turn in range(rounds + 1):
        for measure, kept in zip(measures, samples, strict=True):
            sample = await measure()
            if turn:
                kept.append(sample)
    return samples


def median(samples: Sequence[Sample], key: str) -> float:
    """Return the median of one figure."""
    return statistics.median(sample[key] for sample in samples)
