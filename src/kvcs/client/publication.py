"""One publication: its life from the first segment to the last delivery.

Theory of operation. Nothing is announced before segment 0 is known, since its last Block Key
names the publication. Then the manifest's version 0 and the tracks exist first, and
PUBLISH_NAMESPACE goes out; from then on every listed track takes SUBSCRIBE. Layers follow as the
engine computes them. `complete` ends the manifest track; leaving the block waits a while for
deliveries under way and withdraws the namespace. Leaving it otherwise aborts: streams are reset
and no End of Track is sent, so that nobody takes a part for the whole.

A large manifest version is written in a thread, and published together with what it lists. One
change of the manifest waits for the one before.

Nothing is ever dropped for a slow subscriber. `publish_layer` waits for the slowest one, at most
`send_timeout`, while it is more than `max_unsent_bytes` behind; what is held counts against
`max_held_bytes`, and a layer that does not fit is an error to the caller, with nothing of it
published.

Source:
    KVCS, "Publisher Behavior".
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from kvcs.client.config import Hold, PublisherConfig
from kvcs.client.manifest_draft import ManifestDraft
from kvcs.client.published import LayerPayloads, PublishedTrack, PublishedTracks
from kvcs.client.segment import PublishedSegment
from kvcs.client.serving import PATIENCE, Serving
from kvcs.errors import (
    ConfigError,
    DataError,
    KvcsError,
    LocalProtocolError,
    PublishDoneCode,
)
from kvcs.kv.identity import BlockKey
from kvcs.kv.manifest import DEFAULT_LIMITS, Manifest
from kvcs.kv.naming import PublicationName
from kvcs.kv.segment import Segment
from kvcs.kv.signing import SIGNATURE_BYTES
from kvcs.kv.sizing import manifest_bytes, size_warnings
from kvcs.moqt.track.delivery import Delivery
from kvcs.moqt.track.store import TrackStore

__all__ = ("BudgetExceeded", "Host", "Publication")

_logger = logging.getLogger("kvcs.client")

# How often deliveries are looked at while somebody waits for them. A few wake-ups in the time of
# one layer cost nothing, and no layer waits noticeably longer than it must.
_LOOK_INTERVAL = 0.01


class BudgetExceeded(KvcsError):
    """A publication holds as much as it may, and nothing was published.

    Attributes:
        needed_bytes: Octets of the layer.
        held_bytes: Octets held.
        limit_bytes: The budget, `PublisherConfig.max_held_bytes`.
    """

    def __init__(self, needed_bytes: int, held_bytes: int, limit_bytes: int) -> None:
        super().__init__(needed_bytes, held_bytes, limit_bytes)
        self.needed_bytes = needed_bytes
        self.held_bytes = held_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return (
            f"a layer of {self.needed_bytes} octets does not fit: {self.held_bytes} of "
            f"{self.limit_bytes} octets are held; raise max_held_bytes or hold less"
        )


class Host(Protocol):
    """The publisher, as its publications need it."""

    @property
    def servings(self) -> Sequence[Serving]:
        """The connections that are served now."""
        ...

    def name_of(self, anchor_key: BlockKey) -> PublicationName:
        """Return a new name with a random Publication ID."""
        ...

    def add(self, publication: "Publication") -> None:
        """Offer a publication to all peers, present and future."""
        ...

    def remove(self, publication: "Publication") -> None:
        """Stop offering a publication."""
        ...


class Publication:
    """A publication in the making; an async context manager.

    Args:
        host: The publisher.
        manifest: The manifest without segments.
        keys: Block Keys of all complete blocks of the tokens.
        config: Settings of the publisher.
    """

    def __init__(
        self, host: Host, manifest: Manifest, keys: Sequence[BlockKey], config: PublisherConfig
    ) -> None:
        self.config = config
        self._host = host
        self._manifest = manifest
        self._keys = tuple(keys)
        self._tracks: PublishedTracks | None = None
        self._is_announced = False
        self._is_over = False
        self._warned: set[str] = set()
        self._changing = asyncio.Lock()
        self._group = asyncio.TaskGroup()
        self._keeper: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        if self._tracks is None:
            return "<Publication without segments>"
        return f"<Publication {self._tracks.name.short_id} {self._tracks.held_bytes} octets>"

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._keeper = self._group.create_task(self._keep(), name="hold policy")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc is None and self._is_complete:
                await self._drain()
            else:
                if exc is None:
                    self._warn_of_an_early_end()
                self.abort()
            self._close()
        finally:
            if self._keeper is not None:
                self._keeper.cancel()
            # The caller's own error is the caller's: it must not come back in a group.
            if isinstance(exc, asyncio.CancelledError):
                await self._group.__aexit__(exc_type, exc, traceback)
            else:
                await self._group.__aexit__(None, None, None)

    # What it is.

    @property
    def tracks(self) -> PublishedTracks:
        """What has been published.

        Raises:
            LocalProtocolError: There is no segment yet, or the publication is over.
        """
        if self._tracks is None or self._is_over:
            raise LocalProtocolError("the publication has no segment yet, or is over")
        return self._tracks

    @property
    def name(self) -> PublicationName:
        """The identifiers; known once there is a segment."""
        if self._tracks is None:
            raise LocalProtocolError("a publication is named by the blocks of its first segment")
        return self._tracks.name

    @property
    def manifest(self) -> Manifest:
        """What the next manifest version will say."""
        return self._manifest if self._tracks is None else self._tracks.manifest

    @property
    def block_keys(self) -> tuple[BlockKey, ...]:
        """Block Keys of the blocks that segments cover so far, for an index."""
        return self._keys[: self.manifest.blocks]

    @property
    def blocks_left(self) -> int:
        """Blocks of the tokens that no segment covers yet."""
        return len(self._keys) - self.manifest.blocks

    # Publishing.

    async def add_segment(self, blocks: int | None = None) -> PublishedSegment:
        """Add the segment of one prefill pass; the first one announces the publication.

        Args:
            blocks: Complete blocks of the pass; a block that the pass began and did not finish
                belongs to the next segment. None for all that are left.

        Raises:
            DataError: The tokens have no such blocks.
            ConfigError: Its manifest would be larger than consumers accept.
            LocalProtocolError: The publication is over.
            RequestFailed: No relay accepted the announcement.
        """
        async with self._changing:
            segment = await self._add_segment(blocks)
        if not self._is_announced:
            self._is_announced = True
            await self._announce(self.tracks.name)
        return PublishedSegment(
            self, segment.segment, first_block=segment.first_block, blocks=segment.blocks
        )

    async def _add_segment(self, blocks: int | None) -> Segment:
        count = self.blocks_left if blocks is None else blocks
        if not 1 <= count <= self.blocks_left:
            raise DataError(
                f"a segment of {count} blocks, and {self.blocks_left} complete ones are left"
            )
        self._check_running()
        first = self.manifest.blocks
        segments = [segment.blocks for segment in self.manifest.segments]
        self._check_manifest_size(sum(map(self.config.objects_of, (*segments, count))))
        keys = self._keys[first : first + count]
        tracks = self._tracks
        if tracks is None:
            tracks = PublishedTracks(self._host.name_of(keys[-1]), self._manifest, self.config)
        draft = await self._written(tracks, tracks.with_segment(keys))
        self._check_running()
        if self._tracks is None:
            self._tracks = tracks
            self._host.add(self)
            self._push([tracks.manifest_track])
        segment = tracks.add_segment(draft.manifest)
        self._warn(tracks)
        self._push(tracks.data_tracks(segment.segment))
        tracks.publish_manifest(draft, now=self._now)
        self._wake()
        return segment

    async def publish_layer(self, segment: int, layer_index: int, payloads: LayerPayloads) -> None:
        """Put a layer into the stores; `PublishedSegment.publish_layer` is the way to call it."""
        async with self._changing:
            tracks, draft = self.tracks, None
            if tracks.is_version_due(layer_index):
                manifest = tracks.with_layer(segment, layer_index, payloads)
                draft = await self._written(tracks, manifest)
            # The publication may be over meanwhile.
            tracks = self.tracks
            tracks.add_layer(segment, layer_index, payloads, now=self._now, draft=draft)
        if layer_index + 1 == tracks.layout.layers:
            for track in tracks.data_tracks(segment):
                self._end(track, PublishDoneCode.TRACK_ENDED)
        self._release()
        self._wake()

    async def _written(self, tracks: PublishedTracks, manifest: Manifest) -> ManifestDraft:
        """Draft the next version and write it, in a thread when it is large."""
        draft = tracks.draft(manifest)
        if draft.is_large:
            await asyncio.get_running_loop().run_in_executor(None, draft.write)
        else:
            draft.write()
        return draft

    def _check_running(self) -> None:
        if self._is_over or (self._tracks is not None and self._tracks.manifest_track.is_ended):
            raise LocalProtocolError("the publication is over")

    async def make_room(self, size: int) -> None:
        """Wait until a layer of `size` octets may be published.

        Raises:
            BudgetExceeded: It does not fit, and waiting did not help.
        """
        await self._until(
            lambda: self._fits(size) and self._unsent_bytes <= self.config.max_unsent_bytes,
            self.config.send_timeout if self._can_wait(size) else 0.0,
        )
        if not self._fits(size):
            held = self.tracks.held_bytes
            raise BudgetExceeded(size, held, self.config.max_held_bytes)

    async def complete(self) -> None:
        """Say that no further segment will come.

        Raises:
            LocalProtocolError: A segment lacks layers.
        """
        tracks = self.tracks
        tracks.end_manifest()
        self._end(tracks.manifest_track, PublishDoneCode.TRACK_ENDED)

    def abort(self) -> None:
        """End the publication at once: streams are reset, and there is no End of Track."""
        if self._tracks is not None and not self._is_over:
            for track in self._tracks.tracks.values():
                self._end(track, PublishDoneCode.INTERNAL_ERROR, drain=False)
        self._close()

    async def wait_delivered(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - a result
        """Wait until all of a complete publication was delivered; False at the timeout.

        A data track is delivered when the subscriptions, fills and fetches that one peer has
        taken bring all its Objects together: a relay subscribes to what is to come and fetches
        what came before. And nobody has asked for or taken anything for `settle_time`.
        """
        return await self._until(self._has_delivered, timeout)

    # How it is kept.

    @property
    def _is_complete(self) -> bool:
        return self._tracks is not None and self._tracks.manifest_track.is_ended

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def announce_to(self, serving: Serving) -> None:
        """Announce and push to a peer that came later, or came back."""
        if self._tracks is None or self._is_over or not self._is_announced:
            return
        serving.tell(self._tracks.name.namespace())
        if not serving.announces:
            return
        serving.send_announcement(self._tracks.name.namespace())
        if self.config.push:
            for track in self._tracks.tracks.values():
                if not track.is_ended:
                    serving.push(track)

    async def _announce(self, name: PublicationName) -> None:
        """Announce to all peers; fail only if every relay refused."""
        namespace = name.namespace()
        for serving in self._host.servings:
            serving.tell(namespace)
        relays = [serving for serving in self._host.servings if serving.announces]
        answers = await asyncio.gather(
            *(serving.announce(namespace) for serving in relays), return_exceptions=True
        )
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in errors:
            if not isinstance(error, KvcsError):
                raise error
        if errors and len(errors) == len(relays):
            raise errors[0]
        for error in errors:
            _logger.warning("publication not announced: %s", error)

    def _push(self, tracks: Sequence[PublishedTrack]) -> None:
        """Send PUBLISH before the first Object of a track, so that none is missed."""
        if self.config.push:
            for serving in self._host.servings:
                if serving.announces:
                    for track in tracks:
                        serving.push(track)

    def _end(self, track: PublishedTrack, code: PublishDoneCode, *, drain: bool = True) -> None:
        for serving in self._host.servings:
            serving.end(track, code, drain=drain)

    def _wake(self) -> None:
        for serving in self._host.servings:
            serving.connection.wake()

    def _close(self) -> None:
        """Withdraw the namespace and forget all Objects."""
        if self._is_over:
            return
        self._is_over = True
        self._host.remove(self)
        if self._tracks is not None:
            for serving in self._host.servings:
                serving.withdraw(self._tracks.name.namespace())
            for track in self._tracks.tracks.values():
                self._end(track, PublishDoneCode.INTERNAL_ERROR, drain=False)
                track.store.drop_all()
            _logger.info(
                "publication %s %s: %d segments, %d blocks",
                self._tracks.name,
                "completed" if self._is_complete else "aborted",
                len(self._tracks.manifest.segments),
                self._tracks.manifest.blocks,
            )

    def _deliveries(self, store: TrackStore) -> Iterator[Delivery]:
        for serving in self._host.servings:
            yield from serving.deliveries(store)

    def _release(self) -> None:
        if self._tracks is not None:
            self._tracks.release(self._deliveries)

    @property
    def _unsent_bytes(self) -> int:
        tracks = self.tracks
        return max(
            (
                tracks.unsent_bytes(track, self._deliveries(track.store))
                for track in tracks.tracks.values()
            ),
            default=0,
        )

    def _fits(self, size: int) -> bool:
        if self.tracks.held_bytes + size > self.config.max_held_bytes:
            self._release()
        return self.tracks.held_bytes + size <= self.config.max_held_bytes

    def _can_wait(self, size: int) -> bool:
        """Tell whether waiting can help: nothing is ever freed of what is held for good."""
        return self.config.hold is not Hold.ALL or self._fits(size)

    def _has_delivered(self) -> bool:
        """The manifest goes out before the data that it lists, so the data tracks tell."""
        if self._tracks is None or not self._is_complete:
            return False
        tracks, servings = self._tracks, self._host.servings
        for serving in servings:
            serving.note_delivered()
        return all(map(self._has_settled, servings)) and all(
            track.is_delivered
            for segment in tracks.manifest.segments
            for track in tracks.data_tracks(segment.segment)
        )

    def _has_settled(self, serving: Serving) -> bool:
        """Tell whether no more is to be expected of a peer that has everything.

        What it asks next it asks after our answer has reached it, and that reaches us: on a long
        way, or when it is busy, it cannot be quicker than it was before.
        """
        pause = max(self.config.settle_time, min(2 * serving.reaction_time, PATIENCE))
        return self._now - serving.last_news >= pause

    def _is_idle(self) -> bool:
        assert self._tracks is not None
        return not any(
            True for track in self._tracks.tracks.values() for _ in self._deliveries(track.store)
        )

    async def _drain(self) -> None:
        """Let deliveries under way finish, in bounded time."""
        if not await self._until(self._is_idle, self.config.drain_timeout):
            _logger.warning("%r closed before everything under way was delivered", self)

    async def _keep(self) -> None:
        """Drop what is no longer held, also while nothing is published."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL * 10)
            self._release()

    async def _until(self, condition: Callable[[], bool], timeout: float | None) -> bool:  # noqa: ASYNC109
        """Look at deliveries until `condition` holds; return False at the timeout."""
        deadline = None if timeout is None else self._now + timeout
        while not condition():
            if deadline is not None and self._now >= deadline:
                return False
            await asyncio.sleep(_LOOK_INTERVAL)
        return True

    def _check_manifest_size(self, blocks: int) -> None:
        """Refuse at once what no consumer could take, rather than when all is computed."""
        layers, limit = self._manifest.layers, DEFAULT_LIMITS.max_bytes
        size = manifest_bytes(layers, blocks, tracks=len(self.config.components))
        size += SIGNATURE_BYTES if self.config.signing_key is not None else 0
        if size > limit:
            got = f"{size} for {blocks} blocks of {layers} layers"
            raise ConfigError("block_tokens", f"a manifest of at most {limit} octets", got)

    def _warn_of_an_early_end(self) -> None:
        """Say what a caller forgot who leaves the block without an error."""
        if self._tracks is None or self._is_over:
            return
        layers = self._tracks.layout.layers
        lacking = [
            f"segment {segment.segment} lacks layers {first}..{layers - 1}"
            for segment in self._tracks.manifest.segments
            if (first := segment.listed_layers(segment.data_tracks())) < layers
        ]
        _logger.warning(
            "publication %s was left and is aborted: %s",
            self._tracks.name.short_id,
            ", ".join(lacking) or "all layers are there, but complete() was not called",
        )

    def _warn(self, tracks: PublishedTracks) -> None:
        count = len(self.config.components)
        for warning in size_warnings(tracks.layout, tracks.manifest.blocks, tracks=count):
            if warning not in self._warned:
                self._warned.add(warning)
                _logger.warning("%s", warning)
