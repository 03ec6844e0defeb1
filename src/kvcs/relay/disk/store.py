"""Objects on disk: an index and files, behind a few operations that block.

Theory of operation. A `DiskStore` belongs to one thread. Each operation is one transaction of
the index. An Object counts as held once its record is in a file and the index says where; so
the file is written first, and whatever a crash leaves behind the noted end of a file is
overwritten. Files that the index does not know are deleted.

Every record that is read is checked against its digest; one that is damaged is forgotten.
Nothing that has expired is read. Times are stamps of the disk clock, given by the caller.
"""

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from kvcs.errors import ConfigError
from kvcs.moqt.track.interval import IntervalSet
from kvcs.moqt.wire.object import Object
from kvcs.names import FullTrackName
from kvcs.relay.disk.files import SHARDS, ObjectFiles, ReadFile
from kvcs.relay.disk.index import DiskIndex, FileRow, Place, TrackRow
from kvcs.relay.disk.operation import (
    Contents,
    Loaded,
    Lost,
    Recalled,
    StoredTrack,
    TrackWrite,
    Written,
)
from kvcs.relay.disk.record import (
    KEY_BYTES,
    decode_knowledge,
    decode_record,
    encode_header,
    encode_knowledge,
    record_bytes,
)

__all__ = ("DiskStore",)

# A file is deleted as a whole when its first Object expires, so it covers a short time.
_FILE_SPAN: Final = 60.0
# ... and a small part of how long its Objects may be kept.
_FILE_SPAN_SHARE: Final = 16
_MAX_FILE_BYTES: Final = 256 * 2**20
# What one read hands over is taken in by the event loop in one go.
_MAX_READ_OBJECTS: Final = 256
# The wall clock may have been adjusted a little while the relay was down.
_CLOCK_TOLERANCE: Final = 1.0


class DiskStore:
    """An open directory; operations may raise `OSError` and `sqlite3.Error`."""

    def __init__(self, directory: Path) -> None:
        """Open a directory, or make it.

        Raises:
            ConfigError: It cannot be made or written, or another relay uses it.
        """
        self._directory = directory
        self._discarded: dict[str, int] = {}
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
            self._lock = _lock(directory / "lock")
        except OSError as error:
            raise _unusable(directory, error) from error
        try:
            self._files = ObjectFiles(directory / "objects")
            self._index = self._open_index()
        except (OSError, sqlite3.Error) as error:
            os.close(self._lock)
            raise _unusable(directory, error) from error

    def __repr__(self) -> str:
        return f"<DiskStore {self._directory}>"

    def _open_index(self) -> DiskIndex:
        path = self._directory / "index.sqlite3"
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            return DiskIndex(path)
        except sqlite3.Error:
            # Without it nothing can be found, and nothing may stay.
            for name in ("index.sqlite3", "index.sqlite3-wal", "index.sqlite3-shm"):
                (self._directory / name).unlink(missing_ok=True)
            objects = self._directory / "objects"
            sizes = (path.stat().st_size for path in objects.rglob("*") if path.is_file())
            self._discarded["index"] = sum(sizes)
            shutil.rmtree(objects)
            self._files = ObjectFiles(objects)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            return DiskIndex(path)

    def close(self) -> None:
        """Let go of the directory."""
        self._index.close()
        os.close(self._lock)

    # Starting.

    def contents(self, stamp: float) -> Contents:
        """Return what is there, after what has expired was deleted.

        Where the clock was set back while nobody looked, it is not known what has expired:
        everything that ever expires is deleted.
        """
        with self._index.transaction():
            went_back = stamp < self._index.seen() - _CLOCK_TOLERANCE
            due = self._index.expiring_files() if went_back else self._index.due_files(stamp)
            for lost in self._remove_files(due):
                reason = "clock" if went_back else "expired"
                self._discarded[reason] = self._discarded.get(reason, 0) + lost.freed_bytes
            self._index.note_time(stamp)
        tracks = tuple(
            StoredTrack(_name(row), row.size_bytes, row.complete, row.used)
            for row in self._index.tracks()
        )
        return Contents(tracks, self._index.next_expiry(), self._discarded)

    def sweep(self, shard: int) -> int | None:
        """Delete the files of one folder that the index does not know; return the next folder."""
        present = sorted(self._files.present(shard))
        if present:
            known = self._index.file_ids(present[0], present[-1] + 1)
            for file_id in present:
                if file_id not in known:
                    self._files.remove(file_id)
        return shard + 1 if shard + 1 < SHARDS else None

    # Writing.

    def write(self, writes: Sequence[TrackWrite], stamp: float) -> Written:
        """Write Objects and knowledge of Tracks, all or nothing."""
        sizes: dict[FullTrackName, int] = {}
        created: list[int] = []
        try:
            with self._index.transaction():
                self._index.note_time(stamp)
                for write in writes:
                    size_bytes = self._write_track(write, created)
                    if size_bytes is not None:
                        sizes[write.name] = size_bytes
        except BaseException:
            for file_id in created:
                self._files.remove(file_id)
            raise
        return Written(sizes, self._index.next_expiry())

    def use(self, used: dict[FullTrackName, float], stamp: float) -> None:
        """Note when Tracks were asked for last."""
        with self._index.transaction():
            self._index.note_time(stamp)
            for name, when in used.items():
                self._index.use_track(name.encode(), when)

    def shift(self, seconds: float, stamp: float) -> float | None:
        """Move all stamps, since the clock was set; return when the first file expires."""
        with self._index.transaction():
            self._index.shift(seconds)
            self._index.note_time(stamp)
        return self._index.next_expiry()

    def _write_track(self, write: TrackWrite, created: list[int]) -> int | None:
        """Write to one Track; None if all of it expired since the write was prepared."""
        name = write.name.encode()
        row = self._index.track(name)
        if row is None and write.knowledge is None:
            return None
        if row is None:
            key = os.urandom(KEY_BYTES)
            track_id, size_bytes = self._index.add_track(name, key, used=write.used), 0
        else:
            track_id, key, size_bytes = row.track_id, row.key, row.size_bytes
        if write.knowledge is not None:
            knowledge = encode_knowledge(key, name, write.knowledge)
            self._index.save_knowledge(track_id, knowledge, lifetime=write.lifetime)
        self._index.set_complete(track_id, complete=write.complete)
        self._index.use_track(name, write.used)
        groups: dict[int, list[tuple[Object, float]]] = {}
        for entry in write.objects:
            groups.setdefault(entry[0].group_id, []).append(entry)
        for group_id, entries in groups.items():
            file = self._file(track_id, group_id, entries[0][1], write.lifetime)
            if not file.size_bytes:
                created.append(file.file_id)
            size_bytes += self._append(file, key, entries)
        return size_bytes

    def _file(self, track_id: int, group_id: int, now: float, lifetime: float | None) -> FileRow:
        """Return the file that takes the next Objects of a Group."""
        span = _FILE_SPAN if lifetime is None else min(_FILE_SPAN, lifetime / _FILE_SPAN_SHARE)
        file = self._index.latest_file(track_id, group_id)
        if file is not None and now < file.first + span and file.size_bytes < _MAX_FILE_BYTES:
            return file
        return self._index.add_file(track_id, group_id, first=now)

    def _append(self, file: FileRow, key: bytes, entries: Sequence[tuple[Object, float]]) -> int:
        buffers: list[bytes] = []
        places: list[Place] = []
        offset = file.size_bytes
        for obj, received in entries:
            header = encode_header(key, obj)
            buffers += (header, obj.properties.raw, obj.payload)
            head_bytes = len(header) + len(obj.properties.raw)
            position = obj.group_id << 64 | obj.object_id
            payload_bytes, is_data = len(obj.payload), not obj.status
            places.append(
                Place(position, file.file_id, offset, head_bytes, payload_bytes, is_data, received)
            )
            offset += record_bytes(obj)
        self._files.write(file.file_id, file.size_bytes, buffers)
        self._index.add_objects(file.track_id, places)
        first = min(received for _, received in entries)
        return self._index.extend_file(file, size_bytes=offset, first=first)

    # Reading.

    def recall(self, name: FullTrackName, stamp: float) -> Recalled | None:
        """Return what is on disk of a Track; None if there is nothing, or it is damaged."""
        encoded = name.encode()
        row = self._index.track(encoded)
        if row is None:
            return None
        knowledge = decode_knowledge(row.key, encoded, self._index.knowledge(row.track_id))
        if knowledge is None:
            self.drop([name])
            return None
        with self._index.transaction():
            self._index.use_track(encoded, stamp)
        held = IntervalSet()
        for position in self._index.data_positions(row.track_id):
            held.add(position, position)
        return Recalled(knowledge, held)

    def read(self, name: FullTrackName, first: int, through: int, *, limit_bytes: int) -> Loaded:
        """Read Objects from a range of positions, some hundred at most.

        Args:
            name: The Track.
            first: First position.
            through: Last position, inclusive.
            limit_bytes: Enough; the Object that exceeds it is the last one.
        """
        loaded = Loaded(through)
        row = self._index.track(name.encode())
        if row is None:
            return loaded
        bad: list[Place] = []
        with _Reader(self._files) as reader:
            for place in self._index.places(row.track_id, first, through):
                if loaded.size_bytes >= limit_bytes or len(loaded.objects) >= _MAX_READ_OBJECTS:
                    loaded.through = place.position - 1
                    break
                obj = reader.read(row.key, place)
                if obj is None:
                    bad.append(place)
                    continue
                loaded.objects.append((obj, place.received))
                loaded.size_bytes += place.head_bytes + place.payload_bytes
        if bad:
            loaded.damaged_bytes = sum(place.head_bytes + place.payload_bytes for place in bad)
            self._forget(row, bad)
        return loaded

    def _forget(self, row: TrackRow, places: Sequence[Place]) -> None:
        with self._index.transaction():
            self._index.set_complete(row.track_id, complete=False)
            for place in places:
                self._index.remove_object(row.track_id, place.position)

    # Deleting.

    def expire(self, stamp: float) -> tuple[tuple[Lost, ...], float | None]:
        """Delete what has expired; return what that was, and when the next file expires."""
        with self._index.transaction():
            self._index.note_time(stamp)
            lost = tuple(self._remove_files(self._index.due_files(stamp)))
        return lost, self._index.next_expiry()

    def drop(self, names: Sequence[FullTrackName]) -> None:
        """Delete Tracks; unknown ones are ignored."""
        files: list[int] = []
        with self._index.transaction():
            for name in names:
                row = self._index.track(name.encode())
                if row is not None:
                    files += self._index.remove_track(row.track_id)
        for file_id in files:
            self._files.remove(file_id)

    def _remove_files(self, due: Sequence[FileRow]) -> Iterator[Lost]:
        by_track: dict[int, list[FileRow]] = {}
        for file in due:
            by_track.setdefault(file.track_id, []).append(file)
        for track_id, files in by_track.items():
            before = self._index.track_by_id(track_id)
            positions = IntervalSet()
            for file in files:
                # Deleted first: what the index still names is found missing, not kept for ever.
                self._files.remove(file.file_id)
                for position in self._index.remove_file(file):
                    positions.add(position, position)
            after: int | None = None
            if self._index.is_empty(track_id):
                self._index.remove_track(track_id)
            else:
                self._index.set_complete(track_id, complete=False)
                after = self._index.track_by_id(track_id).size_bytes
            freed_bytes = before.size_bytes - (after or 0)
            yield Lost(_name(before), after, freed_bytes, tuple(positions))


class _Reader:
    """Reads Objects; the file of the last one stays open for the next."""

    def __init__(self, files: ObjectFiles) -> None:
        self._files = files
        self._file_id = -1
        self._file: ReadFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, key: bytes, place: Place) -> Object | None:
        """Return the Object at a place, or None if it is damaged or cannot be read."""
        try:
            if place.file_id != self._file_id:
                self._close()
                self._file_id = place.file_id
                self._file = self._files.open(place.file_id)
            if self._file is None:
                return None
            head = self._file.read(place.offset, place.head_bytes)
            payload = self._file.read(place.offset + place.head_bytes, place.payload_bytes)
        except OSError:
            return None
        return decode_record(key, place.position, head, payload)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _unusable(directory: Path, error: OSError | sqlite3.Error) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, BlockingIOError):
        reason = "in use by another relay"
    return ConfigError(
        "disk.directory",
        "a directory that can be written, for this relay alone",
        f"{directory}: {reason}",
    )


def _name(row: TrackRow) -> FullTrackName:
    return FullTrackName.decode(row.name)[0]
