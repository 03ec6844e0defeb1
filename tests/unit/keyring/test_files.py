"""Files with secrets: rights, whole writes, one writer at a time."""

import fcntl
import os
import stat
from pathlib import Path

import pytest

from kvcs.errors import ConfigError
from kvcs.keyring.files import locked_directory, prepare_directory, read_file, write_file


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "keys"
    path.mkdir(mode=0o700)
    return path


def test_written_file_is_read_by_its_owner_only(directory):
    old = os.umask(0)
    try:
        write_file(directory / "a", b"secret")
    finally:
        os.umask(old)

    assert stat.S_IMODE((directory / "a").stat().st_mode) == 0o600
    assert read_file(directory / "a", max_bytes=6) == b"secret"
    assert [path.name for path in directory.iterdir()] == ["a"]


def test_file_is_replaced_whole_or_not_at_all(directory, monkeypatch):
    write_file(directory / "a", b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space")))

    with pytest.raises(ConfigError, match="No space"):
        write_file(directory / "a", b"new")

    assert read_file(directory / "a", max_bytes=9) == b"old"
    assert [path.name for path in directory.iterdir()] == ["a"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o610])
def test_file_that_others_can_use_is_refused(directory, mode):
    path = directory / "a"
    write_file(path, b"secret")
    path.chmod(mode)

    with pytest.raises(ConfigError, match=f"chmod 600 {path}") as caught:
        read_file(path, max_bytes=99)

    assert "secret" not in str(caught.value)


def test_file_of_somebody_else_is_refused(directory, monkeypatch):
    write_file(directory / "a", b"secret")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if (directory / "a").stat().st_uid == 0:
        os.chown(directory / "a", 54321, -1)

    with pytest.raises(ConfigError, match="belong to you"):
        read_file(directory / "a", max_bytes=99)


@pytest.mark.parametrize(
    ("mode", "is_read"), [(0o440, True), (0o640, True), (0o660, False), (0o444, False)]
)
def test_file_that_root_gives_to_a_service_may_be_read_by_its_group(
    directory, monkeypatch, mode, is_read
):
    path = directory / "a"
    write_file(path, b"secret")
    path.chmod(mode)
    status = path.stat()
    given = os.stat_result((*status[:4], 0, *status[5:]))
    monkeypatch.setattr(os, "fstat", lambda _: given)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    if is_read:
        assert read_file(path, max_bytes=99) == b"secret"
    else:
        with pytest.raises(ConfigError, match="chmod 600"):
            read_file(path, max_bytes=99)


def test_file_beyond_the_limit_is_refused_and_a_missing_one_is_none(directory):
    write_file(directory / "a", b"secret")

    with pytest.raises(ConfigError, match="at most 5 octets"):
        read_file(directory / "a", max_bytes=5)

    assert read_file(directory / "b", max_bytes=5) is None


def test_pipe_is_read_whatever_its_rights():
    reading, writing = os.pipe()
    os.write(writing, b"from a secret manager")
    os.close(writing)
    try:
        assert read_file(Path(f"/dev/fd/{reading}"), max_bytes=99) == b"from a secret manager"
    finally:
        os.close(reading)


def test_directory_is_made_for_its_owner_only(tmp_path):
    path = tmp_path / "config" / "kvcs" / "keys"

    assert not prepare_directory(path)
    assert prepare_directory(path, create=True)

    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_directory_that_others_can_enter_is_refused(directory, mode):
    directory.chmod(mode)

    with pytest.raises(ConfigError, match=f"chmod 700 {directory}"):
        prepare_directory(directory)


def test_file_is_no_directory(directory):
    write_file(directory / "a", b"")

    with pytest.raises(ConfigError, match="a directory"):
        prepare_directory(directory / "a")


def test_second_writer_is_told_to_wait_and_the_lock_ends_with_the_first(directory):
    second = locked_directory(directory)

    with locked_directory(directory), pytest.raises(ConfigError, match="one command at a time"):
        second.__enter__()

    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
