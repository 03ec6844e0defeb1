"""Short runs of the chaos and of the soak.

The long ones are ``python -m tests.chaos --seconds 600`` and ``python -m tests.chaos.soak``.
"""

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_chaos_ends_without_crash_leak_or_wrong_byte():
    seed = random.SystemRandom().randrange(2**32)
    command = [sys.executable, "-m", "tests.chaos", "--seconds", "12", "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    assert f"seed {seed}" in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_many_publications_of_160_groups_leave_nothing_behind():
    command = [sys.executable, "-m", "tests.chaos.soak", "--publications", "80"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
