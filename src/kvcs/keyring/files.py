"""Files with secrets: who else could read or change them is checked before they are used.

Source: the permissions are those of OpenSSH for private keys: nothing for group and others. What
root gives to a service, as systemd and Kubernetes do with credentials, its group may read.
"""

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Final

from kvcs.errors import ConfigError
from kvcs.replaceable import replaceable

__all__ = ("check_file", "locked_directory", "prepare_directory", "read_file", "write_file")

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_PUBLIC_FILE_MODE: Final = 0o644
# Any right of group and others; of what root owns, its group may have those to read.
_FORBIDDEN: Final = 0o077
_FORBIDDEN_OF_ROOT: Final = 0o027
_FORBIDDEN_OF_PUBLIC: Final = 0o022
_KEY: Final = "key ring"


def read_file(path: Path, *, max_bytes: int, is_public: bool = False) -> bytes | None:
    """Return what a file with secrets holds, or None where there is no file.

    A pipe, such as ``/dev/fd/3``, has no permissions of its own and is read as it is.

    Args:
        path: The file.
        max_bytes: Octets that it may have.
        is_public: Nothing in it is secret, and its owner has looked at it: anybody may read it.

    Raises:
        ConfigError: It is larger than `max_bytes`, cannot be read, or somebody else could
            read or change it. The content is in no error.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and not is_public:
                _check(path, status)
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(_KEY, "a readable file", f"{path}: {error.strerror}") from error
    if len(content) > max_bytes:
        raise ConfigError(_KEY, f"a file of at most {max_bytes} octets", str(path))
    return content


def check_file(path: Path, *, is_public: bool) -> None:
    """Check that nobody else could change a file, nor read it unless it is public.

    A pipe has no permissions of its own, and what is not there none at all.

    Args:
        path: The file.
        is_public: Nothing in it is secret: anybody may read it.

    Raises:
        ConfigError: Somebody else could.
    """
    try:
        status = path.stat()
    except OSError:
        return
    if stat.S_ISREG(status.st_mode):
        _check(path, status, is_public=is_public)


def prepare_directory(path: Path, *, create: bool = False) -> bool:
    """Check the directory of a key ring; tell whether it is there.

    Args:
        path: The directory.
        create: Make it, and those above it, if it is not there.

    Raises:
        ConfigError: It is no directory, cannot be made, or somebody else could look into it.
    """
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        status = path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(_KEY, "a directory", f"{path}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(_KEY, "a directory", str(path))
    _check(path, status)
    return True


def write_file(path: Path, content: bytes, *, key: str = _KEY, is_public: bool = False) -> None:
    """Write a file that only its owner can read: the whole content appears at once, or nothing.

    Args:
        path: The file.
        content: What is to be in it.
        key: What names it, for errors.
        is_public: Nothing of it is secret: everybody may read it, as far as the umask lets them.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        place = replaceable(path)
        beside = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
        mode = _PUBLIC_FILE_MODE if is_public else _FILE_MODE
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(place)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _sync_directory(place.parent)
    except OSError as error:
        got = f"{path}: {error.strerror}"
        raise ConfigError(key, "a file that can be written", got) from error


@contextlib.contextmanager
def locked_directory(path: Path) -> Generator[None]:
    """Keep other processes from changing the same key ring at the same time.

    Raises:
        ConfigError: The directory cannot be made or locked, or is not ours alone; somebody else
            is changing it.
    """
    prepare_directory(path, create=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            # Who changes a ring holds it for milliseconds: to wait would need a deadline.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(_KEY, "one command at a time that changes it", str(path)) from error
        yield
    finally:
        os.close(descriptor)


def _check(path: Path, status: os.stat_result, *, is_public: bool = False) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(_KEY, "to belong to you or to root", str(path))
    is_given = status.st_uid == 0 and os.geteuid() != 0
    forbidden = _FORBIDDEN_OF_ROOT if is_given else _FORBIDDEN
    right, deeds = ("700" if stat.S_ISDIR(status.st_mode) else "600"), "read or change"
    if is_public:
        forbidden, right, deeds = _FORBIDDEN_OF_PUBLIC, "644", "change"
    if mode := stat.S_IMODE(status.st_mode) & forbidden:
        expected = f"that nobody else can {deeds} it (chmod {right} {path})"
        raise ConfigError(_KEY, expected, f"rights {mode:03o} of group and others")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
