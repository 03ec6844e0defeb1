"""``python -m benchmarks NAME [--json] [--seconds S]``."""

import argparse
import asyncio
import json
import os
import platform
import sys
from importlib import import_module

NAMES = ("codec", "direct", "pipeline", "relay")


def main() -> None:
    """Run one benchmark and print its results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--seconds", type=float, default=2.0, help="aimed at per measured case")
    arguments = parser.parse_args()
    results = asyncio.run(import_module(f"benchmarks.{arguments.name}").run(arguments.seconds))
    rows = [result.to_json() for result in results]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    for row in rows:
        baseline = "" if row["baseline"] is None else f"  baseline {row['baseline']:>9.4g}"
        ratio = "" if row["ratio"] is None else f"  ratio {row['ratio']:.3f}"
        print(f"{row['name']:<36} {row['value']:>9.4g} {row['unit']:<20}{baseline}{ratio}")


if __name__ == "__main__":
    main()
