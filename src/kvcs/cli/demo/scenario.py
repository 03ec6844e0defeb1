"""The play of the demo: who does what, and when.

Nothing happens by time: the first consumer waits for the announcement before the first layer is
computed, the second one joins when a layer in the middle has been published (the publisher
waits for it there), the third one comes when the publisher's process has ended. Where there is a
model, a fourth one comes last, alone with the relay: it computes the prompt, then takes the whole
prefix from the relay, and shows what reuse is worth.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvcs.cli._errors import TIMEOUT_HINT, ExitCode, Incomplete
from kvcs.cli._keys import write_scope_key
from kvcs.cli.demo.board import PUBLISHER, Board
from kvcs.cli.demo.material import FILE
from kvcs.cli.demo.messages import (
    Announced,
    Compared,
    ConsumerJob,
    Halfway,
    Joined,
    LayerPassed,
    Listening,
    PublisherJob,
    Ready,
    RelayCounters,
    RelayJob,
    Retrieved,
)
from kvcs.cli.demo.portion import Portion
from kvcs.cli.demo.process import NodeFailed, NodeProcess
from kvcs.cli.demo.provision import SCOPE_KEY_FILE, Provision, provide
from kvcs.cli.demo.security import SecurityReport, look_for_secrets, try_strangers
from kvcs.endpoint.connect import ConnectConfig
from kvcs.keyring import KeyRing, Purpose, load_ring
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.naming import PublicationName
from kvcs.names import TrackNamespace
from kvcs.transport.interface import ClientTls

__all__ = ("DemoConfig", "DemoResult", "Scenario")

_CACHE_BYTES: Final = 256 * 2**20
_DISK: Final = "relay-disk"
# Seconds between two looks whether the relay has written everything.
_LOOK_AGAIN: Final = 0.05
NEW_TOKENS: Final = 32
_LATER: Final = "(came after the end)"
# Seconds after which a consumer takes a silent relay for gone: a busy machine is not a dead one,
# but where the relay is killed on purpose nobody wants to wait long.
_IDLE_TIMEOUT: Final = 10.0
_SHORT_IDLE_TIMEOUT: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """Settings of the demo.

    Attributes:
        engine: Name of an engine, or ``file``.
        model: Model of the engine, or a cache file; None for the default.
        kill_relay: Kill the relay in the middle of the first consumer's forward pass.
        secure: Sign, seal, and let the relay go by tokens; afterwards look at what it has.
        timeout: Seconds for everything.
    """

    engine: str
    model: Path | None = None
    kill_relay: bool = False
    secure: bool = False
    timeout: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What came of the demo.

    Attributes:
        portions: One per consumer.
        late: The consumer that takes the whole prefix when it is there; None without a model.
        relay: Counters of the relay.
        equal: Every byte and every token is what it must be.
        succeeded: And nothing is missing or was rejected, unless the relay was killed, and the
            relay saw nothing that it must not see.
        security: What it saw; None unless that was asked for.
    """

    portions: list[Portion]
    relay: RelayCounters
    equal: bool
    succeeded: bool
    late: Portion | None = None
    security: SecurityReport | None = None


class Scenario:
    """One performance.

    Args:
        config: Settings.
        directory: An empty directory for certificate and scope key.
        board: Shows what happens.
    """

    def __init__(self, config: DemoConfig, directory: Path, board: Board) -> None:
        self._config = config
        self._directory = directory
        self._board = board
        self._stack = AsyncExitStack()
        self._nodes: list[NodeProcess] = []
        self._url = ""
        self._ready: Ready | None = None
        self._published: dict[int, list[str]] = {}
        self._samples: dict[str, str] = {}
        self._provision: Provision | None = None

    async def run(self) -> DemoResult:
        """Perform, within the timeout.

        Raises:
            NodeFailed: A process gave up or ended.
            Incomplete: It took too long.
        """
        if self._config.secure:
            self._provision = provide(self._directory)
        else:
            write_scope_key(self._directory / SCOPE_KEY_FILE)
        try:
            async with asyncio.timeout(self._config.timeout), self._stack:
                relay = await self._start_relay()
                if self._config.kill_relay:
                    return await self._perform_with_a_killed_relay(relay)
                return await self._perform(relay)
        except TimeoutError:
            self._show_logs()
            text = f"the demo did not end within {self._config.timeout:g} s"
            raise Incomplete(text, ExitCode.TIMEOUT, TIMEOUT_HINT) from None
        except Exception:
            self._show_logs()
            raise

    def _show_logs(self) -> None:
        """Show what the processes wrote to their standard errors."""
        for node in self._nodes:
            for line in node.log:
                self._board.complain(f"{node.name}: {line}")

    # The plays.

    async def _perform(self, relay: NodeProcess) -> DemoResult:
        publisher = await self._start_publisher()
        live, first = await self._start_consumer("live")
        joining, second = await self._start_consumer("mid-join")
        await self._open(publisher, live, first)
        await second.expect(Ready)
        await publisher.expect(Halfway)
        second.go()
        await self._join(joining, second)
        # Its subscriptions run: the rest may come at once.
        await joining.has_layers(1)
        publisher.go()
        for portion, node in ((live, first), (joining, second)):
            portion.retrieved = await node.expect(Retrieved)
        await publisher.ended()
        self._board.note("the publisher has left")
        part = await self._take_part()
        for portion, node in ((live, first), (joining, second)):
            await self._compare(portion, node)
            await node.ended()
        late = await self._take_whole() if self._decodes else None
        everyone = [live, joining, part, *(() if late is None else (late,))]
        counters = await self._statistics(relay)
        security = None if self._provision is None else await self._examine(relay, everyone)
        return self._judge([live, joining, part], counters, late, security)

    async def _perform_with_a_killed_relay(self, relay: NodeProcess) -> DemoResult:
        """Kill the relay when the consumer's forward pass has used half of the layers."""
        publisher = await self._start_publisher()
        live, first = await self._start_consumer("live")
        await self._open(publisher, live, first)
        await publisher.expect(Halfway)
        await live.has_layers(len(self._published))
        statistics = await self._statistics(relay)
        relay.kill()
        publisher.kill()
        self._board.note("the relay has been killed; the consumer computes what it lacks")
        live.retrieved = await first.expect(Retrieved)
        await self._compare(live, first)
        return self._judge([live], statistics)

    async def _open(self, publisher: NodeProcess, live: Portion, first: NodeProcess) -> None:
        """Let the first consumer wait, announce, and begin once it is subscribed."""
        ready = self._ready = await publisher.expect(Ready)
        mine = await first.expect(Ready)
        if mine != ready:
            reason = "publisher and consumer computed different tokens or descriptors"
            raise NodeFailed(first.name, reason)
        descriptor = Descriptor.decode(ready.descriptor.encode())
        self._board.open(layers=descriptor.layers)
        prefix = ready.blocks * descriptor.block_tokens
        self._board.note(
            f"{self._config.engine}: {descriptor.layers} layers, a prompt of {len(ready.tokens)} "
            f"tokens, {ready.blocks} blocks ({prefix} tokens) to share"
        )
        first.go()
        publisher.go()
        announced = await publisher.expect(Announced)
        self._board.note(f"publication {announced.short_id}")
        await self._join(live, first)
        self._board.begin(PUBLISHER)
        publisher.go()

    async def _join(self, portion: Portion, node: NodeProcess, *, note: str = "") -> None:
        joined = await node.expect(Joined)
        self._board.begin(portion.name, note=note)
        self._board.note(
            f"consumer {portion.name} is there; {joined.listed_layers} layers are listed"
        )

    async def _take_part(self) -> Portion:
        """Let a consumer without a model take half of the layers and the first blocks."""
        ready = self._ready
        assert ready is not None
        portion, node = await self._start_consumer(
            "after exit",
            prompt=ready,
            layers=max(1, Descriptor.decode(ready.descriptor.encode()).layers // 2),
            blocks=max(1, ready.blocks // 2),
        )
        await node.expect(Ready)
        node.go()
        await self._join(portion, node, note=_LATER)
        portion.retrieved = await node.expect(Retrieved)
        return portion

    async def _take_whole(self) -> Portion:
        """Let a consumer compute the prompt, then do it again with the prefix from the relay."""
        portion, node = await self._start_consumer("late", alone_first=True)
        await node.expect(Ready)
        self._board.note("consumer late computes the prompt alone, then takes its prefix")
        node.go()
        await self._join(portion, node, note=_LATER)
        portion.retrieved = await node.expect(Retrieved)
        await self._compare(portion, node)
        return portion

    async def _compare(self, portion: Portion, node: NodeProcess) -> None:
        """Let a consumer that decoded do it again without reuse; one after the other."""
        if self._decodes:
            node.go()
            portion.compared = await node.expect(Compared)

    async def _statistics(self, relay: NodeProcess) -> RelayCounters:
        relay.go()
        return await relay.expect(RelayCounters)

    async def _examine(self, relay: NodeProcess, everyone: list[Portion]) -> SecurityReport:
        """See what strangers get of the relay, and what is in all that it has stored."""
        ready, provision = self._ready, self._provision
        assert ready is not None
        assert provision is not None
        ring = load_ring(provision.publisher) or KeyRing()
        signer, sealer = ring.current(Purpose.PRODUCER), ring.current(Purpose.OBJECT)
        assert signer is not None
        assert sealer is not None
        tls = ClientTls(ca_file=str(self._directory / "ca.pem"))
        counters = await self._statistics(relay)
        name = PublicationName.parse(TrackNamespace.parse(counters.namespaces[0]))
        refused = await try_strangers(self._url, ConnectConfig(tls=tls), provision, name)
        while counters.bytes_waiting:
            await asyncio.sleep(_LOOK_AGAIN)
            counters = await self._statistics(relay)
        self._board.note("searching everything that the relay has stored")
        key_id = int(sealer.kid)
        wanted, findings = await asyncio.to_thread(
            look_for_secrets,
            self._directory / _DISK,
            provision,
            ready,
            self._samples,
            publication=name,
            key_id=key_id,
        )
        return SecurityReport(
            signed_by=signer.kid,
            key_id=key_id,
            authenticated=all(it.retrieved and it.retrieved.authenticated for it in everyone),
            relay=counters,
            relay_keys=provision.relay_keys(),
            refused=refused,
            wanted=wanted,
            findings=findings,
        )

    # The processes.

    @property
    def _decodes(self) -> bool:
        return self._config.engine != FILE

    async def _start(self, node: NodeProcess) -> NodeProcess:
        self._nodes.append(node)
        return await self._stack.enter_async_context(node)

    async def _start_relay(self) -> NodeProcess:
        provision = self._provision
        job = RelayJob(
            directory=str(self._directory),
            cache_bytes=_CACHE_BYTES,
            keys=None if provision is None else str(provision.relay),
            disk=None if provision is None else str(self._directory / _DISK),
        )
        relay = await self._start(NodeProcess("relay", job))
        listening = await relay.expect(Listening)
        self._url = f"moqt://127.0.0.1:{listening.port}/"
        self._board.note(f"relay on {self._url}")
        return relay

    async def _start_publisher(self) -> NodeProcess:
        def note_layer(layer: LayerPassed) -> None:
            self._published[layer.layer_index] = layer.digests
            for number, sample in enumerate(layer.samples):
                self._samples[f"layer {layer.layer_index}, {number}"] = sample
            self._board.publish_layer(layer)

        job = PublisherJob(**self._endpoint(is_publisher=True))
        return await self._start(NodeProcess("publisher", job, on_layer=note_layer))

    async def _start_consumer(
        self,
        name: str,
        *,
        prompt: Ready | None = None,
        layers: int | None = None,
        blocks: int | None = None,
        alone_first: bool = False,
    ) -> tuple[Portion, NodeProcess]:
        portion = Portion(name, is_late=alone_first)

        def note_layer(layer: LayerPassed) -> None:
            portion.add(layer)
            self._board.receive_layer(name, layer)

        job = ConsumerJob(
            **self._endpoint(),
            prompt=prompt,
            layers=layers,
            blocks=blocks,
            new_tokens=NEW_TOKENS if self._decodes and prompt is None else 0,
            alone_first=alone_first,
            idle_timeout=_SHORT_IDLE_TIMEOUT if self._config.kill_relay else _IDLE_TIMEOUT,
        )
        node = NodeProcess(f"consumer {name!r}", job, on_layer=note_layer)
        return portion, await self._start(node)

    def _endpoint(self, *, is_publisher: bool = False) -> dict[str, Any]:
        config, it = self._config, self._provision
        keys = it and (it.publisher if is_publisher else it.consumer)
        token = it and (it.producer_token if is_publisher else it.consumer_token)
        return {
            "keys": None if keys is None else str(keys),
            "token": None if token is None else str(token),
            "url": self._url,
            "directory": str(self._directory),
            "engine": config.engine,
            "model": None if config.model is None else str(config.model),
            "timeout": config.timeout,
        }

    # The verdict.

    def _judge(
        self,
        portions: list[Portion],
        relay: RelayCounters,
        late: Portion | None = None,
        security: SecurityReport | None = None,
    ) -> DemoResult:
        everyone = portions if late is None else [*portions, late]
        for portion in everyone:
            portion.judge(self._published, decodes=self._decodes)
        equal = all(portion.is_equal for portion in everyone)
        whole = all(portion.is_whole for portion in everyone)
        lost = [portion for portion in portions if portion.is_recomputed]
        succeeded = equal and (bool(lost) if self._config.kill_relay else whole)
        return DemoResult(
            portions=portions,
            late=late,
            relay=relay,
            equal=equal,
            succeeded=succeeded and (security is None or security.holds),
            security=security,
        )
