"""The files of the disk tier, by number: private, appended to, read in pieces, deleted.

They lie in 256 folders, so that no folder grows too long. Every method may raise `OSError`.
"""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ("SHARDS", "ObjectFiles", "ReadFile")

SHARDS: Final = 256
_MAX_NUMBER: Final = 2**63 - 2
_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600
# Links are not followed, and nobody is waited for at the other end of a pipe.
_PLAIN: Final = os.O_NOFOLLOW | os.O_NONBLOCK
# Buffers that the system takes in one call.
_MAX_BUFFERS: Final = 512


class ObjectFiles:
    """All files below one directory."""

    def __init__(self, directory: Path) -> None:
        """Make the folders that are missing."""
        self._directory = directory
        directory.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)
        for shard in range(SHARDS):
            folder = self._shard(shard)
            folder.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)
            if folder.is_symlink():
                # What is unknown there is deleted, and would be somebody else's.
                raise OSError(errno.ELOOP, f"{folder} leads elsewhere")

    def __repr__(self) -> str:
        return f"<ObjectFiles {self._directory}>"

    def path(self, file_id: int) -> Path:
        """Return where a file is."""
        return self._shard(file_id % SHARDS) / f"{file_id:x}"

    def write(self, file_id: int, offset: int, buffers: Sequence[bytes]) -> None:
        """Write buffers one after the other, from `offset` on; the file may be new.

        What lies behind `offset` is left from a write that was never noted, and lost.
        """
        flags = os.O_WRONLY | os.O_CREAT | _PLAIN
        descriptor = os.open(self.path(file_id), flags, _PRIVATE_FILE)
        try:
            for first in range(0, len(buffers), _MAX_BUFFERS):
                offset = _write_all(descriptor, offset, buffers[first : first + _MAX_BUFFERS])
        finally:
            os.close(descriptor)

    def open(self, file_id: int) -> "ReadFile":
        """Open a file to read from it."""
        return ReadFile(os.open(self.path(file_id), os.O_RDONLY | _PLAIN))

    def remove(self, file_id: int) -> None:
        """Delete a file; one that is not there is ignored."""
        self.path(file_id).unlink(missing_ok=True)

    def present(self, shard: int) -> Iterator[int]:
        """Yield the numbers of the files in one folder; all else there is deleted."""
        with os.scandir(self._shard(shard)) as entries:
            for entry in entries:
                number = _number(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                elif number is None or number % SHARDS != shard:
                    Path(entry.path).unlink()
                else:
                    yield number

    def _shard(self, shard: int) -> Path:
        return self._directory / f"{shard:02x}"


class ReadFile:
    """One open file."""

    __slots__ = ("_descriptor", "_size_bytes")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = os.fstat(descriptor).st_size

    def __repr__(self) -> str:
        return f"<ReadFile {self._descriptor}>"

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` octets from `offset` on, fewer at the end of the file."""
        # No memory is made ready for octets that are not there.
        return os.pread(self._descriptor, min(size, self._size_bytes), offset)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


def _write_all(descriptor: int, offset: int, buffers: Sequence[bytes]) -> int:
    pending = [memoryview(buffer) for buffer in buffers if buffer]
    while pending:
        written = os.pwritev(descriptor, pending, offset)
        offset += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]
    return offset


def _number(name: str) -> int | None:
    """Return the number of a file by its name, None if it is no name that we give."""
    try:
        number = int(name, 16)
    except ValueError:
        return None
    return number if 0 < number <= _MAX_NUMBER and name == f"{number:x}" else None
