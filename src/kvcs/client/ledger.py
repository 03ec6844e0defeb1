"""Which blocks of one data track are wanted, which are verified, and why others are missing.

Theory of operation. A `TrackLedger` belongs to one data track of one segment. Each wanted
layer is a row of one state octet and one digest per block, so that a row of 4,000 blocks
costs 132 KB and every question is a search in a bytearray. Digests take their memory with the
first block that is verified: a manifest that claims a million blocks costs a million octets a
row. States only ever move from "missing for some reason" to "verified"; a verified block stays
verified. A block that came before a signed manifest lists it is "unlisted": nothing is to be
asked for, and nothing may be used. The ledger knows nothing of streams, requests or memory.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from kvcs.errors import IntegrityError

__all__ = ("BlockState", "MissingReason", "MissingRun", "TrackLedger")

DIGEST_BYTES: Final = 32


class MissingReason(StrEnum):
    """Why a wanted block is not there, gravest first.

    Attributes:
        DISCARDED: The publication contradicts itself; nothing of it may be used.
        REJECTED: It arrived and failed a check.
        UNLISTED: It arrived, and no signed manifest lists it.
        REFUSED: The request for its track was refused.
        NON_EXISTENT: The publisher says that it does not exist.
        NOT_PUBLISHED: The publication ended, or never listed it.
        UNKNOWN: Whoever was asked no longer holds it.
        TIMED_OUT: A relay waited for it in vain.
        RESET: Its stream was reset, or its subscription ended early.
        CONNECTION_LOST: The connection ended first.
        STALLED: Nothing came for too long, and recovery brought nothing.
        DEADLINE: The timeout of the call passed first.
        STOPPED: The caller left the retrieval.
    """

    DISCARDED = "discarded"
    REJECTED = "rejected"
    UNLISTED = "unlisted"
    REFUSED = "refused"
    NON_EXISTENT = "non_existent"
    NOT_PUBLISHED = "not_published"
    UNKNOWN = "unknown"
    TIMED_OUT = "timed_out"
    RESET = "reset"
    CONNECTION_LOST = "connection_lost"
    STALLED = "stalled"
    DEADLINE = "deadline"
    STOPPED = "stopped"


class BlockState(IntEnum):
    """State of one wanted block in one layer of one track."""

    PENDING = 0
    VERIFIED = 1
    REJECTED = 2
    NON_EXISTENT = 3
    UNKNOWN = 4
    TIMED_OUT = 5
    RESET = 6
    UNLISTED = 7


@dataclass(frozen=True, slots=True)
class MissingRun:
    """Blocks [first, end) of one layer that are in one state other than VERIFIED."""

    layer_index: int
    first: int
    end: int
    state: BlockState


@dataclass(slots=True)
class _Row:
    states: bytearray
    digests: bytearray
    verified: int = 0
    unlisted: int = 0
    confirmed: bool = False


class TrackLedger:
    """The wanted blocks of one data track.

    Args:
        layers: Wanted layer indexes, ascending.
        blocks: Wanted blocks of the segment: 0..blocks-1.
    """

    __slots__ = ("_remaining", "_rows", "_unlisted", "blocks")

    def __init__(self, layers: Sequence[int], blocks: int) -> None:
        self.blocks = blocks
        self._rows = {layer: _Row(bytearray(blocks), bytearray()) for layer in layers}
        self._remaining = len(self._rows) * blocks
        self._unlisted = 0

    def __repr__(self) -> str:
        return f"<TrackLedger {len(self._rows)} layers x {self.blocks}, {self._remaining} missing>"

    @property
    def remaining(self) -> int:
        """Wanted Objects that are not verified."""
        return self._remaining

    @property
    def lacking(self) -> int:
        """Wanted Objects that are to be asked for: neither verified nor unlisted."""
        return self._remaining - self._unlisted

    @property
    def wanted(self) -> int:
        """Wanted Objects, verified or not."""
        return len(self._rows) * self.blocks

    @property
    def layers(self) -> tuple[int, ...]:
        """Wanted layer indexes, ascending."""
        return tuple(self._rows)

    def is_wanted(self, layer_index: int, block_index: int) -> bool:
        """Tell whether the block is wanted in that layer."""
        return layer_index in self._rows and 0 <= block_index < self.blocks

    def digest(self, layer_index: int, block_index: int) -> bytes | None:
        """Return the digest of a verified block, or None while it is not verified."""
        row = self._rows[layer_index]
        if row.states[block_index] != BlockState.VERIFIED:
            return None
        start = block_index * DIGEST_BYTES
        return bytes(row.digests[start : start + DIGEST_BYTES])

    def accept(self, layer_index: int, block_index: int, digest: bytes) -> bool:
        """Record a verified block; return True when its layer is now whole.

        The block must be wanted and not verified yet.
        """
        row = self._rows[layer_index]
        assert row.states[block_index] not in _SETTLED
        row.states[block_index] = BlockState.VERIFIED
        if not row.digests:
            row.digests.extend(bytes(self.blocks * DIGEST_BYTES))
        start = block_index * DIGEST_BYTES
        row.digests[start : start + DIGEST_BYTES] = digest
        row.verified += 1
        self._remaining -= 1
        return row.verified == self.blocks

    def mark(self, layer_index: int, blocks: range, state: BlockState) -> None:
        """Record why blocks of a layer are missing; those that have come are left alone."""
        row = self._rows.get(layer_index)
        if row is None:
            return
        place = slice(max(blocks.start, 0), max(min(blocks.stop, self.blocks), 0))
        row.states[place] = row.states[place].translate(_MARKS[state])

    def await_list(self, layer_index: int, block_index: int) -> bool:
        """Record a block that no signed manifest lists yet; return True when nothing else lacks."""
        row = self._rows[layer_index]
        assert row.states[block_index] not in _SETTLED
        row.states[block_index] = BlockState.UNLISTED
        row.unlisted += 1
        self._unlisted += 1
        return row.verified + row.unlisted == self.blocks

    def take_unlisted(self, layer_index: int) -> list[int]:
        """Return the blocks of a layer that awaited a list; they are missing again."""
        row = self._rows.get(layer_index)
        if row is None or not row.unlisted:
            return []
        blocks = [i for i, state in enumerate(row.states) if state == BlockState.UNLISTED]
        for block_index in blocks:
            row.states[block_index] = BlockState.PENDING
        self._unlisted -= row.unlisted
        row.unlisted = 0
        return blocks

    def is_unlisted(self, layer_index: int, block_index: int) -> bool:
        """Tell whether a block awaits a list."""
        return self._rows[layer_index].states[block_index] == BlockState.UNLISTED

    def is_lacking(self, layer_index: int) -> bool:
        """Tell whether anything of the layer is to be asked for."""
        row = self._rows[layer_index]
        return row.verified + row.unlisted < self.blocks

    def is_whole(self, layer_index: int) -> bool:
        """Tell whether every wanted block of the layer is verified."""
        return self._rows[layer_index].verified == self.blocks

    def missing(self) -> Iterator[MissingRun]:
        """Yield what is not verified as runs of one state, by layer and block."""
        for layer_index in self._rows:
            yield from self.missing_of(layer_index)

    def missing_of(self, layer_index: int) -> Iterator[MissingRun]:
        """Yield what is not verified of one wanted layer."""
        row = self._rows[layer_index]
        if row.verified == self.blocks:
            return
        # A copy, since whoever takes a run may change what comes after it.
        for run in _RUN.finditer(bytes(row.states)):
            if (state := run[0][0]) != BlockState.VERIFIED:
                yield MissingRun(layer_index, run.start(), run.end(), BlockState(state))

    def holes(self) -> Iterator[tuple[int, range]]:
        """Yield (layer index, blocks) of every run that is to be asked for."""
        pending: tuple[int, range] | None = None
        for run in self.missing():
            if run.state is BlockState.UNLISTED:
                continue
            if pending and pending[0] == run.layer_index and pending[1].stop == run.first:
                pending = (run.layer_index, range(pending[1].start, run.end))
                continue
            if pending:
                yield pending
            pending = (run.layer_index, range(run.first, run.end))
        if pending:
            yield pending

    def verified_prefix(self) -> int:
        """Return the greatest m such that blocks 0..m-1 are verified in every wanted layer."""
        return min((_leading(row.states) for row in self._rows.values()), default=self.blocks)

    def confirm(self, layer_index: int, listed: Sequence[bytes]) -> None:
        """Compare the verified blocks of a layer with the digests that a manifest lists.

        Blocks that are verified later must be compared by whoever verifies them.

        Raises:
            IntegrityError: A verified block has another digest than the listed one.
        """
        row = self._rows.get(layer_index)
        if row is None or row.confirmed:
            return
        digests = bytearray().join(listed[: self.blocks])
        if row.verified and digests != row.digests:
            self._compare(layer_index, row, digests)
        row.confirmed = True

    def _compare(self, layer_index: int, row: _Row, digests: bytearray) -> None:
        for block_index in range(self.blocks):
            place = slice(block_index * DIGEST_BYTES, (block_index + 1) * DIGEST_BYTES)
            verified = row.states[block_index] == BlockState.VERIFIED
            if verified and digests[place] != row.digests[place]:
                raise IntegrityError(
                    "contradiction",
                    f"the manifest lists another digest for layer {layer_index}, block "
                    f"{block_index} than the one that was accepted",
                )

    def unconfirmed(self) -> int:
        """Return how many wanted layers no manifest has listed yet."""
        return sum(not row.confirmed for row in self._rows.values())


# Blocks of one state, found in the time that a memory scan takes.
_RUN: Final = re.compile(b"|".join(b"\\x%02x++" % state for state in BlockState))
# What each state becomes when a block is marked: blocks that have come stay as they are.
_MARKS: Final = {
    mark: bytes(
        state if state in (BlockState.VERIFIED, BlockState.UNLISTED) else mark
        for state in range(256)
    )
    for mark in BlockState
}
_SETTLED: Final = (BlockState.VERIFIED, BlockState.UNLISTED)


def _leading(states: bytearray) -> int:
    return len(states) - len(states.lstrip(b"\x01"))
