"""How large Objects and manifests become, and when that is unwise.

`object_digests` costs 67 octets for every Object in every version of the manifest, so small
blocks and long contexts pay more for the list than they may expect.

Source: KVCS draft, "Operational Considerations".
"""

from collections.abc import Callable
from typing import Final

from kvcs.kv.layout import Layout
from kvcs.kv.manifest import Manifest, ManifestCadence
from kvcs.kv.naming import Component

__all__ = (
    "MAX_MANIFEST_BYTES_ADVISED",
    "MAX_OBJECT_BYTES_ADVISED",
    "MIN_OBJECT_BYTES_ADVISED",
    "listed_manifest_bytes",
    "manifest_bytes",
    "manifest_traffic_bytes",
    "padded_manifest_bytes",
    "size_warnings",
)

MIN_OBJECT_BYTES_ADVISED: Final = 16 * 2**10
MAX_OBJECT_BYTES_ADVISED: Final = 2**20
MAX_MANIFEST_BYTES_ADVISED: Final = 2**20

_DIGEST_TEXT_BYTES: Final = 67
_HEAD_BYTES: Final = 800
# Numbers of blocks have a few digits more or less.
_PADDED_MULTIPLE_BYTES: Final = 1024
_PADDED_MARGIN_BYTES: Final = 64


def manifest_bytes(layers: int, blocks: int, *, tracks: int = 2) -> int:
    """Estimate the octets of a manifest version that lists `layers` completed layers."""
    return _HEAD_BYTES + _DIGEST_TEXT_BYTES * layers * blocks * tracks


def listed_manifest_bytes(manifest: Manifest) -> int:
    """Estimate the octets of a manifest version from the digests that it lists."""
    listed = sum(
        segment.blocks * sum(map(len, segment.object_digests.values()))
        for segment in manifest.segments
    )
    return _HEAD_BYTES + _DIGEST_TEXT_BYTES * listed


def manifest_traffic_bytes(
    layers: int, blocks: int, *, tracks: int = 2, cadence: ManifestCadence | None = None
) -> int:
    """Estimate the octets of all versions of a publication of one segment together."""
    cadence = cadence or ManifestCadence()
    versions = [done for done in range(layers + 1) if cadence.due(done)]
    return sum(manifest_bytes(done, blocks, tracks=tracks) for done in {*versions, layers})


def padded_manifest_bytes(
    manifest: Manifest, size_bytes: int, objects_of: Callable[[int], int]
) -> int:
    """Return how long a version must be to tell of its blocks only how many Objects they have.

    Args:
        manifest: The version.
        size_bytes: Octets that it has, signature included.
        objects_of: Gives the Objects of each layer of a segment of so many blocks.
    """
    missing = sum(
        (objects_of(segment.blocks) - segment.blocks)
        * sum(map(len, segment.object_digests.values()))
        for segment in manifest.segments
    )
    size = size_bytes + _DIGEST_TEXT_BYTES * missing + _PADDED_MARGIN_BYTES
    return -(-size // _PADDED_MULTIPLE_BYTES) * _PADDED_MULTIPLE_BYTES


def size_warnings(layout: Layout, blocks: int, *, tracks: int = 2) -> tuple[str, ...]:
    """Return one sentence for each size that a publisher should know to be unwise.

    Args:
        layout: Layout of the publication.
        blocks: Blocks of all its segments.
        tracks: Data tracks of each segment.
    """
    sizes = {
        layout.data_bytes(component, layer_index)
        for component in (Component.K, Component.V)
        for layer_index in range(layout.layers)
    }
    warnings: list[str] = []
    if min(sizes) < MIN_OBJECT_BYTES_ADVISED:
        warnings.append(
            f"Objects of {min(sizes)} octets: below {MIN_OBJECT_BYTES_ADVISED} the overhead of "
            "each Object counts; take larger blocks"
        )
    if max(sizes) > MAX_OBJECT_BYTES_ADVISED:
        warnings.append(
            f"Objects of {max(sizes)} octets: above {MAX_OBJECT_BYTES_ADVISED} little can be "
            "reused in part; take smaller blocks"
        )
    manifest = manifest_bytes(layout.layers, blocks, tracks=tracks)
    if manifest > MAX_MANIFEST_BYTES_ADVISED:
        warnings.append(
            f"a manifest version of {manifest} octets, above {MAX_MANIFEST_BYTES_ADVISED}: every "
            "consumer takes several; take larger blocks"
        )
    return tuple(warnings)
