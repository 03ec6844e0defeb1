"""The admin listener of a relay: for operators, apart from what clients reach.

It reads what the relay hands out and changes nothing, so that whatever is asked here, and
whatever fails here, no transfer suffers.
"""

import logging
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import kvcs
from kvcs.admin.config import AdminConfig
from kvcs.admin.http import HttpServer
from kvcs.admin.site import Site
from kvcs.admin.status import Observed
from kvcs.transport.interface import Address, is_loopback

__all__ = ("AdminServer",)

_logger = logging.getLogger("kvcs.admin")


class AdminServer:
    """Status page, metrics and health of a relay, from ``async with`` to its end.

    Example:
        ::

            async with Relay(config) as relay, AdminServer(relay) as admin:
                print(f"http://{admin.address}/")
                await asyncio.sleep(60)
    """

    def __init__(self, relay: Observed, config: AdminConfig | None = None) -> None:
        """Prepare a listener; nothing is opened yet.

        Args:
            relay: A relay that is open.
            config: Settings; None for the defaults.
        """
        self._relay = relay
        self._config = config or AdminConfig()
        self._stack = AsyncExitStack()
        self._http: HttpServer | None = None

    def __repr__(self) -> str:
        return f"<AdminServer {self._http!r}>"

    @property
    def address(self) -> Address:
        """Where it listens; the port is the real one when 0 was asked for."""
        assert self._http is not None, "the listener is open"
        return self._http.address

    async def __aenter__(self) -> Self:
        """Open the port.

        Raises:
            TransportError: It cannot be opened.
        """
        config = self._config
        site = Site(self._relay, config, version=kvcs.__version__)
        http = HttpServer(config.host, config.port, site.answer, limits=config.limits)
        self._http = await self._stack.enter_async_context(http)
        _logger.info("admin listener at http://%s/", self.address)
        if not is_loopback(config.host):
            _logger.warning(
                "everybody who can reach TCP %s sees the names of what this relay carries",
                self.address,
            )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the port and all connections."""
        await self._stack.aclose()
