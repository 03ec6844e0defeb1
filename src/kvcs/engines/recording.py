"""From an engine to a cache file, and from a cache file to an engine."""

from collections.abc import Buffer, Sequence

from kvcs.engines.file import CacheFile, LayerTensors
from kvcs.engines.interface import NO_SPLIT, Engine, PassPlan
from kvcs.errors import DataError
from kvcs.kv.layout import Layout
from kvcs.kv.naming import Component

__all__ = ("CachePrefix", "record_cache")


class _Recorder:
    """A `LayerSink` that joins the passes of each layer."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[bytearray, bytearray]] = {}

    def begin_pass(self, first_token: int, tokens: int) -> None:
        """Do nothing: passes follow each other without gaps."""
        del first_token, tokens

    def take_layer(self, layer_index: int, k: Buffer, v: Buffer) -> None:
        """Append a copy."""
        joined = self.layers.setdefault(layer_index, (bytearray(), bytearray()))
        joined[0].extend(memoryview(k).cast("B"))
        joined[1].extend(memoryview(v).cast("B"))


def record_cache(
    engine: Engine, tokens: Sequence[int], *, block_tokens: int, plan: PassPlan = NO_SPLIT
) -> CacheFile:
    """Prefill and keep the result, for `kvcs.engines.file.save_cache`.

    Tokens that do not fill a block are left out.

    Raises:
        DataError: `tokens` do not fill one block.
    """
    whole = len(tokens) // block_tokens * block_tokens
    if not whole:
        raise DataError(f"{len(tokens)} tokens do not fill a block of {block_tokens}")
    recorder = _Recorder()
    engine.prefill(tokens[:whole], recorder, plan=plan)
    return CacheFile(
        descriptor=engine.descriptor(block_tokens),
        tokens=tuple(tokens[:whole]),
        layers={
            layer_index: LayerTensors(memoryview(k).toreadonly(), memoryview(v).toreadonly())
            for layer_index, (k, v) in recorder.layers.items()
        },
        ignored_tokens=len(tokens) - whole,
    )


class CachePrefix:
    """A `LayerSource` on a cache in memory.

    Args:
        cache: Cache with all layers.
        blocks: How many of its blocks to use; None for all.
    """

    def __init__(self, cache: CacheFile, *, blocks: int | None = None) -> None:
        self._cache = cache
        self._layout = Layout(cache.descriptor)
        self._blocks = cache.blocks if blocks is None else blocks

    @property
    def tokens(self) -> int:
        """Length of the prefix in tokens."""
        return self._blocks * self._layout.block_tokens

    def wait_layer(self, layer_index: int) -> tuple[Buffer, Buffer]:
        """Return the blocks of one layer."""
        k, v = (
            tensor[: self._blocks * self._layout.data_bytes(component, layer_index)]
            for component, tensor in zip(
                (Component.K, Component.V), self._cache.layers[layer_index], strict=True
            )
        )
        return k, v

    def shorter(self) -> None:
        """Return None: the whole prefix is always there."""
        return
