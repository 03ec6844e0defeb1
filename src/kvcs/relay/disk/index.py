"""The index of the disk tier: which Object is where, and what is known of each Track.

Theory of operation. SQLite keeps it, in one file beside those with the Objects, with a
write-ahead log and without waiting for the disk: after a crash of the process nothing that
was committed is lost, after one of the machine perhaps the last moments, and neither
damages it. It may then name records that never reached their file, which their digests tell.

A file holds Objects of one Group of one Track, received shortly after each other, and is
deleted as a whole when the first of them expires. Times are stamps of the disk clock
(`kvcs.relay.disk.clock`). Nothing here touches those files.
"""

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvcs.errors import RemoteProtocolError
from kvcs.names import FullTrackName
from kvcs.varint import NeedMore

__all__ = ("BLOCK_BYTES", "DiskIndex", "FileRow", "Place", "TrackRow", "block_bytes")

type _Row = tuple[Any, ...]

# What the smallest file takes on a usual file system.
BLOCK_BYTES: Final = 4096

_VERSION: Final = 2
# Strict, so that the check at the start finds values of other types.
_SCHEMA: Final = (
    """CREATE TABLE tracks (
    id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, key BLOB NOT NULL,
    knowledge BLOB NOT NULL, lifetime REAL, complete INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL CHECK (size_bytes BETWEEN 0 AND 1 << 60), used REAL NOT NULL
) STRICT""",
    """CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, track INTEGER NOT NULL,
    group_id BLOB NOT NULL CHECK (length(group_id) = 8),
    size_bytes INTEGER NOT NULL CHECK (size_bytes BETWEEN 0 AND 1 << 60),
    first REAL NOT NULL, expires REAL
) STRICT""",
    "CREATE INDEX files_of_group ON files (track, group_id)",
    "CREATE INDEX files_by_expiry ON files (expires) WHERE expires IS NOT NULL",
    """CREATE TABLE objects (
    track INTEGER NOT NULL, position BLOB NOT NULL CHECK (length(position) = 16),
    file INTEGER NOT NULL, offset INTEGER NOT NULL CHECK (offset >= 0),
    head_bytes INTEGER NOT NULL CHECK (head_bytes >= 0),
    payload_bytes INTEGER NOT NULL CHECK (payload_bytes >= 0),
    is_data INTEGER NOT NULL, received REAL NOT NULL,
    PRIMARY KEY (track, position)
) STRICT, WITHOUT ROWID""",
    "CREATE TABLE clock (seen REAL NOT NULL) STRICT",
)


def block_bytes(size_bytes: int) -> int:
    """Return what a file of `size_bytes` takes on disk."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class TrackRow:
    """One Track.

    Attributes:
        track_id: Number in the index.
        name: Encoded Full Track Name.
        key: What its records are marked with.
        complete: Whether every Object of it is on disk.
        size_bytes: Octets of its files, in whole blocks.
        used: When somebody asked for it last.
    """

    track_id: int
    name: bytes
    key: bytes
    complete: bool
    size_bytes: int
    used: float


class FileRow(NamedTuple):
    """One file."""

    file_id: int
    track_id: int
    group_id: int
    size_bytes: int
    first: float


class Place(NamedTuple):
    """Where one Object is."""

    position: int
    file_id: int
    offset: int
    head_bytes: int
    payload_bytes: int
    is_data: bool
    received: float


class DiskIndex:
    """An open index; every method may raise `sqlite3.Error`."""

    def __init__(self, path: Path) -> None:
        """Open an index, or make an empty one.

        Raises:
            sqlite3.Error: The file is not an index of this version, or is damaged.
        """
        self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            self._prepare()
        except sqlite3.Error:
            self._connection.close()
            raise

    def __repr__(self) -> str:
        return f"<DiskIndex in_transaction={self._connection.in_transaction}>"

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        version = self._value("PRAGMA user_version")
        if version == 0:
            begin, end = ("BEGIN", *_SCHEMA), (f"PRAGMA user_version = {_VERSION}", "COMMIT")
            steps = (*begin, "INSERT INTO clock VALUES (0)", *end)
            self._connection.executescript("; ".join(steps))
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"version {version} of the index, {_VERSION} expected")
        result = self._value("PRAGMA quick_check(1)")
        if result != "ok":
            raise sqlite3.DatabaseError(result)
        self._check_contents()

    def _check_contents(self) -> None:
        """Check what SQLite does not: that the index is ours, and that all in it belongs together.

        Raises:
            sqlite3.DatabaseError: It is not.
        """
        query = "SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%' ORDER BY rowid"
        if [row[0] for row in self._all(query)] != list(_SCHEMA):
            raise sqlite3.DatabaseError("the tables are not those of an index")
        if self._value("SELECT count(*) FROM clock") != 1:
            raise sqlite3.DatabaseError("it does not say when it was used")
        if self._one("SELECT 1 FROM files WHERE track NOT IN (SELECT id FROM tracks) LIMIT 1"):
            raise sqlite3.DatabaseError("a file belongs to no Track")
        for row in self._all("SELECT name FROM tracks"):
            _check_name(row[0])

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Do all that happens inside, or nothing of it."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # SQLite has rolled back by itself after some errors, a full disk among them.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    # The clock.

    def seen(self) -> float:
        """Return the latest stamp that was ever noted."""
        return float(self._value("SELECT seen FROM clock"))

    def note_time(self, stamp: float) -> None:
        """Note the time."""
        self._execute("UPDATE clock SET seen = ?", stamp)

    def shift(self, seconds: float) -> None:
        """Move all stamps: the clock was set."""
        self._execute("UPDATE files SET first = first + ?, expires = expires + ?", seconds, seconds)
        self._execute("UPDATE objects SET received = received + ?", seconds)
        self._execute("UPDATE tracks SET used = used + ?", seconds)

    # Tracks.

    def tracks(self) -> list[TrackRow]:
        """Return all Tracks, those that nobody asked for since long first."""
        return [_track(row) for row in self._all(f"{_TRACKS} ORDER BY used")]

    def track(self, name: bytes) -> TrackRow | None:
        """Return a Track by its encoded name."""
        row = self._one(f"{_TRACKS} WHERE name = ?", name)
        return None if row is None else _track(row)

    def track_by_id(self, track_id: int) -> TrackRow:
        """Return a Track that is there."""
        row = self._one(f"{_TRACKS} WHERE id = ?", track_id)
        assert row is not None, "files belong to Tracks"
        return _track(row)

    def knowledge(self, track_id: int) -> bytes:
        """Return what is known of a Track, encoded."""
        row = self._one("SELECT knowledge FROM tracks WHERE id = ?", track_id)
        return b"" if row is None else bytes(row[0])

    def add_track(self, name: bytes, key: bytes, *, used: float) -> int:
        """Add a Track; return its number."""
        return self._execute(
            "INSERT INTO tracks (name, key, knowledge, complete, size_bytes, used)"
            " VALUES (?, ?, x'', 0, 0, ?)",
            name,
            key,
            used,
        )

    def save_knowledge(self, track_id: int, knowledge: bytes, *, lifetime: float | None) -> None:
        """Save what is known of a Track; a new lifetime holds for its files, too."""
        row = self._one("SELECT lifetime FROM tracks WHERE id = ?", track_id)
        self._execute(
            "UPDATE tracks SET knowledge = ?, lifetime = ? WHERE id = ?",
            knowledge,
            lifetime,
            track_id,
        )
        if row is not None and row[0] != lifetime:
            self._execute(
                "UPDATE files SET expires = first + ? WHERE track = ?", lifetime, track_id
            )

    def set_complete(self, track_id: int, *, complete: bool) -> None:
        """Note whether every Object of a Track is there."""
        self._execute("UPDATE tracks SET complete = ? WHERE id = ?", complete, track_id)

    def use_track(self, name: bytes, used: float) -> None:
        """Note when somebody asked for a Track."""
        self._execute("UPDATE tracks SET used = ? WHERE name = ?", used, name)

    def remove_track(self, track_id: int) -> list[int]:
        """Remove a Track and all in it; return the numbers of its files."""
        files = [row[0] for row in self._all("SELECT id FROM files WHERE track = ?", track_id)]
        for table, column in (("objects", "track"), ("files", "track"), ("tracks", "id")):
            self._execute(f"DELETE FROM {table} WHERE {column} = ?", track_id)  # noqa: S608
        return files

    # Files.

    def latest_file(self, track_id: int, group_id: int) -> FileRow | None:
        """Return the last file of a Group."""
        row = self._one(
            f"{_FILES} WHERE track = ? AND group_id = ? ORDER BY id DESC LIMIT 1",
            track_id,
            _group(group_id),
        )
        return None if row is None else _file(row)

    def add_file(self, track_id: int, group_id: int, *, first: float) -> FileRow:
        """Add an empty file; its number was never used before."""
        file_id = self._execute(
            "INSERT INTO files (track, group_id, size_bytes, first, expires)"
            " SELECT id, ?, 0, ?, ? + lifetime FROM tracks WHERE id = ?",
            _group(group_id),
            first,
            first,
            track_id,
        )
        return FileRow(file_id, track_id, group_id, 0, first)

    def extend_file(self, file: FileRow, *, size_bytes: int, first: float) -> int:
        """Note that a file grew; return the blocks by which it did, in octets."""
        first = min(first, file.first)
        self._execute(
            "UPDATE files SET size_bytes = ?, first = ?, expires = expires - first + ?"
            " WHERE id = ?",
            size_bytes,
            first,
            first,
            file.file_id,
        )
        grown = block_bytes(size_bytes) - block_bytes(file.size_bytes)
        self._grow(file.track_id, grown)
        return grown

    def due_files(self, stamp: float) -> list[FileRow]:
        """Return the files that have expired."""
        return [_file(row) for row in self._all(f"{_FILES} WHERE expires <= ?", stamp)]

    def expiring_files(self) -> list[FileRow]:
        """Return the files that expire at any time."""
        return [_file(row) for row in self._all(f"{_FILES} WHERE expires IS NOT NULL")]

    def file_ids(self, first: int, stop: int) -> set[int]:
        """Return the numbers of the files from `first` on, below `stop`."""
        query = "SELECT id FROM files WHERE id >= ? AND id < ?"
        return {row[0] for row in self._all(query, first, stop)}

    def remove_file(self, file: FileRow) -> list[int]:
        """Remove a file and the Objects in it; return the positions of its data."""
        span = file.track_id, _position(file.group_id << 64), _group(file.group_id) + b"\xff" * 8
        where = "track = ? AND position BETWEEN ? AND ? AND file = ?"
        rows = self._all(
            f"SELECT position FROM objects WHERE {where} AND is_data",  # noqa: S608
            *span,
            file.file_id,
        )
        self._execute(f"DELETE FROM objects WHERE {where}", *span, file.file_id)  # noqa: S608
        self._execute("DELETE FROM files WHERE id = ?", file.file_id)
        self._grow(file.track_id, -block_bytes(file.size_bytes))
        return [int.from_bytes(row[0]) for row in rows]

    def next_expiry(self) -> float | None:
        """Return when the first file expires."""
        return self._value("SELECT min(expires) FROM files WHERE expires IS NOT NULL")

    def is_empty(self, track_id: int) -> bool:
        """Tell whether a Track has no files."""
        return self._one("SELECT 1 FROM files WHERE track = ? LIMIT 1", track_id) is None

    def _grow(self, track_id: int, grown_bytes: int) -> None:
        if grown_bytes:
            self._execute(
                "UPDATE tracks SET size_bytes = size_bytes + ? WHERE id = ?", grown_bytes, track_id
            )

    # Objects.

    def add_objects(self, track_id: int, places: Sequence[Place]) -> None:
        """Add Objects; one that is there already is found at its new place."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            ((track_id, _position(place.position), *place[1:]) for place in places),
        )

    def remove_object(self, track_id: int, position: int) -> None:
        """Remove one Object."""
        self._execute(
            "DELETE FROM objects WHERE track = ? AND position = ?", track_id, _position(position)
        )

    def places(self, track_id: int, first: int, through: int) -> Iterator[Place]:
        """Yield the Objects between two positions, inclusive, in order."""
        rows = self._connection.execute(
            "SELECT position, file, offset, head_bytes, payload_bytes, is_data, received"
            " FROM objects WHERE track = ? AND position BETWEEN ? AND ? ORDER BY position",
            (track_id, _position(first), _position(through)),
        )
        for position, *rest in rows:
            yield Place(int.from_bytes(position), *rest)

    def data_positions(self, track_id: int) -> Iterator[int]:
        """Yield the positions of all data of a Track, in order."""
        rows = self._connection.execute(
            "SELECT position FROM objects WHERE track = ? AND is_data ORDER BY position",
            (track_id,),
        )
        for row in rows:
            yield int.from_bytes(row[0])

    def _execute(self, statement: str, *values: object) -> int:
        """Execute a statement; return the number of the row that it added, if any."""
        return self._connection.execute(statement, values).lastrowid or 0

    def _one(self, query: str, *values: object) -> _Row | None:
        return self._connection.execute(query, values).fetchone()

    def _value(self, query: str) -> Any:
        row = self._one(query)
        assert row is not None, "the query always has a result"
        return row[0]

    def _all(self, query: str, *values: object) -> list[_Row]:
        return self._connection.execute(query, values).fetchall()


_TRACKS: Final = "SELECT id, name, key, complete, size_bytes, used FROM tracks"
_FILES: Final = "SELECT id, track, group_id, size_bytes, first FROM files"


def _check_name(encoded: bytes) -> None:
    try:
        end = FullTrackName.decode(encoded)[1]
    except (NeedMore, RemoteProtocolError) as error:
        raise sqlite3.DatabaseError("a Track has no name that can be read") from error
    if end != len(encoded):
        raise sqlite3.DatabaseError("more than a name where the name of a Track belongs")


def _track(row: _Row) -> TrackRow:
    track_id, name, key, complete, size_bytes, used = row
    return TrackRow(track_id, name, key, bool(complete), size_bytes, used)


def _file(row: _Row) -> FileRow:
    file_id, track_id, group_id, size_bytes, first = row
    return FileRow(file_id, track_id, int.from_bytes(group_id), size_bytes, first)


def _group(group_id: int) -> bytes:
    return group_id.to_bytes(8)


def _position(position: int) -> bytes:
    return position.to_bytes(16)
