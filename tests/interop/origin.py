"""A publisher of KVCS publications written on aiomoqt's session API.

It serves SUBSCRIBE with a fill, FETCH with range filters, and SUBSCRIBE_NAMESPACE. Its choices
on the wire are not those of our publisher: Subgroup IDs stand in the headers, and no header says
that its Subgroup holds the end of the Group.
"""

import asyncio
from dataclasses import dataclass, field

from aiomoqt.delivery import ObjectHistory
from aiomoqt.messages import LocationFilter
from aiomoqt.messages.params import RangeFilters
from aiomoqt.types import MOQTMessageType, ObjectStatus, RequestErrorCode, SubscribeDoneCode
from tests.interop.sites import BLOCKS, LAYERS, K, Prompt, V

from kvcs.kv import (
    MANIFEST,
    MANIFEST_PRIORITY,
    Manifest,
    PublicationId,
    PublicationName,
    Segment,
    block_keys_sha256,
    publisher_priority,
)
from kvcs.moqt.codepoints import PropertyType

__all__ = ("Origin",)

_PROPERTIES = {PropertyType.MAX_CACHE_DURATION: 60_000}
_HISTORY_BYTES = 2**26


@dataclass
class _Subscription:
    """One SUBSCRIBE that was accepted."""

    session: object
    request_id: int
    track_alias: int
    filled: asyncio.Future
    streams: int = 0
    is_cancelled: bool = False
    is_done: bool = False


@dataclass
class _Track:
    """What was published on one track."""

    history: ObjectHistory = field(default_factory=lambda: ObjectHistory(_HISTORY_BYTES))
    largest: tuple[int, int] | None = None
    ends: dict[int, int] = field(default_factory=dict)
    subscriptions: list[_Subscription] = field(default_factory=list)
    is_ended: bool = False


class Origin:
    """One publication of a prompt.

    Attributes:
        subscribed: SUBSCRIBEs that were accepted, by Track Name.
        fetched: FETCHes that were answered, likewise.
        handlers: For the aiomoqt client or server that carries it.
    """

    def __init__(self, prompt: Prompt) -> None:
        self.name = PublicationName(
            scope_id=prompt.scope_id,
            compatibility_id=prompt.compatibility_id,
            anchor_key=prompt.keys[-1],
            publication_id=PublicationId(bytes(16)),
        )
        self.namespace = self.name.namespace().fields
        self.subscribed: list[bytes] = []
        self.fetched: list[bytes] = []
        self.handlers = (
            (MOQTMessageType.SUBSCRIBE, self._answer_subscribe),
            (MOQTMessageType.FETCH, self._answer_fetch),
            (MOQTMessageType.SUBSCRIBE_NAMESPACE, self._answer_namespace),
        )
        segment = Segment(
            segment=0,
            first_block=0,
            blocks=BLOCKS,
            block_keys_sha256=block_keys_sha256(prompt.keys),
            tracks=(str(K), str(V)),
        )
        self._prompt = prompt
        self._manifest = Manifest(compat=prompt.descriptor).with_segment(segment)
        self._version = 0
        self._tracks = {name: _Track() for name in (MANIFEST, K.format(), V.format())}

    # Publishing.

    async def publish_manifest(self) -> None:
        """Publish the next version of the manifest."""
        payload = self._manifest.encode()
        await self._publish(MANIFEST, self._version, MANIFEST_PRIORITY, [payload])
        self._version += 1

    async def publish_layers(self, layers: range) -> None:
        """Publish layers and, after each, a version of the manifest."""
        for layer_index in layers:
            digests = {}
            for name in (K, V):
                blocks = [self._prompt.payload(name, layer_index, block) for block in range(BLOCKS)]
                digests[str(name)] = [digest for _, digest in blocks]
                await self._publish(
                    name.format(),
                    layer_index,
                    publisher_priority(layer_index, LAYERS),
                    [payload for payload, _ in blocks],
                    status=ObjectStatus.END_OF_GROUP,
                )
            segment = self._manifest.segments[0].with_layer(digests)
            if layer_index == LAYERS - 1:
                segment = segment.completed()
            self._manifest = self._manifest.with_segment(segment)
            await self.publish_manifest()

    async def end(self) -> None:
        """End all tracks."""
        for name in (K, V):
            await self._publish(name.format(), LAYERS, 128, [], status=ObjectStatus.END_OF_TRACK)
        for track in self._tracks.values():
            track.is_ended = True
            for subscription in track.subscriptions:
                await subscription.filled
                self._send_done(subscription)

    def _send_done(self, subscription: _Subscription) -> None:
        if not subscription.is_cancelled and not subscription.is_done:
            subscription.is_done = True
            subscription.session.subscribe_done(
                subscription.request_id,
                status_code=SubscribeDoneCode.TRACK_ENDED,
                stream_count=subscription.streams,
            )

    async def _publish(self, name, group_id, priority, payloads, *, status=None) -> None:
        """Publish one Group, and a status Object after its Objects."""
        track = self._tracks[name]
        subscriptions = tuple(track.subscriptions)
        for object_id, payload in enumerate(payloads):
            track.history.add(group_id, object_id, payload, priority=priority)
        last = len(payloads) - (status is None)
        track.largest, track.ends[group_id] = (group_id, last), last
        for subscription in subscriptions:
            if subscription.is_cancelled:
                continue
            subscription.streams += 1
            session = subscription.session
            stream_id = await session.open_uni_stream()
            header = session.subgroup_header(
                subscription.track_alias, group_id, publisher_priority=priority
            )
            await session.stream_write_drain(stream_id, header.serialize().data)
            for payload in payloads:
                await session.stream_write_drain(stream_id, header.next_object(payload).data)
            if status is not None:
                await session.stream_write_drain(stream_id, header.next_object(status=status).data)
            session.stream_fin(stream_id)

    # Answering.

    async def _answer_subscribe(self, session, msg) -> None:
        track = self._find(msg.track_namespace, msg.track_name)
        if track is None:
            session.subscribe_error(
                msg.request_id, error_code=RequestErrorCode.DOES_NOT_EXIST, reason="no such track"
            )
            return
        self.subscribed.append(msg.track_name)
        largest = track.largest
        # Largest, both filters and the place among the subscriptions are settled in one turn.
        assert (msg.location_filter or LocationFilter.none()).resolve(largest)[1] is None
        group_id, object_id = largest or (None, None)
        session.subscribe_ok(
            msg,
            content_exists=int(largest is not None),
            largest_group_id=group_id,
            largest_object_id=object_id,
            track_properties=_PROPERTIES,
        )
        filled = asyncio.get_running_loop().create_future()
        subscription = _Subscription(session, msg.request_id, msg.track_alias, filled)
        track.subscriptions.append(subscription)
        session.register_request_cancel_handler(
            msg.request_id, lambda _: setattr(subscription, "is_cancelled", True)
        )
        if await session.serve_fill(msg, track.history, largest) is not None:
            subscription.streams += 1
        filled.set_result(None)
        if track.is_ended:
            self._send_done(subscription)

    async def _answer_fetch(self, session, msg) -> None:
        track = self._find(msg.namespace, msg.track_name)
        if track is None or track.largest is None:
            code = (
                RequestErrorCode.DOES_NOT_EXIST if track is None else RequestErrorCode.INVALID_RANGE
            )
            session.fetch_error(msg.request_id, error_code=code, reason="nothing there")
            return
        self.fetched.append(msg.track_name)
        wanted = msg.location_filter or LocationFilter.none()
        start, (end_group, end_object) = wanted.resolve(track.largest, fetch=True)
        # An End Location before the start would end the session (Section 9.12).
        end = max(start, (end_group, min(end_object, track.ends[end_group])))
        # aiomoqt takes the End Location as exclusive and writes it as inclusive.
        session.fetch_ok(
            msg.request_id,
            largest_group_id=end[0],
            largest_object_id=end[1] + 1,
            track_extensions=_PROPERTIES,
        )
        admitted = RangeFilters.from_params(msg.parameters)
        objects = [
            obj
            for obj in track.history.fetch(start, end, session)
            if admitted.admits(obj.subgroup_id, obj.object_id, obj.publisher_priority, None)
        ]
        await session.serve_fetch(msg.request_id, objects, group_order=msg.group_order)

    async def _answer_namespace(self, session, msg) -> None:
        session.subscribe_namespace_ok(msg)
        prefix = tuple(msg.namespace_prefix)
        if self.namespace[: len(prefix)] == prefix:
            session.namespace(self.namespace[len(prefix) :], request_id=msg.request_id)

    def _find(self, namespace, name) -> _Track | None:
        return self._tracks.get(name) if tuple(namespace) == self.namespace else None
