"""Asking the admin listener of a running relay."""

import http.client
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from kvcs.admin import AdminConfig, NamespaceStatus, Status
from kvcs.cli._errors import AdminUnreachable
from kvcs.cli._options import option
from kvcs.errors import ConfigError

__all__ = ("AdminClient", "admin_option")

# An answer with as many sessions and namespaces as there can be is far below.
_MAX_ANSWER_BYTES: Final = 2**24
_DEFAULT: Final = AdminConfig()
_URL: Final = f"http://{_DEFAULT.host}:{_DEFAULT.port}/"
_TIMEOUT: Final = 5.0


def admin_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option that says where the admin listener is."""
    text = "Admin listener of the relay, as kvcs relay run shows it."
    return option("--admin-url", default=_URL, help=text)(function)


class AdminClient:
    """Where a relay is asked."""

    def __init__(self, url: str) -> None:
        """Name a listener.

        Raises:
            ConfigError: Not the URL of one.
        """
        parts = urlsplit(url)
        try:
            port = parts.port or 80
        except ValueError:
            port = None
        if parts.scheme != "http" or not parts.hostname or port is None:
            raise ConfigError("--admin-url", "a URL such as http://127.0.0.1:4434/", url)
        self.url = url
        self._host = parts.hostname
        self._port = port

    def status(self, *, limit: int) -> Status:
        """Return an overview with at most `limit` sessions and namespaces.

        Raises:
            AdminUnreachable: Nobody answers there, or somebody else.
        """
        return self._ask("/status.json", Status, limit=limit)

    def namespace(self, namespace: str) -> NamespaceStatus:
        """Return the Tracks of a namespace.

        Raises:
            AdminUnreachable: Nobody answers there, or somebody else.
        """
        return self._ask("/namespace.json", NamespaceStatus, name=namespace)

    def _ask[Answer](self, path: str, kind: type[Answer], **query: object) -> Answer:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}")
            answer = connection.getresponse()
            body = answer.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise AdminUnreachable(self.url, reason) from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise AdminUnreachable(self.url, f"it answers {answer.status} {answer.reason}")
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = "no relay of this version answers there"
            raise AdminUnreachable(self.url, reason) from error
