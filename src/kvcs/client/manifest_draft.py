"""One version of a manifest, from what it says to the payload of its Object.

Theory of operation. A draft has its number before it is written, and the number is never given
again, also when the draft is dropped: what was sealed under it stays the only thing that was.
Writing changes nothing but the draft, and counts of the sealer, so that a thread may do it: a
version lists all digests of all layers so far, and is encoded, hashed for its signature, and
sealed as a whole.

Source:
    KVCS, "Manifest Track".
"""

from kvcs.client.config import PublisherConfig
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import MANIFEST_PRIORITY, PublicationName
from kvcs.kv.sealing import TrackSealer
from kvcs.kv.signing import sign_manifest
from kvcs.kv.sizing import listed_manifest_bytes, padded_manifest_bytes

__all__ = ("ManifestDraft",)


class ManifestDraft:
    """A version that is to be published.

    Args:
        manifest: What it says.
        name: The publication.
        version: Its Group ID.
        config: Settings of the publisher.
        sealer: Seals the Objects of the manifest track, or None.

    Attributes:
        manifest: As given.
        version: As given.
    """

    __slots__ = ("_config", "_name", "_payload", "_sealer", "manifest", "version")

    def __init__(
        self,
        manifest: Manifest,
        name: PublicationName,
        *,
        version: int,
        config: PublisherConfig,
        sealer: TrackSealer | None,
    ) -> None:
        self.manifest = manifest
        self.version = version
        self._name = name
        self._config = config
        self._sealer = sealer
        self._payload: bytes | None = None

    def __repr__(self) -> str:
        return f"<ManifestDraft {self.version} of {self._name.short_id}>"

    @property
    def is_large(self) -> bool:
        """Whether writing it takes so long that another thread should."""
        threshold = self._config.write_threshold_bytes
        return threshold is not None and listed_manifest_bytes(self.manifest) >= threshold

    def write(self) -> bytes:
        """Encode, sign and seal it, unless that was done; return the payload of its Object.

        Raises:
            ConfigError: The object key has sealed as much as it may.
        """
        if self._payload is None:
            self._payload = self._sealed(self._encoded())
        return self._payload

    def _encoded(self) -> bytes:
        key = self._config.signing_key
        if key is None:
            return self.manifest.encode()
        return sign_manifest(self.manifest, self._name, self.version, key)

    def _sealed(self, payload: bytes) -> bytes:
        if self._sealer is None:
            return payload
        size, config = 0, self._config
        if config.pad_segment_blocks is not None:
            size = padded_manifest_bytes(self.manifest, len(payload), config.objects_of)
        return self._sealer.seal(self.version, 0, MANIFEST_PRIORITY, payload, padded_bytes=size)
