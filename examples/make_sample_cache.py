"""Make the sample cache that kvcs ships: ``python examples/make_sample_cache.py [OUT]``.

Needs the dependency group ``light``. The cache is that of the first 256 tokens of
``src/kvcs/data/alice.txt``; keys and values are rounded to bfloat16 as the engine computes.
"""

import sys
from pathlib import Path

from kvcs.engines.file import SAMPLE_CACHE, load_cache, save_cache
from kvcs.engines.recording import record_cache
from kvcs.engines.registry import load_engine
from kvcs.kv.identity import Dtype

BLOCK_TOKENS = 64
BLOCKS = 4


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE_CACHE
    engine = load_engine("reference", dtype=Dtype.BFLOAT16)
    text = SAMPLE_CACHE.with_suffix(".txt").read_text(encoding="utf-8")
    tokens = engine.tokenize(text)[: BLOCKS * BLOCK_TOKENS]
    save_cache(out, record_cache(engine, tokens, block_tokens=BLOCK_TOKENS))
    cache = load_cache(out)
    print(f"{out}: {cache.blocks} blocks, {len(cache.layers)} layers, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
