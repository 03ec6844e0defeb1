"""URLs of MOQT: ``moqt://host[:port]/path[?query][#fragment]``.

Source: MOQT draft 22, Section 6.2; RFC 3986.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from kvcs.errors import ConfigError

__all__ = ("DEFAULT_PORT", "Url", "parse_url")

DEFAULT_PORT: Final = 443
_MAX_URL_CHARACTERS: Final = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """Where to connect and what to ask for there.

    Attributes:
        host: Name or address literal, without brackets.
        port: UDP port.
        authority: Setup Option AUTHORITY: host and port as written.
        path: Setup Option PATH: path and query as written; empty is not sent.
        fragment: What follows ``#``; local, never sent.
    """

    host: str
    port: int
    authority: str
    path: str = ""
    fragment: str = ""


def parse_url(text: str) -> Url:
    """Parse a MOQT URL.

    Raises:
        ConfigError: The text is no such URL.
    """
    if len(text) > _MAX_URL_CHARACTERS:
        raise ConfigError("url", f"at most {_MAX_URL_CHARACTERS} characters", str(len(text)))
    if not text.isascii() or any(c <= " " or c == "\x7f" for c in text):
        raise ConfigError("url", "printable ASCII without spaces", ascii(text))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError("url", "moqt://host[:port]/path", f"{text} ({error})") from error
    if parts.scheme != "moqt" or not parts.hostname or "@" in parts.netloc or port == 0:
        raise ConfigError("url", "moqt://host[:port]/path", text)
    return Url(
        host=parts.hostname,
        port=DEFAULT_PORT if port is None else port,
        authority=parts.netloc,
        path=f"{parts.path}?{parts.query}" if parts.query else parts.path,
        fragment=parts.fragment,
    )
