"""The tracks of one publication as they lie in their stores, ready to be served.

Theory of operation. `PublishedTracks` is what a publication has published so far: one store for
the manifest and one for each data track, and the manifest itself. It decides nothing about time
or peers: layers come in order, are put into the stores with their status Objects, and make new
manifest versions due. A version may be drafted before the layer that it lists is published, so
that a thread writes it meanwhile; versions are published in the order of their drafts. What may be
dropped again follows from the hold policy and from what the deliveries still need.

Source:
    KVCS, "Groups", "Objects", "Manifest Track" and "Publisher Behavior".
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvcs.client.config import Hold, PublisherConfig
from kvcs.client.manifest_draft import ManifestDraft
from kvcs.errors import LocalProtocolError
from kvcs.kv.codecs import RAW
from kvcs.kv.identity import BlockKey, block_keys_sha256
from kvcs.kv.layout import Layout
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import (
    MANIFEST,
    MANIFEST_PRIORITY,
    SIGNED_MANIFEST,
    DataTrackName,
    PublicationName,
    publisher_priority,
)
from kvcs.kv.sealing import TrackSealer
from kvcs.kv.segment import Segment
from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.track.delivery import Delivery
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties

__all__ = ("LayerPayloads", "PublishedTrack", "PublishedTracks")

# For each data track the payload and Data Digest of each block, and then of each Object that is
# padding, whose digest goes nowhere.
type LayerPayloads = Mapping[DataTrackName, Sequence[tuple[bytes, bytes]]]

# End of Track says nothing about a layer, so it has the default priority.
_END_OF_TRACK_PRIORITY = 128


@dataclass(slots=True, eq=False)
class PublishedTrack:
    """One track of a publication.

    Attributes:
        store: Its Objects.
        sealer: Seals them, or None when they are published in clear.
        properties: Properties of each of its Objects.
        is_ended: Nothing more will be published on it.
        is_delivered: It is ended, and some peer has all of it.
        claimed: Groups that some delivery has needed.
    """

    store: TrackStore
    sealer: TrackSealer | None = None
    properties: Properties = EMPTY_PROPERTIES
    is_ended: bool = False
    is_delivered: bool = False
    claimed: set[int] = field(default_factory=set[int])


class PublishedTracks:
    """All tracks of one publication.

    Args:
        name: The publication.
        manifest: Its first state, without segments.
        config: Settings of the publisher.

    Attributes:
        manifest: What the next version will say.
        tracks: The tracks by Track Name.
    """

    def __init__(self, name: PublicationName, manifest: Manifest, config: PublisherConfig) -> None:
        self.name = name
        self.manifest = manifest
        self.layout = Layout(manifest.compat)
        self.tracks: dict[bytes, PublishedTrack] = {}
        self._config = config
        self._properties = _track_properties(config.max_cache_duration)
        self._next_version = 0
        self._payload_bytes: dict[tuple[PublishedTrack, int], int] = {}
        # A publication has exactly one manifest track.
        self._manifest_name = MANIFEST if config.signing_key is None else SIGNED_MANIFEST
        self._add_track(self._manifest_name)

    @property
    def manifest_track(self) -> PublishedTrack:
        """The track of the manifest, signed or not."""
        return self.tracks[self._manifest_name]

    @property
    def held_bytes(self) -> int:
        """Octets that the stores hold, with their bookkeeping."""
        return sum(track.store.size_bytes for track in self.tracks.values())

    def data_tracks(self, segment: int) -> list[PublishedTrack]:
        """Return the data tracks of a segment."""
        return [self.tracks[name.format()] for name in self.track_names(segment)]

    def track_names(self, segment: int) -> list[DataTrackName]:
        """Return the names of the data tracks of a segment, in order of the manifest."""
        return [
            DataTrackName(component, RAW.name, segment) for component in self._config.components
        ]

    def with_segment(self, keys: Sequence[BlockKey]) -> Manifest:
        """Return the manifest with the next segment, which covers the blocks of `keys`."""
        number = len(self.manifest.segments)
        segment = Segment(
            segment=number,
            first_block=self.manifest.blocks,
            blocks=len(keys),
            block_keys_sha256=block_keys_sha256(keys),
            tracks=tuple(map(str, self.track_names(number))),
        )
        return self.manifest.with_segment(segment)

    def add_segment(self, manifest: Manifest) -> Segment:
        """Add the last segment of `manifest`, of `with_segment`; no version is published."""
        self.manifest = manifest
        segment = manifest.segments[-1]
        for name in self.track_names(segment.segment):
            self._add_track(name.format())
        return segment

    def with_layer(self, segment: int, layer_index: int, payloads: LayerPayloads) -> Manifest:
        """Return the manifest with one more layer of a segment; arguments as of `add_layer`."""
        state = self.manifest.segments[segment]
        digests = {
            str(name): [digest for _, digest in blocks[: state.blocks]]
            for name, blocks in payloads.items()
        }
        state = state.with_layer(digests)
        is_last = layer_index + 1 == self.layout.layers
        return self.manifest.with_segment(state.completed() if is_last else state)

    def is_version_due(self, layer_index: int) -> bool:
        """Tell whether a manifest version goes with a layer."""
        completed = layer_index + 1
        return completed == self.layout.layers or self._config.cadence.due(completed)

    def add_layer(
        self,
        segment: int,
        layer_index: int,
        payloads: LayerPayloads,
        *,
        now: float,
        draft: ManifestDraft | None = None,
    ) -> None:
        """Publish one layer of a segment; a manifest version goes with it when one is due.

        Args:
            segment: Segment number.
            layer_index: The next layer of that segment.
            payloads: Its Objects.
            now: Monotonic seconds.
            draft: The version that is due, where it was drafted before.
        """
        if draft is None:
            manifest = self.with_layer(segment, layer_index, payloads)
        else:
            manifest = draft.manifest
        priority = publisher_priority(layer_index, self.layout.layers)
        for name, blocks in payloads.items():
            track = self.tracks[name.format()]
            for block_index, (payload, _) in enumerate(blocks):
                obj = Object(
                    group_id=layer_index,
                    object_id=block_index,
                    subgroup_id=0,
                    publisher_priority=priority,
                    properties=track.properties,
                    payload=payload,
                )
                track.store.add(obj, now=now)
            self._end_group(track, layer_index, len(blocks), priority, now=now)
            size = sum(len(payload) for payload, _ in blocks)
            self._payload_bytes[track, layer_index] = size
        self.manifest = manifest
        if layer_index + 1 == self.layout.layers:
            for track in self.data_tracks(segment):
                self._end_track(track, now=now)
        if self.is_version_due(layer_index):
            self.publish_manifest(draft, now=now)

    def draft(self, manifest: Manifest) -> ManifestDraft:
        """Draft the next version, under a number of its own."""
        version = self._next_version
        self._next_version += 1
        return ManifestDraft(
            manifest,
            self.name,
            version=version,
            config=self._config,
            sealer=self.manifest_track.sealer,
        )

    def publish_manifest(self, draft: ManifestDraft | None = None, *, now: float) -> int:
        """Publish a manifest version; return its octets.

        A version says all that the ones before said, so older ones are dropped as soon as
        nobody is owed them.

        Args:
            draft: The version, newer than those before; by default what `manifest` says.
            now: Monotonic seconds.
        """
        draft = draft or self.draft(self.manifest)
        track, payload = self.manifest_track, draft.write()
        obj = Object(
            group_id=draft.version,
            object_id=0,
            subgroup_id=0,
            publisher_priority=MANIFEST_PRIORITY,
            properties=track.properties,
            payload=payload,
        )
        track.store.add(obj, now=now)
        track.store.finish_subgroup(draft.version, 0, end_of_group=True, now=now)
        return len(payload)

    def end_manifest(self) -> None:
        """Note that no further version will come.

        Raises:
            LocalProtocolError: A segment lacks layers.
        """
        if not self.manifest.complete:
            raise LocalProtocolError("a publication is complete when all its segments are")
        self.manifest_track.is_ended = True

    def release(self, deliveries: Callable[[TrackStore], Iterator[Delivery]]) -> None:
        """Drop what the hold policy need not keep.

        Args:
            deliveries: Gives the unfinished deliveries from a store, over all peers.
        """
        largest = self.manifest_track.store.largest
        newest = 0 if largest is None else largest.group_id
        for track in self.tracks.values():
            is_manifest = track is self.manifest_track
            if self._config.hold is Hold.ALL and not is_manifest:
                continue
            waiting = tuple(deliveries(track.store))
            for group_id in track.store.groups():
                if group_id >= (newest if is_manifest else self.layout.layers):
                    break
                if any(delivery.needs(group_id) for delivery in waiting):
                    track.claimed.add(group_id)
                elif is_manifest or self._may_drop(track, group_id):
                    track.store.drop_group(group_id)

    def unsent_bytes(self, track: PublishedTrack, deliveries: Iterator[Delivery]) -> int:
        """Return the payload octets that the slowest delivery of a data track still needs."""
        groups = track.store.groups()
        return max(
            (
                sum(
                    self._payload_bytes.get((track, group_id), 0)
                    for group_id in groups
                    if delivery.needs(group_id)
                )
                for delivery in deliveries
            ),
            default=0,
        )

    def _may_drop(self, track: PublishedTrack, group_id: int) -> bool:
        return self._config.hold is Hold.NONE or group_id in track.claimed

    def _add_track(self, name: bytes) -> None:
        track = self.name.track(name)
        store = TrackStore(track, properties=self._properties, authoritative=True)
        published = self.tracks[name] = PublishedTrack(store)
        config = self._config
        if config.object_key is not None:
            # Layers are encoded in threads of whoever publishes them.
            sealer = TrackSealer(
                config.object_key,
                track,
                key_id_property=config.key_id_property,
                lock=threading.Lock(),
            )
            published.sealer = sealer
            immutable = (PropertyType.IMMUTABLE_PROPERTIES, sealer.immutable)
            published.properties = Properties.of(immutable)

    def _end_group(
        self, track: PublishedTrack, group_id: int, blocks: int, priority: int, *, now: float
    ) -> None:
        end = Object(
            group_id=group_id,
            object_id=blocks,
            subgroup_id=0,
            publisher_priority=priority,
            status=ObjectStatus.END_OF_GROUP,
        )
        track.store.add(end, now=now)
        track.store.finish_subgroup(group_id, 0, end_of_group=True, now=now)

    def _end_track(self, track: PublishedTrack, *, now: float) -> None:
        end = Object(
            group_id=self.layout.layers,
            object_id=0,
            subgroup_id=0,
            publisher_priority=_END_OF_TRACK_PRIORITY,
            status=ObjectStatus.END_OF_TRACK,
        )
        track.store.add(end, now=now)
        track.store.finish_subgroup(self.layout.layers, 0, end_of_group=True, now=now)
        track.is_ended = True


def _track_properties(max_cache_duration: float | None) -> Properties:
    if max_cache_duration is None:
        return EMPTY_PROPERTIES
    return Properties.of((PropertyType.MAX_CACHE_DURATION, round(max_cache_duration * 1000)))
