"""What the admin listener answers: the page, its data, metrics and health."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib import resources
from typing import Final
from urllib.parse import urlencode

from kvcs.admin.config import AdminConfig
from kvcs.admin.http import Request, Response
from kvcs.admin.metrics import exposition
from kvcs.admin.status import Observed, Observer, encode
from kvcs.errors import ConfigError
from kvcs.names import TrackNamespace

__all__ = ("Site",)

_JSON: Final = "application/json"
_DEFAULT_PAGE: Final = 50
_MAX_OFFSET: Final = 10**6
_MAX_SEARCH: Final = 200
# Different questions whose answers are kept for a moment.
_MAX_KEPT: Final = 32
# Their octets; the newest one is kept however large it is.
_MAX_KEPT_BYTES: Final = 8 * 2**20
# An answer that took long serves again for so many times as long, so that those who watch a
# relay with tens of thousands of namespaces cost a small part of its time.
_LEAST_PAUSE: Final = 20.0
# The page, by path: file and content type.
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/status.js": ("status.js", "text/javascript; charset=utf-8"),
    "/status.css": ("status.css", "text/css; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}


class Site:
    """All answers about one relay."""

    def __init__(self, relay: Observed, config: AdminConfig, *, version: str) -> None:
        """Answer for a relay.

        Args:
            relay: The relay.
            config: Settings.
            version: Version of the package.
        """
        self._config = config
        self._version = version
        self._relay = relay
        self._observer = Observer(relay, config, version=version)
        self._clock = asyncio.get_running_loop().time
        self._kept: OrderedDict[str, tuple[float, Response]] = OrderedDict()
        folder = resources.files("kvcs.admin") / "page"
        self._files = {
            path: Response((folder / name).read_bytes(), content_type)
            for path, (name, content_type) in _FILES.items()
        }
        self._made: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/status.json": self._status,
            "/namespace.json": self._namespace,
            "/metrics": self._metrics,
        }

    async def answer(self, request: Request) -> Response:
        """Answer a request."""
        path = request.path
        if path in self._files:
            return self._files[path]
        if path == "/healthz":
            return Response.text(HTTPStatus.OK, "alive")
        if path == "/readyz":
            return self._readiness()
        make = self._made.get(path)
        if make is None:
            return Response.text(HTTPStatus.NOT_FOUND, "there is nothing here")
        try:
            return await self._fresh(request, make)
        except ConfigError as error:
            return Response.text(HTTPStatus.BAD_REQUEST, str(error))

    async def _fresh(
        self, request: Request, make: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Return an answer that was given a moment ago, or a new one."""
        key = f"{request.path}?{urlencode(sorted(request.query.items()))} {request.accept}"
        began = self._clock()
        kept = self._kept.get(key)
        if kept is not None and began <= kept[0]:
            return kept[1]
        response = await make(request)
        now = self._clock()
        age = max(self._config.limits.snapshot_age, _LEAST_PAUSE * (now - began))
        self._kept[key] = (now + age, response)
        self._kept.move_to_end(key)
        self._forget_oldest()
        return response

    def _forget_oldest(self) -> None:
        size = sum(len(response.body) for _, response in self._kept.values())
        while len(self._kept) > 1 and (len(self._kept) > _MAX_KEPT or size > _MAX_KEPT_BYTES):
            _, (_, response) = self._kept.popitem(last=False)
            size -= len(response.body)

    def _readiness(self) -> Response:
        faults = self._observer.faults()
        status = HTTPStatus.SERVICE_UNAVAILABLE if faults else HTTPStatus.OK
        return Response.text(status, ", ".join(faults) or "ready")

    async def _status(self, request: Request) -> Response:
        status = await self._observer.status(
            limit=_number(request, "limit", _DEFAULT_PAGE, self._config.limits.max_page),
            offset=_number(request, "offset", 0, _MAX_OFFSET),
            search=request.query.get("search", "")[:_MAX_SEARCH],
        )
        return Response(encode(status), _JSON)

    async def _namespace(self, request: Request) -> Response:
        text = request.query.get("name", "")
        try:
            namespace = TrackNamespace.parse(text)
        except ValueError as error:
            raise ConfigError("name", "a Track Namespace in its text form") from error
        return Response(encode(await self._observer.namespace(namespace)), _JSON)

    async def _metrics(self, request: Request) -> Response:
        body, content_type = exposition(
            self._relay.statistics(),
            self._observer.states(),
            version=self._version,
            accept=request.accept,
        )
        return Response(body, content_type)


def _number(request: Request, name: str, default: int, most: int) -> int:
    """Return a parameter that is a number, at most `most`.

    Raises:
        ConfigError: It is something else.
    """
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError(name, "a number, at least 0", repr(text[:20]))
    return min(int(text), most)
