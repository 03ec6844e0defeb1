"""What an inference engine offers to kvcs, and what kvcs offers to it.

An engine runs in a thread of its own and is synchronous. While it prefills it hands the
keys and values of each layer to a `LayerSink`; while it generates it may take those of a
prefix from a `LayerSource`, which makes it wait for one layer at a time. `kvcs.engines.bridge`
implements both ends for asyncio; nothing in an engine knows about networks.

Tensors cross this interface as buffers of ``[tokens, kv_heads, head_dim]``, C order,
little-endian, in the dtype of the engine's descriptor, with the position already applied.
"""

import itertools
from collections.abc import Buffer, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcs.errors import KvcsError
from kvcs.kv.identity import Descriptor

__all__ = (
    "NO_SPLIT",
    "Engine",
    "EngineStopped",
    "Generation",
    "LayerSink",
    "LayerSource",
    "PassPlan",
    "PrefixLost",
)


class PrefixLost(KvcsError):
    """A layer of the promised prefix cannot be had; the forward pass is abandoned.

    Attributes:
        layer_index: The first layer that was waited for in vain.
        reason: Why it did not come.
    """

    def __init__(self, layer_index: int, reason: str) -> None:
        super().__init__(layer_index, reason)
        self.layer_index = layer_index
        self.reason = reason

    def __str__(self) -> str:
        return f"layer {self.layer_index} of the prefix is missing: {self.reason}"


class EngineStopped(KvcsError):
    """The work was abandoned on request; the engine returns at the next layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """How a prefill is divided into passes over the token sequence.

    Floating-point sums depend on the shape of a pass, so two runs give bit-equal logits
    only under the same plan. `split_at` gives a run without reuse the boundary that a run
    with `split_at` reused tokens has.

    Attributes:
        pass_tokens: Most tokens of one pass; None for a single pass.
        split_at: A pass also ends at this token; 0 for no such boundary.
    """

    pass_tokens: int | None = None
    split_at: int = 0

    def __post_init__(self) -> None:
        if self.pass_tokens is not None and self.pass_tokens < 1:
            raise ValueError(f"a pass has at least one token, got {self.pass_tokens}")

    def passes(self, start: int, end: int) -> list[tuple[int, int]]:
        """Divide ``[start, end)`` into consecutive half-open ranges."""
        bounds = [start, self.split_at, end] if start < self.split_at < end else [start, end]
        step = self.pass_tokens or max(1, end - start)
        return [
            (first, min(first + step, last))
            for begin, last in itertools.pairwise(bounds)
            for first in range(begin, last, step)
        ]


NO_SPLIT = PassPlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a call of `Engine.generate` produced.

    Attributes:
        tokens: New tokens, greedily chosen; may end early at an end-of-text token.
        reused_tokens: Tokens of the prompt whose keys and values were not computed here.
        time_to_first_token: Seconds from the call to the first new token.
        layer_waits: Seconds spent waiting for each layer of the prefix.
        failure: Why the promised prefix was given up for a shorter one or none, or None.
    """

    tokens: tuple[int, ...]
    reused_tokens: int
    time_to_first_token: float
    layer_waits: tuple[float, ...] = ()
    failure: PrefixLost | None = None


class LayerSink(Protocol):
    """Takes what a prefill computes, in order: all layers of a pass, then the next pass."""

    def begin_pass(self, first_token: int, tokens: int) -> None:
        """Announce a pass over the tokens ``[first_token, first_token + tokens)``."""
        ...

    def take_layer(self, layer_index: int, k: Buffer, v: Buffer) -> None:
        """Take one layer of the pass; the engine may reuse the memory afterwards.

        Blocks while the other end is behind.

        Raises:
            EngineStopped: Nobody wants the rest.
        """
        ...


class LayerSource(Protocol):
    """Gives the keys and values of a prefix, layer by layer."""

    @property
    def tokens(self) -> int:
        """Length of the promised prefix in tokens, whole blocks."""
        ...

    def wait_layer(self, layer_index: int) -> tuple[Buffer, Buffer]:
        """Wait for one layer of the whole prefix; return its keys and values.

        Raises:
            PrefixLost: The layer did not come in time, or never will.
            EngineStopped: Nobody wants the result.
        """
        ...

    def shorter(self) -> "LayerSource | None":
        """Return what is left after `PrefixLost`: a shorter prefix that is there, or None."""
        ...


class Engine(Protocol):
    """A model that can be run. Calls share nothing but the weights."""

    @property
    def name(self) -> str:
        """Name of the engine, as in ``kvcs demo --engine``."""
        ...

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the tokens of `text`; special tokens are recognised, none are added."""
        ...

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`, special tokens left out."""
        ...

    def descriptor(self, block_tokens: int) -> Descriptor:
        """Describe everything that changes the bytes or the meaning of this engine's cache."""
        ...

    def prefill(self, tokens: Sequence[int], sink: LayerSink, *, plan: PassPlan = NO_SPLIT) -> None:
        """Run the model over `tokens` and hand every layer to `sink` once it exists.

        Raises:
            EngineStopped: `sink` asked for it.
        """
        ...

    def generate(
        self,
        tokens: Sequence[int],
        *,
        new_tokens: int,
        source: LayerSource | None = None,
        plan: PassPlan = NO_SPLIT,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Generation:
        """Continue `tokens` greedily by at most `new_tokens`.

        Args:
            tokens: The whole prompt, at least one token longer than the reused prefix.
            new_tokens: Upper bound, at least 1.
            source: Where the prefix comes from; None computes everything.
            plan: Division of what is computed into passes.
            should_stop: Asked before every pass and every token.

        Raises:
            EngineStopped: `source` or `should_stop` asked for it.
        """
        ...
