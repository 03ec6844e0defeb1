"""How things are measured here.

A case runs in processes of its own. Baseline and candidate take turns, at least five times
each, and the medians are compared: these machines are shared, and a ratio of the same run
says more than a figure. The spread shown beside a ratio is that of the single rounds, each
candidate divided by the baseline just before it. CPU seconds are those of the measured
process, user and system, all threads.
"""

import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

__all__ = ("MIN_ROUNDS", "Node", "Result", "Sample", "compare", "median")

MIN_ROUNDS: Final = 5
_NODE_TIMEOUT: Final = 120.0

type Sample = dict[str, float]
type Measure = Callable[[], Awaitable[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of a benchmark.

    Attributes:
        name: Case, for example ``direct/32KiB/plain``.
        value: Median of the candidate.
        unit: Unit of value and baseline.
        baseline: Median of the baseline in the same run, or a bound; None where nothing is asked.
        spread: Least and greatest ratio of a round; None without a baseline by round.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None
    spread: tuple[float, float] | None = None

    @classmethod
    def of(
        cls, name: str, unit: str, key: str, samples: Sequence[Sample], baseline: Sequence[Sample]
    ) -> Self:
        """Compare one figure of the candidate with that of the baseline."""
        ratios = [one[key] / other[key] for one, other in zip(samples, baseline, strict=True)]
        return cls(
            name=name,
            value=median(samples, key),
            unit=unit,
            baseline=median(baseline, key),
            spread=(min(ratios), max(ratios)),
        )

    @property
    def ratio(self) -> float | None:
        """Value over baseline."""
        return self.value / self.baseline if self.baseline else None

    def to_json(self) -> dict[str, Any]:
        """Return the result as it is printed with ``--json``."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "baseline": self.baseline,
            "ratio": self.ratio,
        }

    def to_text(self) -> str:
        """Return the result as a line of a table."""
        text = f"{self.name:<48} {self.value:>9.4g} {self.unit:<24}"
        if self.baseline is not None:
            text += f" baseline {self.baseline:>9.4g}  ratio {self.ratio:.3f}"
        if self.spread is not None:
            text += f" ({self.spread[0]:.3f}..{self.spread[1]:.3f})"
        return text


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

    @property
    def pid(self) -> int:
        """Number of the process."""
        assert self._process is not None
        return self._process.pid

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
