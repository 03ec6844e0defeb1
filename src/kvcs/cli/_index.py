"""An index of publications in a file: a line of JSON for each, newest last.

``kvcs publish --index`` adds a line, ``kvcs fetch --index`` looks publications up instead of
asking relays about prefixes. A line has the name of a publication and the Block Keys of its first
segment: keyed identifiers, which name no model and no prompt, and lead only who has the scope key
anywhere. It does not say whether the publication is still there.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kvcs.client import IndexEntry
from kvcs.errors import ConfigError, DataError, FileFailed
from kvcs.kv.identity import BlockKey
from kvcs.kv.naming import PublicationName
from kvcs.kv.strict_json import JsonLimits, Members, decode_json, encode_json
from kvcs.names import TrackNamespace

__all__ = ("MAX_INDEX_BYTES", "FileIndex", "add_to_index")

#: Octets of an index file that are read: a thousand publications of 900 blocks.
MAX_INDEX_BYTES: Final = 64 * 2**20

_KEY_BYTES: Final = 32
_MAX_BLOCKS: Final = 2**16
# Quotes of a key, a comma, and the name of the publication.
_LIMITS: Final = JsonLimits(
    max_bytes=_MAX_BLOCKS * (2 * _KEY_BYTES + 3) + 4096, max_depth=2, max_values=_MAX_BLOCKS + 8
)


class FileIndex:
    """An index in a file that members of the scope share; a `kvcs.client.PublicationIndex`.

    Args:
        path: The file; it is read anew for every question.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def look_up(self, block_keys: Sequence[BlockKey]) -> Sequence[IndexEntry]:
        """Return the publications that begin with at least the first block, newest first.

        Raises:
            FileFailed: The file cannot be read, or is too large.
            DataError: A line is none of an index.
        """
        return await asyncio.to_thread(self._look_up, tuple(block_keys))

    def _look_up(self, block_keys: tuple[BlockKey, ...]) -> list[IndexEntry]:
        found = [
            IndexEntry(name=name, blocks=blocks, segment_keys=keys)
            for name, keys in self._lines()
            if (blocks := _common(keys, block_keys))
        ]
        return found[::-1]

    def _lines(self) -> Iterator[tuple[PublicationName, tuple[BlockKey, ...]]]:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_INDEX_BYTES + 1)
        except OSError as error:
            raise FileFailed(f"{self._path}: {error.strerror}") from error
        if len(content) > MAX_INDEX_BYTES:
            raise FileFailed(f"{self._path}: an index of more than {MAX_INDEX_BYTES} octets")
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                yield _decode(line)
            except (ValueError, DataError) as error:
                raise DataError(f"{self._path}, line {number}: {error}") from error


def add_to_index(path: Path, name: PublicationName, block_keys: Sequence[BlockKey]) -> None:
    """Add a publication to an index file, which is made if it is not there.

    Several publishers may add to one file at the same time.

    Raises:
        ConfigError: The file cannot be written, or the publication has too many blocks.
    """
    if len(block_keys) > _MAX_BLOCKS:
        raise ConfigError("--index", f"at most {_MAX_BLOCKS} blocks", str(len(block_keys)))
    line = encode_json(
        {"namespace": str(name), "block_keys": [block_key.hex() for block_key in block_keys]}
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        # Unbuffered: one write is appended as a whole, also beside those of others.
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            file.write(line.encode() + b"\n")
    except OSError as error:
        got = f"{path}: {error.strerror}"
        raise ConfigError("--index", "a file that can be written", got) from error


def _decode(line: bytes) -> tuple[PublicationName, tuple[BlockKey, ...]]:
    members = Members(decode_json(line, _LIMITS), "the line")
    name = PublicationName.parse(TrackNamespace.parse(members.take("namespace", str)))
    keys = tuple(BlockKey(bytes.fromhex(str(text))) for text in members.take_array("block_keys"))
    if not keys or any(len(key) != _KEY_BYTES for key in keys) or keys[-1] != name.anchor_key:
        raise ValueError("block_keys are not those of the publication")
    return name, keys


def _common(listed: Sequence[bytes], asked: Sequence[bytes]) -> int:
    """Return how many blocks two chains of keys share: a key stands for all before it too."""
    shared = min(len(listed), len(asked))
    return next(
        (count for count in range(shared, 0, -1) if listed[count - 1] == asked[count - 1]), 0
    )
