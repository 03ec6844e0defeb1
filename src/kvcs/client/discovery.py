"""Finding publications of a prompt: many prefix lengths are asked for at once.

The Anchor Key of a publication is the last Block Key of its segment 0, so a consumer asks
for the keys of its own prompt, longest first. The protocol has no end of list: a prefix
counts as unknown when nothing is announced for a while after REQUEST_OK, and makes room for
the next one. The search ends as soon as no longer prefix can still be found than the best.

Source:
    KVCS, "Discovering Publications".
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kvcs.client.config import ConsumerConfig
from kvcs.client.signal import Signal
from kvcs.endpoint.connection import Connection
from kvcs.errors import DataError, KvcsError, RequestRejected
from kvcs.kv.identity import BlockKey
from kvcs.kv.naming import PublicationName
from kvcs.moqt.session import events
from kvcs.moqt.session.events import (
    Event,
    NamespaceDoneReceived,
    NamespaceReceived,
    RequestAccepted,
    RequestCancelled,
    SessionClosed,
)
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import TrackNamespace

__all__ = ("Candidate", "Discovery")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A publication that may hold what the consumer wants.

    Attributes:
        name: The publication.
        blocks: Blocks of the prompt that segment 0 covers; 0 when that is not known.
        keys: The consumer's own Block Keys; empty when it has no tokens.
        is_vouched: It is known by other means that the publication's tokens start with the
            consumer's, so that a segment may be used in part.
        segment_keys: Block Keys of all of segment 0 as an index has them; a manifest of other
            blocks is refused. Empty when nobody says.
    """

    name: PublicationName
    blocks: int = 0
    keys: tuple[BlockKey, ...] = ()
    is_vouched: bool = False
    segment_keys: tuple[BlockKey, ...] = ()


class Discovery:
    """One search for publications.

    Args:
        connection: Session with a relay or a publisher.
        prefixes: Prefixes with the blocks that each covers, longest first.
        config: Settings of the consumer.
    """

    def __init__(
        self,
        connection: Connection,
        prefixes: Sequence[tuple[int, TrackNamespace]],
        config: ConsumerConfig,
    ) -> None:
        self._connection = connection
        self._prefixes = prefixes
        self._config = config
        self._signal = Signal()
        self._probes: list[_Probe] = []

    async def run(self) -> list[tuple[int, PublicationName]]:
        """Search, and return the publications of the longest prefix that has any.

        Raises:
            RequestRejected: Nothing was found, and the peer refused to tell about a prefix.
            KvcsError: The session ended.
        """
        limit = asyncio.Semaphore(self._config.max_probes)
        self._probes = [
            _Probe(blocks, prefix, self._signal, max_found=self._config.max_candidates)
            for blocks, prefix in self._prefixes
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(probe, limit)) for probe in self._probes]
            await self._signal.until(self._is_decided)
            for task in tasks:
                task.cancel()
        errors = [probe.error for probe in self._probes if probe.error is not None]
        if errors and not self.found:
            raise errors[0]
        return self.found

    @property
    def found(self) -> list[tuple[int, PublicationName]]:
        """The publications of the longest prefix that has any so far."""
        for probe in self._probes:
            if probe.found:
                return [(probe.blocks, name) for name in probe.found]
        return []

    @property
    def ignored(self) -> int:
        """Announcements that are no name of a publication, or too many."""
        return sum(probe.ignored for probe in self._probes)

    async def _ask(self, probe: "_Probe", limit: asyncio.Semaphore) -> None:
        async with limit:
            try:
                request_id = self._connection.subscribe_namespace(
                    probe.prefix,
                    Parameters(authorization_tokens=self._config.authorization),
                    probe.receive,
                )
            except KvcsError as error:
                # The session is over; an error in the group would come out as a group.
                probe.fail(error)
                return
            try:
                await self._signal.until(lambda: probe.is_answered)
                await self._signal.until(
                    lambda: probe.found or probe.error, self._config.discovery_wait
                )
                probe.is_settled = True
                self._signal.set()
                if probe.found:
                    # Open until the search ends, to hear of more publications.
                    await self._signal.until(lambda: False)
            finally:
                self._connection.cancel(request_id)

    def _is_decided(self) -> bool:
        """Tell whether no prefix can still give a longer answer than the one there is."""
        for probe in self._probes:
            if probe.found:
                return True
            if not probe.is_settled:
                return False
        return True


class _Probe:
    """One SUBSCRIBE_NAMESPACE."""

    def __init__(
        self, blocks: int, prefix: TrackNamespace, signal: Signal, *, max_found: int
    ) -> None:
        self.blocks = blocks
        self.prefix = prefix
        self.found: list[PublicationName] = []
        self.ignored = 0
        self.is_answered = False
        self.is_settled = False
        self.error: KvcsError | None = None
        self._signal = signal
        self._max_found = max_found

    def receive(self, event: Event) -> None:
        match event:
            case NamespaceReceived(suffix=suffix):
                self._add(suffix)
            case NamespaceDoneReceived(suffix=suffix):
                self._remove(suffix)
            case RequestAccepted():
                self.is_answered = True
            case events.RequestRejected():
                self.fail(event.error())
            case RequestCancelled(code=code):
                self.fail(RequestRejected(0, f"the search was ended with code {code:#x}"))
            case SessionClosed(error=error):
                self.fail(error)
            case _:
                return
        self._signal.set()

    def _add(self, suffix: TrackNamespace) -> None:
        try:
            name = PublicationName.parse(self.prefix.joined(suffix))
        except (DataError, ValueError):
            self.ignored += 1
            return
        if name in self.found:
            return
        if len(self.found) >= self._max_found:
            self.ignored += 1
            return
        self.found.append(name)

    def _remove(self, suffix: TrackNamespace) -> None:
        namespace = self.prefix.joined(suffix)
        self.found = [name for name in self.found if name.namespace() != namespace]

    def fail(self, error: KvcsError) -> None:
        """Note that nothing more can be found."""
        self.error = error
        self.is_answered = self.is_settled = True
        self._signal.set()
