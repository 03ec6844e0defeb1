"""A key ring in a directory: one file per purpose, which only its owner can read.

``scope.jwk`` is one JWK, the others are JWK Sets: ``producer.jwks``, ``trusted.jwks``,
``object.jwks``, ``token.jwks``, ``verifier.jwks``. A purpose without keys has no file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvcs.errors import ConfigError
from kvcs.keyring.document import decode_keys, decode_ring, encode_set
from kvcs.keyring.files import locked_directory, prepare_directory, read_file, write_file
from kvcs.keyring.jwk import JwkLimits, JwkSet
from kvcs.keyring.purpose import Purpose
from kvcs.keyring.ring import KeyRing

__all__ = ("change_ring", "file_of", "load_ring", "load_ring_file")

_DEFAULT_LIMITS: Final = JwkLimits()


def file_of(directory: Path, purpose: Purpose) -> Path:
    """Return the file with the keys of a purpose."""
    return directory / f"{purpose}.{'jwk' if purpose is Purpose.SCOPE else 'jwks'}"


def load_ring(directory: Path, limits: JwkLimits = _DEFAULT_LIMITS) -> KeyRing | None:
    """Load the ring in a directory; None where there is no directory.

    Raises:
        ConfigError: Somebody else could read or change it, or a file holds no such keys.
    """
    if not prepare_directory(directory):
        return None
    sets: dict[Purpose, JwkSet] = {}
    for purpose in Purpose:
        path = file_of(directory, purpose)
        content = read_file(path, max_bytes=limits.max_bytes)
        if content is not None:
            sets |= decode_keys(content, str(path), purpose, limits).sets
    return KeyRing(sets)


def load_ring_file(path: Path, limits: JwkLimits = _DEFAULT_LIMITS) -> KeyRing:
    """Load the ring in one JSON file, or in a pipe.

    Raises:
        ConfigError: It is not there, somebody else could read or change it, or it holds no ring.
    """
    content = read_file(path, max_bytes=limits.max_bytes)
    if content is None:
        raise ConfigError("key ring", "a directory or a file", f"{path}: not there")
    return decode_ring(content, str(path), limits)


def change_ring(directory: Path, change: Callable[[KeyRing], KeyRing]) -> KeyRing:
    """Change the ring in a directory, which is made if it is not there; return the new ring.

    One command at a time: of two that begin together, one fails and changes nothing.

    Args:
        directory: The directory.
        change: Makes the new ring of the present one.

    Raises:
        ConfigError: From `change`; or the ring cannot be loaded or written, or somebody else is
            changing it.
    """
    with locked_directory(directory):
        ring = load_ring(directory) or KeyRing()
        changed = change(ring)
        for purpose in Purpose:
            keys = changed.sets.get(purpose)
            if keys == ring.sets.get(purpose):
                continue
            path = file_of(directory, purpose)
            if keys is None:
                path.unlink(missing_ok=True)
            else:
                write_file(path, encode_set(purpose, keys))
    return changed
