"""Publications and their parts as the command line reads them: URLs, tokens, descriptors."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kvcs.cli._keys import Member
from kvcs.client.manifest_track import ManifestTrack
from kvcs.client.signal import Signal
from kvcs.client.source import Source
from kvcs.endpoint.connection import Connection
from kvcs.endpoint.url import parse_url
from kvcs.errors import ConfigError, DataError
from kvcs.kv.consistency import check_identity
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.identity import MAX_TOKEN
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import SHORT_ID_DIGITS, PublicationName
from kvcs.names import TrackNamespace

__all__ = (
    "KnownPublication",
    "PublicationReference",
    "ShortId",
    "parse_fragment",
    "read_descriptor",
    "read_manifest",
    "read_tokens",
)

_MARK: Final = "kvcs:"
# Between two fields of a namespace in the text form; there are five.
_FIELD_MARK: Final = "-"
_SHORT_ID: Final = re.compile(f"[0-9a-f]{{{SHORT_ID_DIGITS},32}}")
# A million tokens, and a descriptor far larger than any.
_MAX_TOKENS_BYTES: Final = 2**24
_MAX_DESCRIPTOR_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class ShortId:
    """The first 8 to 32 hex digits of a Publication ID."""

    digits: str

    def __str__(self) -> str:
        return self.digits


type PublicationReference = PublicationName | ShortId


def parse_fragment(url: str) -> PublicationReference | None:
    """Return the publication that a URL names, or None.

    Raises:
        ConfigError: Not a MOQT URL, or its fragment names no publication.
    """
    fragment = parse_url(url).fragment
    if not fragment:
        return None
    expected = "#kvcs:ID or #kvcs:NAMESPACE, as kvcs publish prints them"
    if not fragment.startswith(_MARK):
        raise ConfigError("the URL's fragment", expected, fragment[:40])
    text = fragment.removeprefix(_MARK)
    if _SHORT_ID.fullmatch(text):
        return ShortId(text)
    if _FIELD_MARK not in text:
        digits = (
            f"#kvcs: and {SHORT_ID_DIGITS} to 32 hex digits in lower case, or a whole namespace"
        )
        raise ConfigError("the URL's fragment", digits, repr(fragment[:40]))
    try:
        return PublicationName.parse(TrackNamespace.parse(text))
    except (ValueError, DataError) as error:
        raise ConfigError("the URL's fragment", expected, str(error)) from error


def read_tokens(path: Path) -> Sequence[int]:
    """Read a JSON array of tokens.

    Raises:
        ConfigError: The file cannot be read, or holds something else.
    """
    try:
        tokens = msgspec.json.decode(_read(path, "--tokens", _MAX_TOKENS_BYTES), type=list[int])
    except msgspec.DecodeError as error:
        raise ConfigError("--tokens", "a JSON array of integers", f"{path}: {error}") from error
    if not tokens or not 0 <= min(tokens) <= max(tokens) <= MAX_TOKEN:
        raise ConfigError("--tokens", f"tokens 0..{MAX_TOKEN}, at least one", str(path))
    return tokens


def read_descriptor(path: Path) -> Descriptor:
    """Read a Compatibility Descriptor.

    Raises:
        ConfigError: The file cannot be read, or has the descriptor inside of something else.
        DataError: It holds no descriptor.
    """
    text = _read(path, "--compat", _MAX_DESCRIPTOR_BYTES)
    try:
        return Descriptor.decode(text)
    except DataError:
        if _has_descriptor(text):
            expected = "the member descriptor of what kvcs inspect --json prints, alone in a file"
            raise ConfigError("--compat", expected, f"all of it in {path}") from None
        raise


def _has_descriptor(text: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(text, type=_Inspected).descriptor)
    except msgspec.DecodeError:
        return False


class _Inspected(msgspec.Struct):
    """What ``kvcs inspect FILE --json`` prints."""

    descriptor: dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class KnownPublication:
    """A publication whose manifest is known.

    Attributes:
        manifest: The newest version.
        signed_by: Key identifier of the trusted producer that signed it; None where nobody is
            trusted.
        sealed: An object key opened it; without object keys only what is in clear is read.
    """

    manifest: Manifest
    signed_by: bytes | None
    sealed: bool


async def read_manifest(
    connection: Connection, name: PublicationName, member: Member
) -> KnownPublication:
    """Ask for the newest manifest of a publication and check that it is the publication's.

    Raises:
        RequestRejected: There is no such publication.
        DataError: The manifest cannot be used.
        KvcsError: The session ended.
    """
    config = member.consumer_config()
    track = ManifestTrack(
        Source(connection, name),
        config,
        signal=Signal(),
        check=lambda manifest: check_identity(manifest, name, member.scope_key, config.profile),
        on_manifest=lambda _: None,
        on_error=lambda _error, _discards: None,
    )
    try:
        manifest = await track.open()
        signed_by = None if track.key is None else track.key.kid
        return KnownPublication(manifest, signed_by, sealed=config.object_keys is not None)
    finally:
        track.close()


def _read(path: Path, flag: str, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        got = f"{path}: {error.strerror}"
        raise ConfigError(flag, "a readable file", got) from error
    if len(data) > limit:
        raise ConfigError(flag, f"a file of at most {limit} octets", str(path))
    return data
