"""The data model of KVCS: identity, names, layout, payloads and manifests.

Pure: octets and values in, octets and values out. Nothing here knows a clock, a socket, an
event loop or a tensor library.

Source: KVCS draft.
"""

from kvcs.kv.codecs import CODECS, RAW, Codec, codec, codec_by_number
from kvcs.kv.consistency import (
    check_anchor,
    check_binding,
    check_identity,
    check_segment_keys,
    check_successor,
    matching_blocks,
    select_tracks,
)
from kvcs.kv.descriptor import Descriptor, Dtype
from kvcs.kv.identity import (
    KVSP_PROVISIONAL,
    BlockKey,
    CompatibilityId,
    IdentityProfile,
    PublicationId,
    ScopeId,
    ScopeKey,
    block_keys_sha256,
    parse_scope_key,
    reusable_blocks,
)
from kvcs.kv.layout import Layout, layer_digest
from kvcs.kv.manifest import (
    Binding,
    Manifest,
    ManifestCadence,
    ManifestLimits,
    parse_manifest,
)
from kvcs.kv.naming import (
    MANIFEST,
    MANIFEST_PRIORITY,
    SIGNED_MANIFEST,
    Component,
    DataTrackName,
    PublicationName,
    anchor_prefix,
    candidate_prefixes,
    publisher_priority,
)
from kvcs.kv.payload import (
    HEADER_BYTES,
    BlockPlace,
    BlockSeries,
    Expectation,
    IntegrityReason,
    PayloadHeader,
    encode_payload,
    verify_payload,
)
from kvcs.kv.segment import Segment
from kvcs.kv.signing import (
    SignedManifest,
    TrustedProducers,
    parse_unverified,
    sign_manifest,
    verify_manifest,
)
from kvcs.kv.sizing import manifest_bytes, manifest_traffic_bytes, size_warnings

__all__ = (
    "CODECS",
    "HEADER_BYTES",
    "KVSP_PROVISIONAL",
    "MANIFEST",
    "MANIFEST_PRIORITY",
    "RAW",
    "SIGNED_MANIFEST",
    "Binding",
    "BlockKey",
    "BlockPlace",
    "BlockSeries",
    "Codec",
    "CompatibilityId",
    "Component",
    "DataTrackName",
    "Descriptor",
    "Dtype",
    "Expectation",
    "IdentityProfile",
    "IntegrityReason",
    "Layout",
    "Manifest",
    "ManifestCadence",
    "ManifestLimits",
    "PayloadHeader",
    "PublicationId",
    "PublicationName",
    "ScopeId",
    "ScopeKey",
    "Segment",
    "SignedManifest",
    "TrustedProducers",
    "anchor_prefix",
    "block_keys_sha256",
    "candidate_prefixes",
    "check_anchor",
    "check_binding",
    "check_identity",
    "check_segment_keys",
    "check_successor",
    "codec",
    "codec_by_number",
    "encode_payload",
    "layer_digest",
    "manifest_bytes",
    "manifest_traffic_bytes",
    "matching_blocks",
    "parse_manifest",
    "parse_scope_key",
    "parse_unverified",
    "publisher_priority",
    "reusable_blocks",
    "select_tracks",
    "sign_manifest",
    "size_warnings",
    "verify_manifest",
    "verify_payload",
)
