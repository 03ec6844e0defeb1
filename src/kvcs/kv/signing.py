"""Signed manifests: who may sign, what is signed, and what a signature is worth.

A signed manifest is a COSE_Sign1 whose payload is the very JSON that a plain one would be. It
is verified before one octet of that JSON is parsed, and the JSON is never written anew. What is
signed is bound to its publication and version (`kvcs.kv.manifest.Binding`); a manifest that lists
an Object's digest makes that Object as trustworthy as its producer, and no other.

Source: KVCS draft, "Manifest Track" and "Security Considerations"; RFC 9052.
"""

from dataclasses import dataclass, replace
from typing import Final

from kvcs.cose import (
    CoseLimits,
    SigningKey,
    VerifyingKey,
    encode_sign1,
    open_sign1,
    unverified_payload,
)
from kvcs.errors import ConfigError
from kvcs.kv.manifest import DEFAULT_LIMITS, Binding, Manifest, ManifestLimits, parse_manifest
from kvcs.kv.naming import PublicationName

__all__ = (
    "SIGNATURE_BYTES",
    "SignedManifest",
    "TrustedProducers",
    "parse_unverified",
    "sign_manifest",
    "verify_manifest",
)

# What a signature adds to a manifest at most: tags, headers, a key identifier, the signature.
SIGNATURE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class TrustedProducers:
    """The producers whose signature is believed.

    Attributes:
        keys: Their public keys; several may share a key identifier.
        require_binding: Whether a manifest must say which publication and version it is of.
            Without it, whoever serves the manifest may put that of another publication of the
            same model, signed by the same producer, in its place.

    Raises:
        ConfigError: No keys.
    """

    keys: tuple[VerifyingKey, ...]
    require_binding: bool = True

    def __post_init__(self) -> None:
        if not self.keys:
            raise ConfigError("trusted_producers", "at least one public key", "none")


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest whose signature was verified.

    Attributes:
        manifest: What was signed.
        key: Who signed it.
    """

    manifest: Manifest
    key: VerifyingKey


def sign_manifest(
    manifest: Manifest, name: PublicationName, version: int, key: SigningKey
) -> bytes:
    """Sign one version of a manifest for its place.

    Args:
        manifest: What the version says.
        name: The publication.
        version: Group ID of the version.
        key: The producer's key.

    Returns:
        Payload of the Object on the track ``manifest.cose``.
    """
    bound = replace(manifest, binding=Binding.to(name, version))
    return encode_sign1(bound.encode(), key)


def verify_manifest(
    data: bytes | bytearray | memoryview,
    producers: TrustedProducers,
    limits: ManifestLimits = DEFAULT_LIMITS,
) -> SignedManifest:
    """Verify the signature of one version, and only then parse it.

    That it belongs to a publication is checked by `kvcs.kv.consistency.check_binding`.

    Raises:
        NotAuthentic: No trusted producer signed this.
        ManifestError: One did, and it is no manifest.
        UnsupportedEncoding: Of a format, or with a dtype, that this build does not read.
    """
    opened = open_sign1(data, producers.keys, _cose_limits(limits))
    return SignedManifest(parse_manifest(opened.payload, limits), opened.key)


def parse_unverified(
    data: bytes | bytearray | memoryview, limits: ManifestLimits = DEFAULT_LIMITS
) -> Manifest:
    """Parse a signed manifest without asking who signed it: it is worth what a plain one is.

    Raises:
        NotAuthentic: Not a COSE_Sign1, or beyond a limit.
        ManifestError: Its payload is no manifest.
        UnsupportedEncoding: Of a format, or with a dtype, that this build does not read.
    """
    return parse_manifest(unverified_payload(data, _cose_limits(limits)), limits)


def _cose_limits(limits: ManifestLimits) -> CoseLimits:
    return CoseLimits(max_bytes=limits.max_bytes + SIGNATURE_BYTES)
