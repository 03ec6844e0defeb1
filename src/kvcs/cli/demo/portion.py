"""What one consumer of the demo took, and whether it is what was published."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvcs.cli._output import rounded
from kvcs.cli.demo.messages import Compared, LayerPassed, Retrieved

__all__ = ("Portion",)


@dataclass(slots=True)
class Portion:
    """One consumer's part.

    Attributes:
        name: The consumer.
        digests: Layer digests of its blocks, by layer.
        retrieved: The outcome of its retrieval.
        compared: Its run without reuse, if it decodes.
        is_late: It took the whole prefix when all of it was in the relay.
        has_equal_bytes: Every byte it took is the published one.
        is_equal: And its tokens are equal.
    """

    name: str
    is_late: bool = False
    digests: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    retrieved: Retrieved | None = None
    compared: Compared | None = None
    has_equal_bytes: bool = False
    is_equal: bool = False
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, layer: LayerPassed) -> None:
        """Note a layer that has become usable."""
        self.digests[layer.layer_index] = layer.digests
        self._arrived.set()

    async def has_layers(self, count: int) -> None:
        """Wait until so many layers are usable."""
        while len(self.digests) < count:
            self._arrived.clear()
            await self._arrived.wait()

    @property
    def is_whole(self) -> bool:
        """Nothing is missing, and nothing was rejected."""
        outcome = self.retrieved
        return (
            outcome is not None
            and outcome.complete
            and not outcome.missing
            and not outcome.rejected
            and len(self.digests) == outcome.layers
        )

    @property
    def is_recomputed(self) -> bool:
        """The prefix was lost, and the tokens come from computing it."""
        return self.retrieved is not None and self.retrieved.failure is not None

    def judge(self, published: Mapping[int, list[str]], *, decodes: bool) -> None:
        """Compare with what was published, block by block.

        Args:
            published: Layer digests of all blocks, by layer.
            decodes: The demo has a model.
        """
        outcome = self.retrieved
        assert outcome is not None
        self.has_equal_bytes = outcome.is_like_file is not False and all(
            digests == published[layer_index][: outcome.blocks]
            for layer_index, digests in self.digests.items()
        )
        has_decoded = outcome.time_to_first_token is not None
        same_tokens = self.compared is not None and self.compared.is_equal
        self.is_equal = self.has_equal_bytes and (same_tokens or not (decodes and has_decoded))

    def report(self) -> dict[str, Any]:
        """Return the consumer's part of ``kvcs demo --json``."""
        outcome = self.retrieved
        assert outcome is not None
        return {
            "name": self.name,
            "objects_verified": outcome.verified,
            "objects_rejected": outcome.rejected,
            "objects_missing": outcome.missing,
            "objects_duplicate": outcome.duplicate,
            "objects_excess": outcome.excess,
            "bytes": outcome.payload_bytes,
            "first_layer_s": rounded(outcome.first_layer_s),
            "last_layer_s": rounded(outcome.last_layer_s),
        }

    def report_decoding(self) -> dict[str, Any]:
        """Return `report`, and what was decoded, with reuse and alone."""
        outcome, compared = self.retrieved, self.compared
        assert outcome is not None
        assert compared is not None
        return {
            **self.report(),
            "reused_tokens": outcome.reused_tokens,
            "decoded_tokens": compared.tokens,
            "equal": self.is_equal,
            "first_token_s": rounded(outcome.time_to_first_token),
            "alone_first_token_s": rounded(compared.time_to_first_token),
        }
