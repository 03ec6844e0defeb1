"""How often a test with chance in it tries: some seeds in every run, many more in the soak."""

import pytest
from hypothesis import settings

__all__ = ("examples", "seeded")


def seeded(name, usual, *, soak):
    """Parametrise a test by numbers; those of the soak are for ``pytest -m soak``."""
    more = [pytest.param(number, marks=pytest.mark.soak) for number in soak]
    return pytest.mark.parametrize(name, [*usual, *more])


def examples(number):
    """Return how many examples a property gets now, of so many in the soak."""
    return max(1, number * settings().max_examples // 100)
