"""``relay``: what a relay costs and carries, in five parts, each of which is a benchmark itself.

``fan_out`` (one relay beside a byte forwarder), ``foreign`` (beside aiomoqt's test relay),
``tree`` (two relays, one below the other), ``stalled`` (consumers beside one that stands still,
and memory), and what a consumer gets from a relay's disk beside its memory, of ``disk``.
"""

from benchmarks import disk, fan_out, foreign, stalled, tree
from benchmarks.method import Result

PARTS = (fan_out.run, foreign.run, tree.run, stalled.run, disk.run_served)


async def run(seconds: float) -> list[Result]:
    """Run all parts, one after the other."""
    return [result for part in PARTS for result in await part(seconds)]
