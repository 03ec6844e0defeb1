"""The types that users of `kvcs.kv` see; pyright checks this file, nobody runs it."""

from collections.abc import Buffer
from typing import assert_type

from kvcs.cose import SigningKey, VerifyingKey
from kvcs.kv import (
    CODECS,
    KVSP_PROVISIONAL,
    MANIFEST,
    RAW,
    Binding,
    BlockKey,
    BlockPlace,
    Codec,
    CompatibilityId,
    Component,
    DataTrackName,
    Descriptor,
    Dtype,
    Expectation,
    IdentityProfile,
    Layout,
    Manifest,
    ManifestCadence,
    ManifestLimits,
    PublicationName,
    ScopeId,
    ScopeKey,
    Segment,
    SignedManifest,
    TrustedProducers,
    anchor_prefix,
    check_identity,
    check_segment_keys,
    codec,
    encode_payload,
    layer_digest,
    manifest_bytes,
    matching_blocks,
    parse_manifest,
    parse_scope_key,
    publisher_priority,
    reusable_blocks,
    select_tracks,
    sign_manifest,
    size_warnings,
    verify_manifest,
    verify_payload,
)
from kvcs.names import FullTrackName, TrackNamespace


def identify(descriptor: Descriptor, tokens: list[int], content: bytes) -> None:
    scope_key = parse_scope_key(content)
    assert_type(scope_key, ScopeKey)
    profile: IdentityProfile = KVSP_PROVISIONAL
    scope_id = profile.scope_id(scope_key)
    assert_type(scope_id, ScopeId)
    compatibility_id = profile.compatibility_id(scope_key, descriptor)
    assert_type(compatibility_id, CompatibilityId)
    keys = profile.block_keys(scope_key, compatibility_id, tokens, block_tokens=64)
    assert_type(keys, tuple[BlockKey, ...])
    assert_type(anchor_prefix(scope_id, compatibility_id, keys[-1]), TrackNamespace)
    assert_type(reusable_blocks(len(tokens), block_tokens=64), int)
    assert_type(descriptor.dtype, Dtype)
    assert_type(descriptor.canonical(), bytes)


def name(publication: PublicationName) -> None:
    assert_type(publication.namespace(), TrackNamespace)
    assert_type(publication.track(MANIFEST), FullTrackName)
    track = DataTrackName.parse(b"k.raw.s0")
    assert_type(track, DataTrackName)
    assert_type(track.component, Component)
    assert_type(publisher_priority(1, 30), int)


def carry(descriptor: Descriptor, tensor: Buffer, place: BlockPlace, expected: Expectation) -> None:
    layout = Layout(descriptor)
    blocks = layout.blocks(Component.K, 0, tensor)
    assert_type(blocks, tuple[memoryview, ...])
    payload, digest = encode_payload(place, blocks[0])
    assert_type(payload, bytes)
    assert_type(digest, bytes)
    assert_type(verify_payload(payload, expected), memoryview)
    assert_type(layer_digest(blocks[0], blocks[1]), bytes)
    assert_type(size_warnings(layout, 4), tuple[str, ...])
    assert_type(manifest_bytes(80, 64), int)
    assert_type(codec("raw"), Codec)
    assert_type(CODECS["raw"].number, int)
    assert_type(RAW.lossy, bool)


def describe(data: bytes, publication: PublicationName, scope_key: ScopeKey) -> None:
    manifest = parse_manifest(data, ManifestLimits())
    assert_type(manifest, Manifest)
    assert_type(manifest.segments, tuple[Segment, ...])
    assert_type(matching_blocks(manifest, ()), int)
    assert_type(select_tracks(manifest.segments[0]), tuple[DataTrackName, ...] | None)
    assert_type(ManifestCadence().due(8), bool)
    check_identity(manifest, publication, scope_key, KVSP_PROVISIONAL)
    check_segment_keys(manifest, [])


def signing(manifest: Manifest, name: PublicationName, key: SigningKey) -> None:
    data = sign_manifest(manifest, name, 3, key)
    assert_type(data, bytes)
    signed = verify_manifest(data, TrustedProducers((key.public,)), ManifestLimits())
    assert_type(signed, SignedManifest)
    assert_type(signed.key, VerifyingKey)
    assert_type(signed.manifest.binding, Binding | None)
