"""The envelope that COSE_Sign1 and COSE_Mac0 share, read in bounded time and memory.

Nothing in an envelope is trusted before its signature or tag was checked: of the octets only
lengths and the two header maps are looked at, and the maps are small. `alg` counts only where
it is signed, `crit` names what a reader must understand and this one does not.

Source: RFC 9052, Sections 2, 3, 4.2 and 6.2; RFC 8392, Section 6.
"""

from dataclasses import dataclass
from typing import Final

from kvcs.cose.cbor import ARRAY, CborLimits, CborReader, CborValue
from kvcs.errors import NotAuthentic

__all__ = (
    "CWT_TAG",
    "DEFAULT_COSE_LIMITS",
    "HEADER_ALGORITHM",
    "HEADER_KEY_ID",
    "MAC0_TAG",
    "SIGN1_TAG",
    "CoseLimits",
    "Envelope",
    "parse_envelope",
)

MAC0_TAG: Final = 17
SIGN1_TAG: Final = 18
CWT_TAG: Final = 61

HEADER_ALGORITHM: Final = 1
HEADER_CRITICAL: Final = 2
HEADER_KEY_ID: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CoseLimits:
    """Bounds on a COSE message of untrusted origin.

    Attributes:
        max_bytes: Octets of the whole message; as large as the largest Object of a session.
        max_header_bytes: Octets of each of the two header maps.
        max_header_items: CBOR items of each of them.
        max_attempts: Keys that are tried on one message, when several could have made it.
    """

    max_bytes: int = 16 * 2**20
    max_header_bytes: int = 1024
    max_header_items: int = 64
    max_attempts: int = 8


DEFAULT_COSE_LIMITS: Final = CoseLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a message says about itself; nothing of it is verified.

    Attributes:
        algorithm: Number from the protected header.
        kid: Key identifier, or None; it need not be protected, since it only chooses the key.
        protected: The protected header as it was signed.
        payload: The payload, a view of the message.
        proof: Signature or authentication tag.
    """

    algorithm: int
    kid: bytes | None
    protected: bytes
    payload: memoryview
    proof: bytes


def parse_envelope(
    data: bytes | bytearray | memoryview, *, tag: int, limits: CoseLimits
) -> Envelope:
    """Take a message apart; tagged, tagged as a CWT, or untagged.

    Args:
        data: The message.
        tag: `SIGN1_TAG` or `MAC0_TAG`, whichever may stand there.
        limits: Bounds.

    Raises:
        NotAuthentic: Not such an envelope, beyond a limit, or with headers that are refused.
    """
    size_bytes = memoryview(data).nbytes
    if size_bytes > limits.max_bytes:
        raise NotAuthentic("size", f"{size_bytes} octets of COSE, at most {limits.max_bytes}")
    try:
        return _parse(data, tag, limits)
    except ValueError as error:
        raise NotAuthentic("envelope", f"not a COSE message: {error}") from error


def _parse(data: bytes | bytearray | memoryview, tag: int, limits: CoseLimits) -> Envelope:
    header_limits = CborLimits(
        max_bytes=limits.max_header_bytes, max_depth=4, max_items=limits.max_header_items
    )
    reader = CborReader(data, header_limits)
    found = reader.take_tag()
    if found == CWT_TAG:
        found = reader.take_tag()
    if found not in (tag, None):
        raise ValueError(f"tag {found} where {tag} belongs")
    if reader.take_length(ARRAY) != 4:
        raise ValueError("an array of other than four elements")
    protected = reader.take_bytes()
    if len(protected) > limits.max_header_bytes:
        raise ValueError(f"a header of more than {limits.max_header_bytes} octets")
    # The map that follows is read from no more octets than a header may have.
    rest = memoryview(data).cast("B")[reader.offset :]
    unprotected_reader = CborReader(rest[: limits.max_header_bytes], header_limits)
    unprotected = unprotected_reader.take_map()
    tail = CborReader(rest[unprotected_reader.offset :], header_limits)
    payload = tail.take_bytes()
    proof = tail.take_bytes()
    if tail.remaining:
        raise ValueError(f"{tail.remaining} octets after it")
    headers = _parse_protected(protected, header_limits)
    algorithm, kid = _check_headers(headers, unprotected)
    return Envelope(
        algorithm=algorithm,
        kid=kid,
        protected=bytes(protected),
        payload=payload,
        proof=bytes(proof),
    )


def _parse_protected(
    protected: memoryview, limits: CborLimits
) -> dict[int | str | bytes, CborValue]:
    reader = CborReader(protected, limits)
    headers = reader.take_map()
    if reader.remaining:
        raise ValueError("octets after the protected header")
    return headers


def _check_headers(
    protected: dict[int | str | bytes, CborValue], unprotected: dict[int | str | bytes, CborValue]
) -> tuple[int, bytes | None]:
    if protected.keys() & unprotected.keys():
        raise ValueError("a header is both protected and not")
    if HEADER_CRITICAL in protected or HEADER_CRITICAL in unprotected:
        raise NotAuthentic(
            "critical", "the message has headers that must be understood and are not"
        )
    algorithm = protected.get(HEADER_ALGORITHM)
    if not isinstance(algorithm, int):
        raise NotAuthentic("algorithm", "the message does not name its algorithm under protection")
    kid = protected.get(HEADER_KEY_ID, unprotected.get(HEADER_KEY_ID))
    if kid is not None and not isinstance(kid, bytes):
        raise ValueError("a key identifier that is no octet string")
    return algorithm, kid
