"""Whether a manifest belongs to a publication, to a prompt, and to the version before it.

Checks raise when the whole publication is to be discarded; what is merely of no use to this
consumer (a segment of other tokens, an unknown codec) is a value.

Source: KVCS draft, "Manifest Track", "Track Names" and "Verification and Recovery".
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvcs.errors import KeyMismatch, ManifestError, NotAuthentic
from kvcs.kv.codecs import CODECS, Codec
from kvcs.kv.identity import BlockKey, IdentityProfile, ScopeKey, block_keys_sha256
from kvcs.kv.manifest import Binding, Manifest
from kvcs.kv.naming import Component, DataTrackName, PublicationName
from kvcs.kv.segment import Segment

__all__ = (
    "check_anchor",
    "check_binding",
    "check_identity",
    "check_segment_keys",
    "check_successor",
    "matching_blocks",
    "select_tracks",
)


def check_identity(
    manifest: Manifest, name: PublicationName, scope_key: ScopeKey, profile: IdentityProfile
) -> None:
    """Check that the descriptor of `manifest` is the one that the namespace names.

    Raises:
        KeyMismatch: Another scope or another Compatibility ID: discard the publication.
    """
    if profile.scope_id(scope_key) != name.scope_id:
        raise KeyMismatch("the publication belongs to another scope")
    if profile.compatibility_id(scope_key, manifest.compat) != name.compatibility_id:
        raise KeyMismatch("the manifest describes another model than its namespace names")


def check_anchor(manifest: Manifest, name: PublicationName, block_keys: Sequence[BlockKey]) -> None:
    """Check that segment 0 ends with the Anchor Key, as far as the consumer can know.

    Args:
        manifest: A version of the publication.
        name: Its name.
        block_keys: The consumer's own keys; only if they match segment 0 is there a last one
            to compare.

    Raises:
        KeyMismatch: The segment is of the consumer's tokens and the namespace of others:
            discard the publication.
    """
    if not manifest.segments or not _covers(manifest.segments[0], block_keys):
        return
    if block_keys[manifest.segments[0].blocks - 1] != name.anchor_key:
        raise KeyMismatch("the Anchor Key is not the last Block Key of segment 0")


def check_segment_keys(manifest: Manifest, block_keys: Sequence[BlockKey]) -> None:
    """Check that segment 0 has exactly the blocks that an index said it has.

    Args:
        manifest: A version of the publication.
        block_keys: Block Keys of the whole segment; none where nobody said.

    Raises:
        KeyMismatch: It has others: what the index named is another publication.
    """
    if not manifest.segments or not block_keys:
        return
    segment = manifest.segments[0]
    own = block_keys_sha256(block_keys)
    if segment.blocks != len(block_keys) or segment.block_keys_sha256 != own:
        raise KeyMismatch("segment 0 has other blocks than the index says")


def matching_blocks(
    manifest: Manifest, block_keys: Sequence[BlockKey], *, vouched: bool = False
) -> int:
    """Return how many first blocks of the publication are of the consumer's tokens.

    Args:
        manifest: A version of the publication.
        block_keys: The consumer's own keys, from block 0.
        vouched: Whether the caller knows by other means (an index) that the publication's
            tokens start with the consumer's: only then can a segment be used in part, since
            its digest of keys covers all of them.
    """
    for segment in manifest.segments:
        if not _covers(segment, block_keys):
            partly = vouched and segment.end_block > len(block_keys)
            return len(block_keys) if partly else segment.first_block
    return manifest.blocks


def check_binding(
    manifest: Manifest, name: PublicationName, version: int, *, is_required: bool
) -> None:
    """Check that `manifest` says of itself what its place says: publication and version.

    Whoever serves a manifest chose the place; its producer chose the members. What differs was
    moved here from elsewhere, which is no fault of the publication.

    Args:
        manifest: As it came.
        name: The publication that was asked for.
        version: Group ID that it came under.
        is_required: Whether a manifest that does not say is refused.

    Raises:
        NotAuthentic: It is of another publication or version, or does not say: do not use it.
    """
    if manifest.binding is None:
        if is_required:
            raise NotAuthentic("binding", "the manifest does not say which publication it is of")
        return
    place = Binding.to(name, version)
    if manifest.binding == place:
        return
    if replace(manifest.binding, version=version) == place:
        text = f"version {manifest.binding.version} of the manifest in the place of {version}"
        raise NotAuthentic("binding", text)
    raise NotAuthentic("binding", "the manifest is of another publication")


def check_successor(older: Manifest, newer: Manifest) -> None:
    """Check that `newer` only adds to `older`.

    Raises:
        ManifestError: It takes back or changes what was said: discard the publication.
    """
    if newer.compat != older.compat or newer.deterministic != older.deterministic:
        raise ManifestError("a later manifest version changes compat or deterministic")
    if len(newer.segments) < len(older.segments):
        raise ManifestError("a later manifest version takes back a segment")
    for was, now in zip(older.segments, newer.segments, strict=False):
        if _takes_back(was, now):
            raise ManifestError(f"a later manifest version changes segment {was.segment}")


def select_tracks(
    segment: Segment, *, codecs: Mapping[str, Codec] = CODECS, allow_lossy: bool = False
) -> tuple[DataTrackName, ...] | None:
    """Choose the tracks to take: the first complete set in the order of the manifest.

    A set is the k and the v track of one codec, or one kv track; it stands where its last track
    does.

    Args:
        segment: Segment of a manifest.
        codecs: Codecs that can be decoded, by name.
        allow_lossy: Whether codecs that change the octets may be taken.

    Returns:
        ``(k, v)`` or ``(kv,)``, or None when no set can be decoded.
    """
    seen: dict[tuple[str, Component], DataTrackName] = {}
    for name in segment.data_tracks():
        known = codecs.get(name.codec)
        if known is None or (known.lossy and not allow_lossy):
            continue
        if name.component is Component.KV:
            return (name,)
        seen[name.codec, name.component] = name
        pair = seen.get((name.codec, Component.K)), seen.get((name.codec, Component.V))
        if pair[0] is not None and pair[1] is not None:
            return (pair[0], pair[1])
    return None


def _covers(segment: Segment, block_keys: Sequence[BlockKey]) -> bool:
    """Tell whether all blocks of `segment` are blocks of the consumer."""
    own = block_keys[segment.first_block : segment.end_block]
    return len(own) == segment.blocks and block_keys_sha256(own) == segment.block_keys_sha256


def _takes_back(was: Segment, now: Segment) -> bool:
    fixed = (was.first_block, was.blocks, was.block_keys_sha256, was.tracks)
    if fixed != (now.first_block, now.blocks, now.block_keys_sha256, now.tracks[: len(was.tracks)]):
        return True
    if was.complete and not now.complete:
        return True
    return any(
        now.object_digests.get(track, ())[: len(groups)] != groups
        for track, groups in was.object_digests.items()
    )
