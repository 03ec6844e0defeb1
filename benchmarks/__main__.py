"""``python -m benchmarks NAME [--json] [--seconds S]``."""

import argparse
import asyncio
import json
import os
import platform
import sys
from importlib import import_module

NAMES = (
    *(
        "codec",
        "direct",
        "disk",
        "fan_out",
        "first_layer",
        "foreign",
        "pipeline",
        "profile",
        "relay",
    ),
    *("secure", "stalled", "tree", "wan"),
)


def main() -> None:
    """Run one benchmark and print its results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--seconds", type=float, default=2.0, help="aimed at per measured case")
    arguments = parser.parse_args()
    results = asyncio.run(import_module(f"benchmarks.{arguments.name}").run(arguments.seconds))
    if arguments.json:
        print(json.dumps([result.to_json() for result in results], indent=1))
        return
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {sys.version.split()[0]}"
    )
    for result in results:
        print(result.to_text())


if __name__ == "__main__":
    main()
