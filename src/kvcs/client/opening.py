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
from typing import NamedTuple

from kvcs.client.config import ConsumerConfig
from kvcs.errors import IntegrityError, KeyMissing
from kvcs.kv.payload import HEADER_BYTES
from kvcs.kv.sealing import ObjectKeys, SealedPayload, SealReason, TrackOpener
from kvcs.kv.sealing.suite import Octets
from kvcs.moqt.codepoints import PropertyType
from kvcs.moqt.wire.object import Object
from kvcs.names import FullTrackName

__all__ = (
    "Opened",
    "Opening",
    "TrackOpening",
    "WaitingObject",
    "clear_payload",
    "key_id_of",
    "sealed_payload",
)


def key_id_of(obj: Object, key_id_property: int) -> int | None:
    """Return the Key ID that an Object is sealed with, or None if it is in clear."""
    found = [value for number, value in obj.properties.immutable_pairs if number == key_id_property]
    if len(found) != 1 or not isinstance(found[0], int):
        return None
    return found[0]


def sealed_payload(obj: Object, payload: Octets, key_id_property: int) -> SealedPayload:
    """Return a sealed Object as it is opened; its own payload is not looked at."""
    pairs = obj.properties.pairs
    immutable = next((v for n, v in pairs if n == PropertyType.IMMUTABLE_PROPERTIES), b"")
    return SealedPayload(
        location=obj.location,
        priority=obj.publisher_priority,
        key_id=key_id_of(obj, key_id_property),
        immutable=immutable if isinstance(immutable, bytes) else b"",
        payload=payload,
    )


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
    key_id = key_id_of(obj, key_id_property)
    if opener is None:
        if key_id is not None:
            raise KeyMissing(key_id)
        return obj.payload
    try:
        return opener.open(sealed_payload(obj, obj.payload, key_id_property))
    except IntegrityError as error:
        if error.reason == SealReason.UNKNOWN_KEY and key_id is not None:
            raise KeyMissing(key_id) from error
        raise


class Opened(NamedTuple):
    """The payload of an Object that was opened, and what was computed on the way.

    Attributes:
        payload: The payload.
        digest: SHA-256 of what follows its header.
    """

    payload: memoryview
    digest: bytes


type _Outcome = Opened | IntegrityError


class WaitingObject(NamedTuple):
    """A sealed Object that is whole and not opened yet.

    Attributes:
        opener: Opens the Objects of its track.
        obj: The Object without its payload.
        parts: Its payload, in order.
        size_bytes: Octets of the payload.
        on_opened: Takes the outcome, in the event loop.
    """

    opener: TrackOpener
    obj: SealedPayload
    parts: Sequence[Octets]
    size_bytes: int
    on_opened: Callable[[_Outcome], None]

    def open(self) -> _Outcome:
        """Open it."""
        whole = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        try:
            payload = self.opener.open(self.obj._replace(payload=whole))
        except IntegrityError as error:
            return error
        return Opened(payload, hashlib.sha256(payload[HEADER_BYTES:]).digest())


def _open_all(batch: Sequence[WaitingObject]) -> list[_Outcome]:
    return [waiting.open() for waiting in batch]


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

    def __repr__(self) -> str:
        return f"<Opening {len(self._waiting)} waiting, {self._sealed_bytes} octets>"

    def take(self, waiting: WaitingObject) -> None:
        """Open an Object soon."""
        if self._sealed_bytes + waiting.size_bytes > self._config.max_sealed_bytes:
            waiting.on_opened(waiting.open())
            return
        self._waiting.append(waiting)
        self._sealed_bytes += waiting.size_bytes
        if not self._is_scheduled and not self._is_busy:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._open_batch)

    def _open_batch(self) -> None:
        """Open everything that waits; the thread has one batch at a time."""
        self._is_scheduled = False
        batch, self._waiting = self._waiting, []
        threshold = self._config.open_threshold_bytes
        if threshold is None or sum(waiting.size_bytes for waiting in batch) < threshold:
            self._answer(batch, _open_all(batch))
            return
        self._is_busy = True
        thread = asyncio.get_running_loop().run_in_executor(None, _open_all, batch)
        thread.add_done_callback(lambda done: self._finish(batch, done))

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
        if self._waiting and not self._is_scheduled:
            self._open_batch()

    def _answer(self, batch: Sequence[WaitingObject], outcomes: Sequence[_Outcome]) -> None:
        for waiting, outcome in zip(batch, outcomes, strict=True):
            self._sealed_bytes -= waiting.size_bytes
            waiting.on_opened(outcome)
        self._on_change()


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

    def __repr__(self) -> str:
        return f"<TrackOpening {self._opener!r}>"

    def refusal(self, obj: Object) -> SealReason | None:
        """Say why an Object need not even be kept, or None."""
        key_id = key_id_of(obj, self._key_id_property)
        if key_id is None:
            return SealReason.UNSEALED
        return None if self._keys.with_id(key_id) else SealReason.UNKNOWN_KEY

    def take(
        self,
        obj: Object,
        parts: Sequence[Octets],
        on_opened: Callable[[Opened | IntegrityError], None],
    ) -> None:
        """Open an Object soon.

        Args:
            obj: The Object; its own payload is not looked at.
            parts: Its payload, in order.
            on_opened: Takes the outcome, in the event loop.
        """
        sealed = sealed_payload(obj, b"", self._key_id_property)
        size_bytes = sum(map(len, parts))
        self._opening.take(WaitingObject(self._opener, sealed, parts, size_bytes, on_opened))
