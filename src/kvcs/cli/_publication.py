"""Publications and their parts as the command line reads them: URLs, tokens, descriptors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from kvcs.client.config import ConsumerConfig
from kvcs.client.manifest_track import ManifestTrack
from kvcs.client.signal import Signal
from kvcs.client.source import Source
from kvcs.endpoint.connection import Connection
from kvcs.endpoint.url import parse_url
from kvcs.errors import ConfigError, DataError
from kvcs.kv.consistency import check_identity
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.identity import MAX_TOKEN, ScopeKey
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import PublicationName
from kvcs.names import TrackNamespace

__all__ = ("parse_fragment", "read_descriptor", "read_manifest", "read_tokens")

_MARK: Final = "kvcs:"
# A million tokens, and a descriptor far larger than any.
_MAX_TOKENS_BYTES: Final = 2**24
_MAX_DESCRIPTOR_BYTES: Final = 2**20


def parse_fragment(url: str) -> PublicationName | None:
    """Return the exact publication that a URL names, or None.

    Raises:
        ConfigError: Not a MOQT URL, or its fragment names no publication.
    """
    fragment = parse_url(url).fragment
    if not fragment:
        return None
    expected = "#kvcs:NAMESPACE, as kvcs publish prints it"
    if not fragment.startswith(_MARK):
        raise ConfigError("the URL's fragment", expected, fragment[:40])
    try:
        return PublicationName.parse(TrackNamespace.parse(fragment.removeprefix(_MARK)))
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
        ConfigError: The file cannot be read.
        DataError: It holds no descriptor.
    """
    return Descriptor.decode(_read(path, "--compat", _MAX_DESCRIPTOR_BYTES))


async def read_manifest(
    connection: Connection, name: PublicationName, scope_key: ScopeKey
) -> Manifest:
    """Ask for the newest manifest of a publication and check that it is the publication's.

    Raises:
        RequestRejected: There is no such publication.
        DataError: The manifest cannot be used.
        KvcsError: The session ended.
    """
    config = ConsumerConfig()
    track = ManifestTrack(
        Source(connection, name),
        config,
        signal=Signal(),
        check=lambda manifest: check_identity(manifest, name, scope_key, config.profile),
        on_manifest=lambda _: None,
        on_error=lambda _error, _discards: None,
    )
    try:
        return await track.open()
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
