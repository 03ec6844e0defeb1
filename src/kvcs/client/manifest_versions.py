"""What has come of the manifest of one publication: verified, parsed, checked, in order.

Theory of operation. `ManifestVersions` takes Objects of a manifest track and asks for nothing.
A seal comes first, then the signature, then the JSON, then whether the version belongs where it
stands, to this publication, and after the version before. A version that cannot be believed is
refused and the ones before stay what they were: whoever serves it may have changed it. One that
a producer did say, and that contradicts the publication or itself, discards the publication.

Large versions are verified and parsed in a thread, one after the other. Versions only add, so of
too many that wait the oldest is dropped.

Source:
    KVCS, "Manifest Track".
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvcs.client.config import ConsumerConfig
from kvcs.client.opening import clear_payload
from kvcs.cose import VerifyingKey
from kvcs.errors import DataError, NotAuthentic
from kvcs.kv.consistency import check_binding, check_successor
from kvcs.kv.manifest import Manifest, parse_manifest
from kvcs.kv.naming import MANIFEST, SIGNED_MANIFEST, PublicationName
from kvcs.kv.sealing import TrackOpener
from kvcs.kv.signing import parse_unverified, verify_manifest
from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.wire.object import Object

__all__ = ("ManifestVersions",)


@dataclass(frozen=True, slots=True)
class _Refused:
    """A version that is not used; `discards` says whether the publication is not used either."""

    error: DataError
    discards: bool


@dataclass(frozen=True, slots=True)
class _Read:
    """A version that was verified and parsed, and who signed it."""

    manifest: Manifest
    key: VerifyingKey | None


class ManifestVersions:
    """The versions of the manifest of one publication, as they come from one peer.

    Args:
        name: The publication.
        config: Settings of the consumer.
        check: Checks one version against the publication's name; raises DataError.
        on_manifest: Takes each version that is newer than the ones before.
        on_refused: Takes the error of a version that is not used, and whether it discards the
            publication.

    Attributes:
        latest: The newest version, or None.
        version: Its Group ID, or -1.
        key: Who signed it, where a signature was demanded and verified.
        error: Why the first version was refused, while there is none.
        is_signed: Objects are of the track ``manifest.cose``.
    """

    def __init__(
        self,
        name: PublicationName,
        config: ConsumerConfig,
        *,
        check: Callable[[Manifest], None],
        on_manifest: Callable[[Manifest], None],
        on_refused: Callable[[DataError, bool], None],
    ) -> None:
        self.latest: Manifest | None = None
        self.version = -1
        self.key: VerifyingKey | None = None
        self.error: DataError | None = None
        self.is_signed = False
        self._name: Final = name
        self._config: Final = config
        self._check = check
        self._on_manifest = on_manifest
        self._on_refused = on_refused
        self._openers: dict[bytes, TrackOpener] = {}
        self._waiting: deque[Object] = deque(maxlen=config.max_waiting_manifests)
        self._is_busy = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ManifestVersions {self._name.short_id} {self.version}>"

    @property
    def is_busy(self) -> bool:
        """A version is being parsed, or waits for its turn."""
        return self._is_busy

    @property
    def has_outcome(self) -> bool:
        """There is a version, or the reason why the first one is none."""
        return self.latest is not None or self.error is not None

    def resume(self, earlier: "ManifestVersions") -> None:
        """Go on from what another peer said about the same publication."""
        self.latest, self.version, self.key = earlier.latest, earlier.version, earlier.key

    def close(self) -> None:
        """Take nothing any more."""
        self._is_closed = True
        self._waiting.clear()

    def receive(self, obj: Object) -> None:
        """Take one version; an older one that comes late is ignored."""
        if obj.status is not ObjectStatus.NORMAL or obj.object_id != 0 or self._is_closed:
            return
        if obj.group_id <= self.version:
            return
        threshold = self._config.parse_threshold_bytes
        is_small = threshold is None or len(obj.payload) < threshold
        if is_small and not self._is_busy:
            self._take(obj.group_id, self._read(obj, self.latest, self.key))
            return
        self._waiting.append(obj)
        if not self._is_busy:
            self._read_next()

    def _read_next(self) -> None:
        """Verify and parse the next version that waits, in a thread."""
        while self._waiting:
            obj = self._waiting.popleft()
            if obj.group_id <= self.version:
                continue
            self._is_busy = True
            future = asyncio.get_running_loop().run_in_executor(
                None, self._read, obj, self.latest, self.key
            )
            future.add_done_callback(lambda done, obj=obj: self._finish(obj.group_id, done))
            return

    def _finish(self, version: int, done: "asyncio.Future[_Read | _Refused]") -> None:
        self._is_busy = False
        if self._is_closed or done.cancelled():
            return
        self._take(version, done.result())
        self._read_next()

    def _read(
        self, obj: Object, older: Manifest | None, key: VerifyingKey | None
    ) -> _Read | _Refused:
        """Verify and parse; changes nothing here, so that a thread may do it."""
        try:
            read = self._parse(obj)
            if key not in (None, read.key):
                raise NotAuthentic("key", "another producer signs than before")
            check_binding(
                read.manifest, self._name, obj.group_id, is_required=self._requires_binding
            )
        except DataError as error:
            return _Refused(error, discards=False)
        try:
            if older is not None:
                check_successor(older, read.manifest)
        except DataError as error:
            return _Refused(error, discards=True)
        return read

    def _parse(self, obj: Object) -> _Read:
        payload = clear_payload(obj, self._opener(), self._config.key_id_property)
        limits, producers = self._config.manifest_limits, self._config.trusted_producers
        if producers is not None:
            signed = verify_manifest(payload, producers, limits)
            return _Read(signed.manifest, signed.key)
        parse = parse_unverified if self.is_signed else parse_manifest
        return _Read(parse(payload, limits), None)

    def _opener(self) -> TrackOpener | None:
        """Return what opens the sealed Objects of the track that is read."""
        keys = self._config.object_keys
        if keys is None:
            return None
        name = SIGNED_MANIFEST if self.is_signed else MANIFEST
        if name not in self._openers:
            self._openers[name] = TrackOpener(keys, self._name.track(name))
        return self._openers[name]

    @property
    def _requires_binding(self) -> bool:
        producers = self._config.trusted_producers
        return producers is not None and producers.require_binding

    def _take(self, version: int, read: _Read | _Refused) -> None:
        """Use what was read, unless it is refused here: the event loop's part."""
        if isinstance(read, _Refused):
            self._refuse(read.error, discards=read.discards)
            return
        try:
            self._check(read.manifest)
        except DataError as error:
            self._refuse(error, discards=True)
            return
        self.version, self.latest, self.key = version, read.manifest, read.key
        self._on_manifest(read.manifest)

    def _refuse(self, error: DataError, *, discards: bool) -> None:
        if self.latest is None:
            self.error = error
        self._on_refused(error, discards)
