import errno
import os
import sqlite3
import stat

import pytest

from kvcs.errors import ConfigError
from kvcs.moqt.codepoints import ObjectStatus, PropertyType
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.wire.properties import Properties
from kvcs.names import FullTrackName, Location
from kvcs.relay.disk.index import BLOCK_BYTES
from kvcs.relay.disk.operation import StoredTrack
from kvcs.relay.disk.store import DiskStore

from .conftest import ALL, TRACK

OTHER = FullTrackName(TRACK.namespace, b"v")
LIMIT = 2**30


def read(store, name=TRACK, first=0, through=ALL, limit=LIMIT):
    return store.read(name, first, through, limit_bytes=limit)


def objects(loaded):
    return [obj for obj, _ in loaded.objects]


def object_files(directory):
    return sorted(path for path in (directory / "objects").rglob("*") if path.is_file())


def test_objects_come_back_after_a_restart_with_all_that_is_known(
    open_store, make_object, make_write
):
    written = [make_object(0, 0), make_object(0, 1), make_object(1, 0)]
    ends = [make_object(0, 2, status=ObjectStatus.END_OF_GROUP)]
    knowledge = Knowledge(
        properties=Properties.of((PropertyType.MAX_CACHE_DURATION, 60_000)),
        largest=Location(1, 0),
        end=Location(1, 0),
        absent=((2, 2**64 - 1), (2**64 + 1, ALL)),
        group_ends=((0, 2, 2),),
    )
    store = open_store()
    store.write([make_write(*written, *ends, knowledge=knowledge, complete=True)], 1000.0)

    store = open_store()

    assert store.contents(1001.0).tracks == (StoredTrack(TRACK, 2 * BLOCK_BYTES, True, 1000.0),)
    recalled = store.recall(TRACK, 1001.0)
    assert recalled.knowledge == knowledge
    assert list(recalled.held) == [(0, 1), (2**64, 2**64)]
    assert objects(read(store)) == [written[0], written[1], ends[0], written[2]]
    assert {received for _, received in read(store).objects} == {1000.0}


def test_files_and_directories_are_private(open_store, directory, make_object, make_write):
    before = os.umask(0)
    try:
        open_store().write([make_write(make_object(0, 0))], 1000.0)
    finally:
        os.umask(before)

    for path in (directory, *directory.rglob("*")):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_read_stops_at_its_limit_and_says_how_far_it_came(open_store, make_object, make_write):
    store = open_store()
    store.write([make_write(*(make_object(0, number) for number in range(10)))], 1000.0)

    loaded = read(store, first=2, limit=2500)

    assert [obj.object_id for obj in objects(loaded)] == [2, 3, 4]
    assert loaded.through == 4
    assert read(store, first=8).through == ALL


def test_read_takes_a_bounded_number_of_small_objects(open_store, make_object, make_write):
    store = open_store()
    store.write([make_write(*(make_object(0, number, 2) for number in range(300)))], 1000.0)

    assert len(read(store).objects) == 256
    assert read(store).through == 255


def test_objects_of_a_group_share_a_file_for_a_minute(
    open_store, directory, make_object, make_write
):
    store = open_store()
    for number, received in enumerate((1000.0, 1059.0, 1060.0)):
        store.write([make_write(make_object(0, number), received=received)], received)

    assert len(object_files(directory)) == 2
    assert [obj.object_id for obj in objects(read(store))] == [0, 1, 2]


def test_file_is_deleted_when_its_first_object_expires(
    open_store, directory, make_object, make_write
):
    store = open_store()
    for group_id in range(2):
        received = 1000.0 + 5 * group_id
        write = make_write(
            make_object(group_id, 0), received=received, lifetime=60.0, complete=True
        )
        written = store.write([write], received)
    assert written.next_expiry == 1060.0
    assert store.expire(1059.0) == ((), 1060.0)
    assert len(object_files(directory)) == 2

    (lost,), next_expiry = store.expire(1060.0)

    assert (lost.name, lost.size_bytes, lost.freed_bytes) == (TRACK, BLOCK_BYTES, BLOCK_BYTES)
    assert lost.runs == ((0, 0),)
    assert next_expiry == 1065.0
    assert len(object_files(directory)) == 1
    assert not store.contents(1060.0).tracks[0].complete

    (lost,), next_expiry = store.expire(1065.0)

    assert lost.size_bytes is None
    assert next_expiry is None
    assert store.contents(1065.0).tracks == ()
    assert object_files(directory) == []


def test_what_expired_while_nobody_ran_is_deleted_at_the_start(
    open_store, directory, make_object, make_write
):
    open_store().write([make_write(make_object(0, 0), lifetime=60.0)], 1000.0)

    contents = open_store().contents(1060.0)

    assert contents.tracks == ()
    assert contents.discarded == {"expired": BLOCK_BYTES}
    assert object_files(directory) == []


def test_clock_that_went_back_deletes_all_that_ever_expires(
    open_store, directory, make_object, make_write
):
    store = open_store()
    store.write([make_write(make_object(0, 0), lifetime=60.0)], 1000.0)
    store.write([make_write(make_object(0, 0), name=OTHER)], 1000.0)

    assert len(open_store().contents(999.5).tracks) == 2
    contents = open_store().contents(900.0)

    assert [track.name for track in contents.tracks] == [OTHER]
    assert contents.discarded == {"clock": BLOCK_BYTES}
    assert len(object_files(directory)) == 1


def test_shift_moves_expiry_with_the_clock(open_store, make_object, make_write):
    store = open_store()
    store.write([make_write(make_object(0, 0), lifetime=60.0)], 1000.0)

    assert store.shift(-500.0, 510.0) == 560.0

    assert [received for _, received in read(store).objects] == [500.0]
    assert len(open_store().contents(511.0).tracks) == 1


def test_new_lifetime_holds_for_what_is_there(open_store, make_object, make_write):
    store = open_store()
    store.write([make_write(make_object(0, 0))], 1000.0)

    assert store.write([make_write(lifetime=5.0)], 1001.0).next_expiry == 1005.0


def test_dropped_tracks_leave_no_file(open_store, directory, make_object, make_write):
    store = open_store()
    store.write([make_write(make_object(0, 0)), make_write(make_object(0, 0), name=OTHER)], 1000.0)

    store.drop([TRACK, FullTrackName(TRACK.namespace, b"unknown")])

    assert objects(read(store)) == []
    assert store.recall(TRACK, 1000.0) is None
    assert len(object_files(directory)) == 1
    assert [track.name for track in store.contents(1000.0).tracks] == [OTHER]


def test_damaged_record_is_forgotten_and_the_others_are_read(
    open_store, directory, make_object, make_write
):
    store = open_store()
    store.write(
        [make_write(*(make_object(0, number) for number in range(3)), complete=True)], 1000.0
    )
    (path,) = object_files(directory)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    loaded = read(store)

    assert [obj.object_id for obj in objects(loaded)] == [0, 2]
    assert loaded.damaged_bytes > 1000
    assert list(store.recall(TRACK, 1000.0).held) == [(0, 0), (2, 2)]
    assert not store.contents(1000.0).tracks[0].complete
    assert read(store).damaged_bytes == 0


def test_missing_file_is_damage(open_store, directory, make_object, make_write):
    store = open_store()
    store.write([make_write(make_object(0, 0), make_object(1, 0))], 1000.0)
    object_files(directory)[0].unlink()

    assert len(read(store).objects) == 1
    assert len(list(store.recall(TRACK, 1000.0).held)) == 1


def test_damaged_knowledge_loses_the_track(open_store, directory, make_object, make_write):
    store = open_store()
    store.write([make_write(make_object(0, 0))], 1000.0)

    def damage():
        connection = sqlite3.connect(directory / "index.sqlite3", isolation_level=None)
        connection.execute("UPDATE tracks SET knowledge = x'00'")
        connection.close()

    store = open_store(damage)

    assert store.recall(TRACK, 1000.0) is None
    assert store.contents(1000.0).tracks == ()


@pytest.mark.parametrize("content", [b"no index at all" * 400, b"SQLite format 3\0" + bytes(4080)])
def test_unreadable_index_costs_everything_but_not_the_start(
    open_store, directory, make_object, make_write, content
):
    store = open_store()
    store.write([make_write(make_object(0, 0))], 1000.0)

    store = open_store(lambda: (directory / "index.sqlite3").write_bytes(content))

    contents = store.contents(1000.0)
    assert contents.tracks == ()
    assert contents.discarded["index"] > 1000
    assert object_files(directory) == []


def change_index(directory, statement):
    """Change the index as damage does, which asks for no constraint."""
    connection = sqlite3.connect(directory / "index.sqlite3", isolation_level=None)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tracks SET name = x'ff'",
        "UPDATE tracks SET name = CAST(name || x'00' AS BLOB)",
        "UPDATE tracks SET size_bytes = -1",
        "UPDATE files SET track = 99",
        "UPDATE files SET group_id = zeroblob(9)",
        "UPDATE objects SET position = zeroblob(40)",
        "UPDATE objects SET payload_bytes = -1",
        "DELETE FROM clock",
        "DROP TABLE objects",
        "CREATE TRIGGER t AFTER UPDATE ON tracks BEGIN DELETE FROM objects; END",
    ],
)
def test_index_that_contradicts_itself_costs_everything_but_not_the_start(
    open_store, directory, make_object, make_write, statement
):
    open_store().write([make_write(make_object(0, 0))], 1000.0)

    store = open_store(lambda: change_index(directory, statement))

    contents = store.contents(1000.0)
    assert contents.tracks == ()
    assert contents.discarded["index"] > 1000
    store.write([make_write(make_object(0, 0))], 1000.0)
    assert len(read(store).objects) == 1


@pytest.mark.parametrize("size", [10**12, 2**62])
def test_index_that_names_more_than_there_is_makes_no_memory_ready(
    open_store, directory, make_object, make_write, size
):
    open_store().write([make_write(make_object(0, 0), make_object(0, 1))], 1000.0)
    statement = f"UPDATE objects SET payload_bytes = {size} WHERE offset = 0"
    store = open_store(lambda: change_index(directory, statement))

    assert objects(read(store)) == [make_object(0, 1)]
    assert read(store).damaged_bytes == 0


def test_folder_that_leads_elsewhere_is_not_used(open_store, directory, tmp_path):
    open_store()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    folder = directory / "objects" / "05"

    def replace():
        folder.rmdir()
        folder.symlink_to(elsewhere)

    with pytest.raises(ConfigError, match="leads elsewhere"):
        open_store(replace)
    assert list(elsewhere.iterdir()) == [elsewhere / "precious"]


def test_file_that_leads_elsewhere_is_neither_read_nor_written(
    open_store, directory, make_object, make_write, tmp_path
):
    store = open_store()
    store.write([make_write(make_object(0, 0))], 1000.0)
    (path,) = object_files(directory)
    before = path.read_bytes()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match="symbolic links"):
        store.write([make_write(make_object(0, 1))], 1000.0)
    assert objects(read(store)) == []
    assert (tmp_path / "elsewhere").read_bytes() == before


@pytest.mark.parametrize("name", ["f" * 60 + "05", "0x05", "1_05", "-fb", "0105", "zz"])
def test_what_has_no_name_of_ours_is_deleted(open_store, directory, name):
    store = open_store()
    folder = directory / "objects" / "05"
    (folder / name).touch()
    (folder / "105").mkdir()
    (folder / "105" / "file").touch()

    assert store.sweep(5) == 6
    assert list(folder.iterdir()) == []


def test_write_that_fails_leaves_everything_as_it_was(
    open_store, directory, make_object, make_write, monkeypatch
):
    store = open_store()
    store.write([make_write(make_object(0, 0))], 1000.0)
    before = os.pwritev
    calls = []

    def full(descriptor, buffers, offset):
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return before(descriptor, buffers[:1], offset)

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space"):
        store.write([make_write(make_object(0, 1), make_object(1, 0))], 1001.0)
    monkeypatch.undo()

    assert [obj.location for obj in objects(read(store))] == [Location(0, 0)]
    assert len(object_files(directory)) == 1
    store.write([make_write(make_object(0, 2))], 1002.0)
    assert objects(read(store)) == [make_object(0, 0), make_object(0, 2)]


def test_files_that_the_index_does_not_know_are_swept(
    open_store, directory, make_object, make_write
):
    store = open_store()
    store.write([make_write(make_object(0, 0))], 1000.0)
    (known,) = object_files(directory)
    for name in ("00/100", "01/nonsense", "01/1101", f"{known.parent.name}/ffff"):
        (directory / "objects" / name).write_bytes(b"left over")

    shard, shards = 0, 0
    while shard is not None:
        shard, shards = store.sweep(shard), shards + 1

    assert shards == 256
    assert object_files(directory) == [known]


def test_directory_belongs_to_one_relay(open_store, directory):
    open_store()

    with pytest.raises(ConfigError, match=r"disk\.directory.*another relay"):
        DiskStore(directory)


def test_directory_that_cannot_be_made_is_a_configuration_error(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"disk\.directory.*Not a directory"):
        DiskStore(tmp_path / "file" / "cache")
