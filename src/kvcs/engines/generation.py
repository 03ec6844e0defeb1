"""Greedy generation on a prefix that may fail to arrive, the same for every engine.

An engine offers `Runner`: it opens a run on what a source promises, or on nothing. When the
prefix is lost in the middle of a forward pass, lower layers have already used it, so there is
no repair: the run is dropped, and another one starts on the longest prefix that is really
there, or on nothing.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from kvcs.engines.interface import (
    EngineStopped,
    Generation,
    LayerSource,
    PassPlan,
    PrefixLost,
)

__all__ = ("Run", "Runner", "generate")


class Run(Protocol):
    """One sequence in the making.

    Attributes:
        tokens: Its length, including a promised prefix.
        waits: Seconds spent waiting for each layer of the prefix so far.
    """

    @property
    def tokens(self) -> int:
        """Length in tokens."""
        ...

    @property
    def waits(self) -> Sequence[float]:
        """Seconds per layer."""
        ...

    def advance(self, tokens: Sequence[int]) -> int:
        """Run the next `tokens` in one pass; return the most likely token after them.

        Raises:
            PrefixLost: The prefix did not come; the run is worthless.
            EngineStopped: The source was told that nobody wants the result.
        """
        ...


class Runner(Protocol):
    """An engine, as `generate` sees it."""

    @property
    def end_tokens(self) -> Sequence[int]:
        """Tokens that end a text."""
        ...

    def open_run(self, source: LayerSource | None) -> Run:
        """Open a run on the prefix of `source`, or from the start."""
        ...


def generate(
    runner: Runner,
    tokens: Sequence[int],
    *,
    new_tokens: int,
    source: LayerSource | None,
    plan: PassPlan,
    should_stop: Callable[[], bool],
) -> Generation:
    """Continue `tokens` greedily; see `kvcs.engines.interface.Engine.generate`."""
    started = time.perf_counter()
    failure: PrefixLost | None = None
    while True:
        run = _open_run(runner, source, len(tokens))
        reused_tokens = run.tokens
        try:
            chosen = [_prefill(run, tokens, plan, should_stop)]
            break
        except PrefixLost as lost:
            failure = failure or lost
            source = source.shorter() if source else None
    time_to_first_token = time.perf_counter() - started
    while len(chosen) < new_tokens and chosen[-1] not in runner.end_tokens:
        _check_stop(should_stop)
        chosen.append(run.advance(chosen[-1:]))
    return Generation(
        tokens=tuple(chosen),
        reused_tokens=reused_tokens,
        time_to_first_token=time_to_first_token,
        layer_waits=tuple(run.waits),
        failure=failure,
    )


def _open_run(runner: Runner, source: LayerSource | None, tokens: int) -> Run:
    if source is not None and not 0 < source.tokens < tokens:
        raise ValueError(f"a prefix of {source.tokens} tokens for a prompt of {tokens}")
    return runner.open_run(source)


def _prefill(
    run: Run, tokens: Sequence[int], plan: PassPlan, should_stop: Callable[[], bool]
) -> int:
    """Run what `run` lacks of `tokens`; return the most likely next token."""
    next_token = -1
    for start, end in plan.passes(run.tokens, len(tokens)):
        _check_stop(should_stop)
        next_token = run.advance(tokens[start:end])
    return next_token


def _check_stop(should_stop: Callable[[], bool]) -> None:
    if should_stop():
        raise EngineStopped
