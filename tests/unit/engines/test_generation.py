"""Greedy generation on a prefix that may fail, with an engine that only adds numbers."""

import pytest

from kvcs.engines.generation import generate
from kvcs.engines.interface import NO_SPLIT, EngineStopped, PassPlan, PrefixLost

PROMPT = (3, 1, 4, 1, 5, 9)


class SumRun:
    """The next token is the sum of all tokens, modulo 100; the state of a prefix is its sum."""

    def __init__(self, source, log):
        self.tokens = source.tokens if source else 0
        self.waits = []
        self._source = source
        self._sum = 0
        self._log = log

    def advance(self, tokens):
        self._log.append(tuple(tokens))
        if self._source and not self.waits:
            self._sum = self._source.wait_layer(0)
            self.waits.append(0.25)
        self._sum += sum(tokens)
        self.tokens += len(tokens)
        return self._sum % 100


class SumRunner:
    end_tokens = (92,)

    def __init__(self):
        self.log = []

    def open_run(self, source):
        return SumRun(source, self.log)


class Source:
    def __init__(self, tokens, state=None, shorter=None):
        self.tokens = tokens
        self._state = state
        self._shorter = shorter

    def wait_layer(self, layer_index):
        if self._state is None:
            raise PrefixLost(layer_index, f"no prefix of {self.tokens}")
        return self._state

    def shorter(self):
        return self._shorter


def run(source=None, *, new_tokens=2, plan=NO_SPLIT, should_stop=lambda: False, runner=None):
    return generate(
        runner or SumRunner(),
        PROMPT,
        new_tokens=new_tokens,
        source=source,
        plan=plan,
        should_stop=should_stop,
    )


def test_without_a_source_everything_is_computed():
    result = run()

    assert result.tokens == (23, 46)
    assert result.reused_tokens == 0
    assert result.failure is None
    assert result.time_to_first_token > 0


def test_with_a_source_only_the_rest_is_computed():
    runner = SumRunner()

    result = run(Source(4, 9), runner=runner)

    assert result.tokens == (23, 46)
    assert result.reused_tokens == 4
    assert result.layer_waits == (0.25,)
    assert runner.log == [(5, 9), (23,)]


def test_a_lost_prefix_is_computed_from_the_start():
    runner = SumRunner()

    result = run(Source(4), runner=runner)

    assert result.tokens == (23, 46)
    assert result.reused_tokens == 0
    assert str(result.failure) == "layer 0 of the prefix is missing: no prefix of 4"
    assert runner.log == [(5, 9), PROMPT, (23,)]


def test_a_lost_prefix_is_replaced_by_a_shorter_one():
    result = run(Source(4, shorter=Source(2, 4)))

    assert result.tokens == (23, 46)
    assert result.reused_tokens == 2
    assert "no prefix of 4" in str(result.failure)


def test_the_plan_divides_what_is_computed():
    runner = SumRunner()

    run(Source(1, 3), plan=PassPlan(pass_tokens=2), runner=runner, new_tokens=1)

    assert runner.log == [(1, 4), (1, 5), (9,)]


def test_generation_ends_at_an_end_token():
    assert run(new_tokens=10).tokens == (23, 46, 92)


@pytest.mark.parametrize("allowed", range(4))
def test_stop_is_asked_before_every_pass_and_every_token(allowed):
    answers = iter([False] * allowed + [True])
    runner = SumRunner()

    with pytest.raises(EngineStopped):
        run(
            plan=PassPlan(pass_tokens=3),
            new_tokens=5,
            should_stop=lambda: next(answers),
            runner=runner,
        )

    assert len(runner.log) == allowed


@pytest.mark.parametrize("tokens", [0, len(PROMPT), len(PROMPT) + 1])
def test_a_prefix_must_leave_a_token_to_compute(tokens):
    with pytest.raises(ValueError, match="for a prompt of 6"):
        run(Source(tokens, 1))
