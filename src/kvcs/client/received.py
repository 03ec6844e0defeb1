"""The prefix that a retrieval is after: what is planned, what has come, what it amounts to.

Theory of operation. `ReceivedPrefix` turns manifests into intakes, one per data track, and notes
when layers become whole. It asks nobody for anything: `kvcs.client.retrieval` does, and reads
here what is left to ask for.

A layer is usable on the digests that its Objects carry, since the manifest lists a layer only
some layers later; where authenticity is demanded, it is usable when a signed manifest lists it.
The prefix is done only when the manifest has caught up: digests that are listed later are compared
with what was accepted, and a contradiction discards the whole publication. Segments whose complete
manifest lists no digests need no confirmation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvcs.client.config import ConsumerConfig
from kvcs.client.intake import IntakeContext, TrackIntake
from kvcs.client.ledger import MissingReason
from kvcs.client.memory import Memory, Placement
from kvcs.client.selection import Prefix, WantedSegment
from kvcs.client.unlisted import UnlistedObjects
from kvcs.client.verdict import (
    Counters,
    LayerArrival,
    MissingRange,
    Verdict,
    missing_ranges,
    verified_prefix,
)
from kvcs.errors import ConfigError, DataError, KvcsError, NotAuthentic
from kvcs.kv.layout import Layout
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import Component, PublicationName

__all__ = ("Layer", "Outcome", "ReceivedPrefix", "Wish")


@dataclass(frozen=True, slots=True)
class Layer:
    """A usable layer: keys and values of all wanted blocks, verified.

    Attributes:
        layer_index: Layer index.
        k: Keys, ``[tokens, kv_heads, head_dim]``, C order, little-endian, as octets.
        v: Values, likewise.
    """

    layer_index: int
    k: memoryview
    v: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the caller wants of a publication, and how long it is willing to wait.

    Attributes:
        prefix: Which blocks.
        layers: Wanted layer indexes, ascending; None for all.
        memory: Where Data goes.
        timeout: Seconds for the whole retrieval.
        idle_timeout: Seconds without a newly verified Object after which recovery starts; None
            waits for the timeout alone.
        check: Checks a manifest against the name of its publication; raises DataError.
    """

    prefix: Prefix
    layers: tuple[int, ...] | None
    memory: Memory
    timeout: float
    idle_timeout: float | None
    check: Callable[[Manifest, PublicationName], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the asking ended.

    Attributes:
        cause: Why it ended, for blocks about which nothing else is known.
        given_up: Why single tracks were given up.
        error: What ended it early, or None.
        signed_by: Who signed the manifest, where that was demanded.
    """

    cause: MissingReason
    given_up: Mapping[TrackIntake, MissingReason]
    error: KvcsError | None
    signed_by: bytes | None = None


class ReceivedPrefix:
    """State of the wanted prefix.

    Args:
        wish: What is wanted.
        config: Settings of the consumer.
        clock: Gives monotonic seconds; the retrieval starts now.
        on_change: Called after every change that anybody may wait for.

    Attributes:
        layers: Wanted layer indexes, ascending; known with the first manifest.
        usable: The layers that are usable.
        discarded: Why the publication contradicts itself, or None.
        counters: Counts of Objects.
        started: When the retrieval started.
        last_progress: When a block was verified last.
    """

    def __init__(
        self,
        wish: Wish,
        config: ConsumerConfig,
        *,
        clock: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self.layers: tuple[int, ...] = ()
        self.usable: dict[int, Layer] = {}
        self.discarded: DataError | None = None
        self.counters = Counters()
        self.started = self.last_progress = clock()
        self._wish = wish
        self._config = config
        self._clock = clock
        self._on_change = on_change
        self._prefix = wish.prefix
        self._context: IntakeContext | None = None
        self._segments: list[tuple[WantedSegment, tuple[TrackIntake, ...]]] = []
        self._arrivals: list[LayerArrival] = []
        self._unlisted: UnlistedObjects | None = None
        if config.trusted_producers is not None:
            self._unlisted = UnlistedObjects(config.max_unlisted_bytes)

    @property
    def blocks(self) -> int:
        """Wanted blocks; 0 before the first manifest unless the caller said."""
        return self._prefix.blocks or 0

    @property
    def intakes(self) -> list[TrackIntake]:
        """The intakes of all tracks that are planned."""
        return [intake for _, intakes in self._segments for intake in intakes]

    # Planning.

    def take_manifest(self, manifest: Manifest) -> None:
        """Plan what the manifest newly lists, and compare what it says with what was accepted.

        Raises:
            IntegrityError: It lists another digest than an accepted block has.
            KeyMismatch: The publication is of other tokens.
            UnsupportedEncoding: A newly listed segment cannot be read.
            ConfigError: The wish does not fit the model, or the budget of memory.
            LayoutMismatch: The caller's memory does not fit.
        """
        for intake in self.intakes:
            intake.take_manifest(manifest)
        wanted = self._prefix.segments(manifest)
        if self._config.trusted_producers is not None:
            _check_listed(manifest, wanted)
        context = self._context or self._prepare(manifest, wanted)
        for segment in wanted[len(self._segments) :]:
            intakes = tuple(
                TrackIntake(context, segment, name, layers=self.layers, manifest=manifest)
                for name in segment.tracks
            )
            self._segments.append((segment, intakes))
        self._on_change()

    def discard(self, error: DataError) -> None:
        """Note that nothing of the publication may be used."""
        if self.discarded is None:
            self.discarded = error
            self.usable.clear()
            self._on_change()

    def close(self) -> None:
        """Take nothing any more: the memory is the caller's again."""
        if self._context is not None:
            self._context.placement.close()
        if self._unlisted is not None:
            self._unlisted.clear()

    def _prepare(self, manifest: Manifest, wanted: Sequence[WantedSegment]) -> IntakeContext:
        """Fix layers, blocks and memory by the first manifest."""
        layout = Layout(manifest.compat)
        layers = self._wish.layers
        self.layers = tuple(range(layout.layers)) if layers is None else layers
        if not 0 <= self.layers[0] <= self.layers[-1] < layout.layers:
            raise ConfigError("layers", f"0..{layout.layers - 1}", str(self.layers[-1]))
        if self._prefix.blocks is None:
            blocks = sum(segment.wanted_blocks for segment in wanted)
            self._prefix = replace(self._prefix, blocks=blocks)
        size = self.blocks * sum(layout.data_bytes(Component.KV, layer) for layer in self.layers)
        if size > self._config.max_memory_bytes:
            expected = f"at least {size} octets for this retrieval"
            raise ConfigError("max_memory_bytes", expected, str(self._config.max_memory_bytes))
        self._context = IntakeContext(
            layout=layout,
            placement=Placement(self._wish.memory, layout, layers=self.layers, blocks=self.blocks),
            counters=self.counters,
            unlisted=self._unlisted,
            on_unlisted=self._on_unlisted,
            on_verified=self._on_verified,
            on_discard=self.discard,
        )
        return self._context

    # What has come.

    def _on_verified(self, layer_index: int, is_whole: bool) -> None:  # noqa: FBT001 - a callback
        self.last_progress = self._clock()
        if not is_whole:
            return
        if layer_index not in self.usable and self._is_usable(layer_index):
            self.usable[layer_index] = Layer(
                layer_index,
                self._view(Component.K, layer_index),
                self._view(Component.V, layer_index),
            )
            seconds = self.last_progress - self.started
            self._arrivals.append(LayerArrival(layer_index=layer_index, seconds=seconds))
        self._on_change()

    def _on_unlisted(self, is_whole: bool) -> None:  # noqa: FBT001 - a callback
        self.last_progress = self._clock()
        if is_whole:
            self._on_change()

    def _view(self, component: Component, layer_index: int) -> memoryview:
        assert self._context is not None
        return self._context.placement.view(component, layer_index).toreadonly()

    def _is_usable(self, layer_index: int) -> bool:
        return (
            self.discarded is None
            and not self._unplanned_blocks
            and all(intake.ledger.is_whole(layer_index) for intake in self.intakes)
        )

    @property
    def is_done(self) -> bool:
        """Nothing is left to ask anyone."""
        if self.discarded is not None:
            return True
        has_everything = not any(intake.ledger.remaining for intake in self.intakes)
        return has_everything and not self._unplanned_blocks and not self._unconfirmed_layers

    @property
    def unlisted_objects(self) -> int:
        """Objects that came and await the list of a signed manifest."""
        return sum(intake.ledger.remaining - intake.ledger.lacking for intake in self.intakes)

    @property
    def _unplanned_blocks(self) -> int:
        return self.blocks - sum(segment.wanted_blocks for segment, _ in self._segments)

    @property
    def _unconfirmed_layers(self) -> int:
        return sum(intake.ledger.unconfirmed() for intake in self.intakes if not intake.is_unlisted)

    # The verdict.

    def judge(self, outcome: Outcome) -> Verdict:
        """Say what has come, what is missing and why."""
        ledgers = [[intake.ledger for intake in intakes] for _, intakes in self._segments]
        counters = self.counters
        return Verdict(
            complete=self.discarded is None and self.is_done,
            missing=tuple(self._discarded_ranges() if self.discarded else self._missing(outcome)),
            verified_prefix_blocks=0 if self.discarded else verified_prefix(ledgers),
            unconfirmed_layers=self._unconfirmed_layers,
            error=self.discarded or outcome.error,
            verified=counters.verified,
            rejected=dict(counters.rejected),
            duplicate=counters.duplicate,
            excess=counters.excess,
            padding=counters.padding,
            missing_objects=self._missing_objects(),
            verified_bytes=counters.verified_bytes,
            payload_bytes=counters.payload_bytes,
            arrivals=tuple(self._arrivals),
            elapsed_s=self._clock() - self.started,
            signed_by=outcome.signed_by,
            sealed=self._config.object_keys is not None,
        )

    def _missing_objects(self) -> int:
        unplanned = 2 * self._unplanned_blocks * len(self.layers)
        return unplanned + sum(
            intake.ledger.wanted if self.discarded else intake.ledger.remaining
            for intake in self.intakes
        )

    def _discarded_ranges(self) -> list[MissingRange]:
        return [
            _range(segment.segment, layer_index, segment.wanted_blocks, MissingReason.DISCARDED)
            for segment, _ in self._segments
            for layer_index in self.layers
        ]

    def _missing(self, outcome: Outcome) -> list[MissingRange]:
        ranges: list[MissingRange] = []
        for segment, intakes in self._segments:
            pending = [outcome.given_up.get(intake, outcome.cause) for intake in intakes]
            ledgers = [intake.ledger for intake in intakes]
            ranges += missing_ranges(segment.segment, ledgers, pending)
        if unplanned := self._unplanned_blocks:
            number = len(self._segments)
            ranges += (_range(number, layer, unplanned, outcome.cause) for layer in self.layers)
        return ranges


def _check_listed(manifest: Manifest, wanted: Sequence[WantedSegment]) -> None:
    """Check that a segment that will change no more lists the digests of what is wanted of it.

    Raises:
        NotAuthentic: It does not, so that nothing of it could ever be used.
    """
    for one in wanted:
        segment = manifest.segments[one.segment]
        if segment.complete and not segment.object_digests.keys() >= set(map(str, one.tracks)):
            raise NotAuthentic(
                "unlisted", f"the signed manifest lists no digests of segment {one.segment}"
            )


def _range(segment: int, layer_index: int, blocks: int, reason: MissingReason) -> MissingRange:
    return MissingRange(segment=segment, layer=layer_index, first=0, end=blocks, reason=reason)
