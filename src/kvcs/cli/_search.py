"""The publications of a scope that a relay knows, and the one that a person means.

A person names a publication by the first digits of its Publication ID: the whole name has 250
characters. The digits say nothing to a relay, so what it lists for the scope is looked through.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from kvcs.cli._errors import ExitCode, Incomplete
from kvcs.cli._publication import PublicationReference, ShortId
from kvcs.client.config import ConsumerConfig
from kvcs.client.signal import Signal
from kvcs.endpoint.connection import Connection
from kvcs.errors import ConfigError, DataError, KvcsError
from kvcs.kv.identity import KVSP_PROVISIONAL, ScopeKey
from kvcs.kv.naming import PROTOCOL_FIELD, SHORT_ID_DIGITS, PublicationName
from kvcs.moqt.session.events import (
    Event,
    NamespaceDoneReceived,
    NamespaceReceived,
    SessionClosed,
)
from kvcs.names import TrackNamespace

__all__ = ("DISCOVERY_WAIT", "Announced", "NotAppeared", "NotListed", "find", "short_ids")

#: Seconds to listen for publications: the protocol has no end of list.
DISCOVERY_WAIT: Final = ConsumerConfig().discovery_wait


class NotAppeared(Incomplete):
    """Nobody published in time what was waited for."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(
            f"{what} did not appear within {round(seconds, 1):g} s",
            ExitCode.TIMEOUT,
            "Start the publisher, or wait longer with --timeout.",
        )


class NotListed(Incomplete):
    """The relay lists no such publication of the scope."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is known there",
            ExitCode.NOT_FOUND,
            "Check the scope key; kvcs fetch --wait waits for a publisher that is not there yet.",
        )


class Announced:
    """What is announced for a scope on a connection, while the block runs.

    Args:
        connection: Session with the relay.
        scope_key: Key of the scope.
        deadline: Time of the event loop until which the relay may take to answer.

    Raises:
        KvcsError: On entering: the relay refused to tell.
        TimeoutError: On entering: it did not answer in time.
    """

    def __init__(self, connection: Connection, scope_key: ScopeKey, *, deadline: float) -> None:
        self._deadline = deadline
        scope_id = KVSP_PROVISIONAL.scope_id(scope_key)
        self._connection = connection
        self._prefix = TrackNamespace((PROTOCOL_FIELD, scope_id))
        self._names: dict[TrackNamespace, PublicationName] = {}
        self._error: KvcsError | None = None
        self._signal = Signal()

    async def __aenter__(self) -> Self:
        self._request_id = self._connection.subscribe_namespace(
            self._prefix, listener=self._receive
        )
        async with asyncio.timeout_at(self._deadline):
            await self._connection.answer(self._request_id)
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._connection.closed:
            self._connection.cancel(self._request_id)

    def matching(self, reference: PublicationReference | None = None) -> list[PublicationName]:
        """Return the publications that are announced now: those that are meant, or all."""
        return [name for name in self._names.values() if _is_meant(name, reference)]

    async def until(self, reference: PublicationReference, seconds: float) -> bool:
        """Wait until a publication is announced that is meant; False when the time is up.

        Raises:
            KvcsError: The session ended.
        """
        await self._signal.until(lambda: self.matching(reference) or self._error, seconds)
        if self._error is not None:
            raise self._error
        return bool(self.matching(reference))

    def _receive(self, event: Event) -> None:
        match event:
            case NamespaceReceived(suffix=suffix):
                self._add(suffix)
            case NamespaceDoneReceived(suffix=suffix):
                self._names.pop(suffix, None)
            case SessionClosed(error=error):
                self._error = error
            case _:
                return
        self._signal.set()

    def _add(self, suffix: TrackNamespace) -> None:
        try:
            self._names[suffix] = PublicationName.parse(self._prefix.joined(suffix))
        except (DataError, ValueError):
            return  # somebody else's, under our Scope ID: no publication


async def find(
    connection: Connection,
    scope_key: ScopeKey,
    reference: PublicationReference,
    *,
    deadline: float,
    wait: bool = False,
) -> PublicationName:
    """Return the publication that is meant; a whole name is taken for granted without `wait`.

    Args:
        connection: Session with the relay.
        scope_key: Key of the scope.
        reference: Its name, or the first digits of its Publication ID.
        deadline: Time of the event loop at which everything ends.
        wait: Wait until it is announced.

    Raises:
        NotListed: The relay lists none with these digits.
        NotAppeared: It was waited for in vain.
        TimeoutError: The relay did not answer in time.
        ConfigError: Several begin with these digits.
        KvcsError: The relay refused to tell, or the session ended.
    """
    if isinstance(reference, PublicationName) and not wait:
        return reference
    now = asyncio.get_running_loop().time
    patience = deadline - now()
    async with Announced(connection, scope_key, deadline=deadline) as announced:
        if isinstance(reference, ShortId):
            # Others with the same digits are listed in the same breath.
            await asyncio.sleep(min(DISCOVERY_WAIT, deadline - now()))
        if wait and not await announced.until(reference, deadline - now()):
            raise NotAppeared("the publication", patience)
        found = announced.matching(reference)
    if not found:
        raise NotListed(f"no publication of this scope that begins with {reference}")
    if len(found) > 1:
        expected = f"more digits: {', '.join(short_ids(found).values())} are all there"
        raise ConfigError("the URL's fragment", expected, str(reference))
    return found[0]


def short_ids(names: Sequence[PublicationName]) -> dict[PublicationName, str]:
    """Return the first digits of each Publication ID, as many as tell them apart."""
    digits = SHORT_ID_DIGITS
    whole = [name.publication_id.hex() for name in names]
    while len({text[:digits] for text in whole}) < len(set(whole)):
        digits += 1
    return {name: text[:digits] for name, text in zip(names, whole, strict=True)}


def _is_meant(name: PublicationName, reference: PublicationReference | None) -> bool:
    match reference:
        case None:
            return True
        case ShortId():
            return name.publication_id.hex().startswith(reference.digits)
        case _:
            return name == reference
