"""``first_layer``: the part of ``secure`` that tells how soon a first layer can be used."""

from benchmarks.method import Result
from benchmarks.secure import first_layer


async def run(seconds: float) -> list[Result]:
    """Measure publications in clear, signed, and signed and sealed."""
    return await first_layer(seconds)
