"""Where the keys of a process come from: a directory, a file or pipe, or its environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kvcs.errors import ConfigError
from kvcs.keyring.directory import load_ring, load_ring_file
from kvcs.keyring.document import decode_ring
from kvcs.keyring.ring import KeyRing

__all__ = ("KEYS_JSON_VARIABLE", "default_directory", "find_ring", "ring_place")

#: Environment variable with a whole ring as JSON.
KEYS_JSON_VARIABLE: Final = "KVCS_KEYS_JSON"


def default_directory(environment: Mapping[str, str]) -> Path:
    """Return where a user's ring is: ``$XDG_CONFIG_HOME/kvcs/keys``, else below ``~/.config``."""
    configured = environment.get("XDG_CONFIG_HOME", "")
    base = Path(configured) if Path(configured).is_absolute() else Path.home() / ".config"
    return base / "kvcs" / "keys"


def ring_place(path: Path | None, environment: Mapping[str, str]) -> str:
    """Return where `find_ring` finds the ring, for messages."""
    if path is not None:
        return str(path)
    if environment.get(KEYS_JSON_VARIABLE) is not None:
        return KEYS_JSON_VARIABLE
    return str(default_directory(environment))


def find_ring(path: Path | None, environment: Mapping[str, str]) -> KeyRing:
    """Load the ring that is meant.

    Args:
        path: Directory or file that was named, or None: then the ring in `KEYS_JSON_VARIABLE`
            counts, else the user's directory, and no directory is an empty ring.
        environment: The environment of the process.

    Raises:
        ConfigError: What was named is not there, somebody else could read or change it, it
            holds no ring, or a ring was named twice.
    """
    text = environment.get(KEYS_JSON_VARIABLE)
    if text is not None and not text.strip():
        # Whoever hands over the ring failed to: without it nothing would be demanded of anybody.
        raise ConfigError(KEYS_JSON_VARIABLE, "a key ring, or no such variable", "nothing in it")
    if path is None:
        if text is not None:
            ring = decode_ring(text.encode(errors="surrogateescape"), KEYS_JSON_VARIABLE)
            return _with_keys(ring, KEYS_JSON_VARIABLE)
        return load_ring(default_directory(environment)) or KeyRing()
    if text is not None:
        raise ConfigError(KEYS_JSON_VARIABLE, "no directory or file with keys beside it")
    if path.exists() and not path.is_dir():
        return _with_keys(load_ring_file(path), str(path))
    ring = load_ring(path)
    if ring is None:
        raise ConfigError(f"{path}: key ring", "a directory or a file", "one that is not there")
    return ring


def _with_keys(ring: KeyRing, where: str) -> KeyRing:
    """Refuse a ring without keys: with it, nothing would be demanded of anybody."""
    if not ring.sets:
        raise ConfigError(where, "a key ring with a key in it", "none")
    return ring
