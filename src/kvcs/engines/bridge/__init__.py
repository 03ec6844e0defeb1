"""The bridge between engines, which are synchronous, and the client, which is asyncio.

An engine call runs in a thread of its own. Two things cross to the event loop and back:

* Publishing: `_PublishingSink` copies each layer in the engine's thread, so that the engine
  may reuse its memory at once, and hands the copy to the loop through `_Handoff`, which
  blocks the engine while more than `max_queued_bytes` wait to be published.
* Streaming: `Arrivals` holds one future per layer; the loop resolves them, the engine's thread
  waits for the one it needs, at most until the deadline.

Either side can end the other: an engine that fails ends the publishing, and a client that
fails, or a caller that is cancelled, stops the engine at its next layer, pass or token.
Every wait in the engine's thread ends with a stop or a deadline, so no thread outlives its
caller by more than one layer's computation.
"""

from kvcs.engines.bridge.publishing import (
    MAX_QUEUED_BYTES,
    LayerPublication,
    LayerSegment,
    publish_prefill,
)
from kvcs.engines.bridge.streaming import (
    Arrivals,
    ArrivedLayer,
    LayerRetrieval,
    Outcome,
    PrefixMemory,
    Promise,
    generate_streaming,
)
from kvcs.engines.bridge.thread import STOP_TIMEOUT, run_in_engine_thread

__all__ = (
    "MAX_QUEUED_BYTES",
    "STOP_TIMEOUT",
    "Arrivals",
    "ArrivedLayer",
    "LayerPublication",
    "LayerRetrieval",
    "LayerSegment",
    "Outcome",
    "PrefixMemory",
    "Promise",
    "generate_streaming",
    "publish_prefill",
    "run_in_engine_thread",
)
