"""Chaos with real processes: ``python -m tests.chaos --seconds 600 --seed 1``."""

import argparse
import asyncio
import random
import sys
from pathlib import Path

from tests.chaos.scene import run


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--logs", type=Path, default=None, help="a directory for the logs")
    arguments = parser.parse_args()
    if arguments.logs is not None:
        arguments.logs.mkdir(parents=True, exist_ok=True)
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)  # noqa: T201
    report = asyncio.run(run(arguments.seconds, seed, arguments.logs))
    print(report.text())  # noqa: T201
    sys.exit(1 if report.faults else 0)


if __name__ == "__main__":
    main()
