"""What came of a retrieval: values that say what is there, what is missing and why."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvcs.client.ledger import BlockState, MissingReason, TrackLedger
from kvcs.errors import KvcsError

__all__ = (
    "Counters",
    "LayerArrival",
    "MissingRange",
    "MissingReason",
    "Verdict",
    "missing_ranges",
    "verified_prefix",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRange:
    """A run of blocks that one layer of one segment lacks.

    Attributes:
        segment: Segment number.
        layer: Layer index.
        first: First missing block of the run, counted inside the segment.
        end: Block after the last missing one.
        reason: Why; the gravest one where several components lack the block.
    """

    segment: int
    layer: int
    first: int
    end: int
    reason: MissingReason


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerArrival:
    """When one layer became usable.

    Attributes:
        layer_index: Layer index.
        seconds: Seconds from the start of the retrieval.
    """

    layer_index: int
    seconds: float


@dataclass(slots=True)
class Counters:
    """Objects and bytes of one retrieval.

    Attributes:
        verified: Wanted Objects that passed every check.
        rejected: Objects that failed a check, by the word of the check.
        duplicate: Objects that arrived again with the same bytes.
        excess: Objects that nobody wanted: other blocks or layers.
        padding: Objects of sealed publications that only hide how many blocks there are.
        payload_bytes: Payload octets that arrived, wanted or not.
        verified_bytes: Data octets that were verified and put in place.
    """

    verified: int = 0
    rejected: dict[str, int] = field(default_factory=dict[str, int])
    duplicate: int = 0
    excess: int = 0
    padding: int = 0
    payload_bytes: int = 0
    verified_bytes: int = 0

    def reject(self, reason: str) -> None:
        """Count one rejected Object."""
        self.rejected[reason] = self.rejected.get(reason, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a retrieval.

    Attributes:
        complete: Every wanted block of every wanted layer is verified, and every digest was
            confirmed by the manifest that lists it.
        missing: What is not there, in order of segment, layer and block.
        verified_prefix_blocks: Greatest m such that blocks 0..m-1 are verified in every wanted
            layer and both components. 0 when the publication was discarded.
        unconfirmed_layers: Verified layers of single tracks whose digests no manifest ever
            listed, although the publication lists digests; `complete` is then false.
        padding: Objects of a sealed publication that only hide how many blocks there are.
        signed_by: Key identifier of the producer under whose signature every verified Object was
            checked, or None where that was not demanded.
        sealed: Nothing was taken but what an object key opened: the consumer has object keys,
            and then takes nothing in clear. Without them it opens nothing that is sealed.
        error: What ended the retrieval early, or None.
        verified, rejected, duplicate, excess, missing_objects: Counts of Objects.
        verified_bytes: Data octets that were verified and put in place.
        payload_bytes: Payload octets that arrived, wanted or not.
        first_layer_s, last_layer_s: Seconds from the start to the first and the last usable
            layer, or None when there was none.
        arrivals: When each layer became usable, in that order.
        elapsed_s: Seconds from start to end.

    Source:
        KVCS, "Verification and Recovery".
    """

    complete: bool
    missing: tuple[MissingRange, ...]
    verified_prefix_blocks: int
    unconfirmed_layers: int
    error: KvcsError | None
    verified: int
    rejected: Mapping[str, int]
    duplicate: int
    excess: int
    missing_objects: int
    verified_bytes: int
    payload_bytes: int
    arrivals: tuple[LayerArrival, ...]
    elapsed_s: float
    padding: int = 0
    signed_by: bytes | None = None
    sealed: bool = False

    @property
    def authenticated(self) -> bool:
        """Whether what was verified is what a trusted producer signed, and nobody else could."""
        return self.signed_by is not None

    @property
    def first_layer_s(self) -> float | None:
        """Seconds until the first layer was usable."""
        return self.arrivals[0].seconds if self.arrivals else None

    @property
    def last_layer_s(self) -> float | None:
        """Seconds until the last layer was usable."""
        return self.arrivals[-1].seconds if self.arrivals else None


def verified_prefix(segments: Sequence[Sequence[TrackLedger]]) -> int:
    """Return the greatest m such that blocks 0..m-1 are verified wherever they are wanted.

    Args:
        segments: The ledgers of each segment, one per track, in order from block 0.
    """
    blocks = 0
    for ledgers in segments:
        verified = min(ledger.verified_prefix() for ledger in ledgers)
        blocks += verified
        if verified < ledgers[0].blocks:
            break
    return blocks


def missing_ranges(
    segment: int, ledgers: Sequence[TrackLedger], pending: Sequence[MissingReason]
) -> Iterator[MissingRange]:
    """Yield what the tracks of one segment lack, by layer and block.

    Args:
        segment: Segment number.
        ledgers: One per track of the segment, of the same layers and blocks.
        pending: For each of them, the reason of blocks that nothing is known about.
    """
    for layer_index in ledgers[0].layers:
        ranks = bytearray(bytes((_THERE,)) * ledgers[0].blocks)
        for ledger, default in zip(ledgers, pending, strict=True):
            for run in ledger.missing_of(layer_index):
                place = slice(run.first, run.end)
                gravest = _GRAVEST[_REASONS.get(run.state, default)]
                ranks[place] = ranks[place].translate(gravest)
        for run in _RUN.finditer(ranks):
            if (rank := run[0][0]) != _THERE:
                yield MissingRange(
                    segment=segment,
                    layer=layer_index,
                    first=run.start(),
                    end=run.end(),
                    reason=_BY_GRAVITY[rank],
                )


_REASONS: Final = {
    BlockState.REJECTED: MissingReason.REJECTED,
    BlockState.NON_EXISTENT: MissingReason.NON_EXISTENT,
    BlockState.UNKNOWN: MissingReason.UNKNOWN,
    BlockState.TIMED_OUT: MissingReason.TIMED_OUT,
    BlockState.RESET: MissingReason.RESET,
    BlockState.UNLISTED: MissingReason.UNLISTED,
}
# Gravest first: what a person must act on before what time may heal. A block that lacks for two
# reasons has the one of lower rank; rows of ranks are as long as a manifest says, so that they are
# changed and read as octets.
_BY_GRAVITY: Final = tuple(MissingReason)
_THERE: Final = 255
_GRAVEST: Final = {
    reason: bytes(min(known, rank) for known in range(256))
    for rank, reason in enumerate(_BY_GRAVITY)
}
_RUN: Final = re.compile(
    b"|".join(b"\\x%02x++" % rank for rank in (*range(len(_BY_GRAVITY)), _THERE))
)
