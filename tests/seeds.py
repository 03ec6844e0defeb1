"""Which seeds a test with chance in it takes: some in every run, many more in the soak."""

import pytest

__all__ = ("seeded",)


def seeded(name, usual, *, soak):
    """Parametrise a test by numbers; those of the soak are for ``pytest -m soak``."""
    more = [pytest.param(number, marks=pytest.mark.soak) for number in soak]
    return pytest.mark.parametrize(name, [*usual, *more])
