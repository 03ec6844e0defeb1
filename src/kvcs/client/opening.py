"""Opening sealed Objects, away from the event loop when there is enough of them to matter.

Theory of operation. An `Opening` belongs to one retrieval. Whole sealed Objects wait in it until
the end of the turn of the event loop that brought them. What came together is then opened as one
batch: in a thread if it is large, in the event loop otherwise. Whatever comes while a batch is in
the thread makes the next one, so that a hand-over costs as little as the load allows. Objects that
would exceed `ConsumerConfig.max_sealed_bytes` are opened at once, in the event loop, which then
takes no more from the network: memory is bounded, and the peer is slowed down.

Every Object that was handed in is answered, with its payload or with why there is none. A
`TrackOpening` is what one data track at one peer needs of it.

Source:
    KVCS, "Security Considerations"; draft-ietf-moq-secure-objects, "Object Processing".
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kvcs.client.config import ConsumerConfig
from kvcs.client.workspace import Workspace
from kvcs.errors import IntegrityError, KeyMissing
from kvcs.kv.payload import HEADER_BYTES
from kvcs.kv.sealing import ObjectKeys, SealedPayload, SealReason, TrackOpener
from kvcs.kv.sealing.suite import Octets
from kvcs.moqt.codepoints import PropertyType
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName

__all__ = (
    "BATCH_BYTES",
    "Opened",
    "Opening",
    "TrackOpening",
    "WaitingObject",
    "clear_payload",
    "key_id_of",
)

# Opened in one go. The memory of a batch is used again for the next one; larger batches need more
# of it than the processor's caches hold.
BATCH_BYTES: Final = 2**20


def key_id_of(properties: Properties, key_id_property: int) -> int | None:
    """Return the Key ID that an Object with these properties is sealed with, or None."""
    found = [value for number, value in properties.immutable_pairs if number == key_id_property]
    if len(found) != 1 or not isinstance(found[0], int):
        return None
    return found[0]


def _immutable(properties: Properties) -> bytes:
    """Return the Serialized Immutable Properties, empty without any."""
    for number, value in properties.pairs:
        if number == PropertyType.IMMUTABLE_PROPERTIES and isinstance(value, bytes):
            return value
    return b""


def clear_payload(obj: Object, opener: TrackOpener | None, key_id_property: int) -> Octets:
    """Return the payload of an Object that is opened at once, as manifests are.

    Args:
        obj: The Object.
        opener: Opens the Objects of its track; None when Objects are taken in clear.
        key_id_property: Type of the property that carries the Key ID.

    Raises:
        KeyMissing: It is sealed with a key that is not held.
        IntegrityError: It is not sealed and should be, or the seal is broken.
    """
    key_id = key_id_of(obj.properties, key_id_property)
    if opener is None:
        if key_id is not None:
            raise KeyMissing(key_id)
        return obj.payload
    try:
        return opener.open(_sealed(obj, key_id, _immutable(obj.properties), obj.payload))
    except IntegrityError as error:
        if error.reason == SealReason.UNKNOWN_KEY and key_id is not None:
            raise KeyMissing(key_id) from error
        raise


def _sealed(obj: Object, key_id: int | None, immutable: bytes, payload: Octets) -> SealedPayload:
    return SealedPayload(
        obj.group_id, obj.object_id, obj.publisher_priority, key_id, immutable, payload
    )


class Opened(NamedTuple):
    """The payload of an Object that was opened, and what was computed on the way.

    Attributes:
        payload: The payload, valid until it was answered with; views made of it stay so.
        digest: SHA-256 of what follows its header.
    """

    payload: memoryview
    digest: bytes


type _Outcome = Opened | IntegrityError


class WaitingObject(NamedTuple):
    """A sealed Object that is whole and not opened yet.

    Attributes:
        opener: Opens the Objects of its track.
        obj: The Object; its own payload is not looked at.
        key_id: Its Key ID.
        immutable: Its Serialized Immutable Properties.
        parts: Its payload, in order.
        size_bytes: Octets of the payload.
        on_opened: Takes the outcome, in the event loop.
    """

    opener: TrackOpener
    obj: Object
    key_id: int | None
    immutable: bytes
    parts: Sequence[Octets]
    size_bytes: int
    on_opened: Callable[[_Outcome], None]

    def open(self, workspace: Workspace) -> _Outcome:
        """Open it in memory of the workspace."""
        whole = workspace.join(self.parts, self.size_bytes)
        sealed = _sealed(self.obj, self.key_id, self.immutable, whole)
        try:
            payload = self.opener.open(sealed, workspace.buffer)
        except IntegrityError as error:
            return error
        return Opened(payload, hashlib.sha256(payload[HEADER_BYTES:]).digest())


def _open_all(batch: Sequence[WaitingObject], workspace: Workspace) -> list[_Outcome]:
    return [waiting.open(workspace) for waiting in batch]


class Opening:
    """Opens the sealed Objects of one retrieval.

    Args:
        config: Settings of the consumer.
        on_change: Called after Objects were opened.
    """

    def __init__(self, config: ConsumerConfig, on_change: Callable[[], None]) -> None:
        self._config = config
        self._on_change = on_change
        self._waiting: list[WaitingObject] = []
        self._sealed_bytes = 0
        self._is_scheduled = False
        self._is_busy = False
        self._workspace = Workspace()
        self._own_workspace = Workspace()

    def __repr__(self) -> str:
        return f"<Opening {len(self._waiting)} waiting, {self._sealed_bytes} octets>"

    def take(self, waiting: WaitingObject) -> None:
        """Open an Object soon."""
        if self._sealed_bytes + waiting.size_bytes > self._config.max_sealed_bytes:
            # The thread may be at work in the other workspace.
            outcome = waiting.open(self._own_workspace)
            waiting.on_opened(outcome)
            _give_back(outcome, self._own_workspace)
            return
        self._waiting.append(waiting)
        self._sealed_bytes += waiting.size_bytes
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled and not self._is_busy:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._open_batch)

    def _open_batch(self) -> None:
        """Open everything that waits; the thread has one batch at a time."""
        self._is_scheduled = False
        batch = self._next_batch()
        threshold = self._config.open_threshold_bytes
        if threshold is None or sum(waiting.size_bytes for waiting in batch) < threshold:
            self._answer(batch, _open_all(batch, self._workspace))
            self._schedule()
            return
        self._is_busy = True
        thread = asyncio.get_running_loop().run_in_executor(None, _open_all, batch, self._workspace)
        thread.add_done_callback(lambda done: self._finish(batch, done))

    def _next_batch(self) -> list[WaitingObject]:
        """Take what came first, not more than can use its memory again soon."""
        size_bytes, count = 0, 0
        for waiting in self._waiting:
            size_bytes += waiting.size_bytes
            count += 1
            if size_bytes >= BATCH_BYTES:
                break
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _finish(self, batch: Sequence[WaitingObject], done: asyncio.Future[list[_Outcome]]) -> None:
        self._is_busy = False
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._answer(batch, done.result())
        else:
            failed = IntegrityError(SealReason.SEAL, f"an Object could not be opened: {error!r}")
            self._answer(batch, [failed] * len(batch))
        self._schedule()

    def _answer(self, batch: Sequence[WaitingObject], outcomes: Sequence[_Outcome]) -> None:
        for waiting, outcome in zip(batch, outcomes, strict=True):
            self._sealed_bytes -= waiting.size_bytes
            waiting.on_opened(outcome)
            _give_back(outcome, self._workspace)
        self._on_change()


def _give_back(outcome: _Outcome, workspace: Workspace) -> None:
    """Let the memory of a payload be used again, unless somebody keeps it."""
    if isinstance(outcome, Opened):
        buffer = outcome.payload.obj
        outcome.payload.release()
        if isinstance(buffer, bytearray):
            workspace.give_back(buffer)


class TrackOpening:
    """Opens the sealed Objects of one data track, as one peer names it.

    Args:
        opening: Shared by all tracks of the retrieval.
        keys: The object keys that are held.
        track: Full Track Name.
        key_id_property: Type of the property that carries the Key ID.
    """

    def __init__(
        self, opening: Opening, keys: ObjectKeys, track: FullTrackName, *, key_id_property: int
    ) -> None:
        self._opening = opening
        self._keys = keys
        self._key_id_property = key_id_property
        self._opener = TrackOpener(keys, track)
        self._properties = EMPTY_PROPERTIES
        self._immutable = b""
        self._key_id: int | None = None
        self._refusal: SealReason | None = SealReason.UNSEALED

    def __repr__(self) -> str:
        return f"<TrackOpening {self._opener!r}>"

    def refusal(self, obj: Object) -> SealReason | None:
        """Say why an Object need not even be kept, or None."""
        self._examine(obj.properties)
        return self._refusal

    def take(
        self,
        obj: Object,
        parts: Sequence[Octets],
        size_bytes: int,
        on_opened: Callable[[Opened | IntegrityError], None],
    ) -> None:
        """Open an Object soon.

        Args:
            obj: The Object; its own payload is not looked at.
            parts: Its payload, in order.
            size_bytes: Octets of the payload.
            on_opened: Takes the outcome, in the event loop.
        """
        self._examine(obj.properties)
        self._opening.take(
            WaitingObject(
                self._opener, obj, self._key_id, self._immutable, parts, size_bytes, on_opened
            )
        )

    def _examine(self, properties: Properties) -> None:
        """Read the Key ID; most Objects of a track share their properties."""
        if properties is self._properties:
            return
        self._properties = properties
        self._immutable = _immutable(properties)
        self._key_id = key_id = key_id_of(properties, self._key_id_property)
        if key_id is None:
            self._refusal = SealReason.UNSEALED
        else:
            self._refusal = None if self._keys.with_id(key_id) else SealReason.UNKNOWN_KEY
