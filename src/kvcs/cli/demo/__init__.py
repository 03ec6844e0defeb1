"""``kvcs demo``: a real KV cache through a relay to three consumers, on this machine.

The demo starts its parts as processes of their own (`node`), which talk to it in JSON lines
(`messages`) and to each other over QUIC on loopback. `scenario` says who does what, and when.
"""

import tempfile
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from kvcs.cli._errors import ExitCode
from kvcs.cli._options import Command, option, pass_output
from kvcs.cli._output import Output, format_bytes
from kvcs.cli._runtime import run
from kvcs.cli._units import DURATION
from kvcs.cli.demo.board import Board
from kvcs.cli.demo.material import ENGINE_CHOICES, FILE, default_engine
from kvcs.cli.demo.portion import Portion
from kvcs.cli.demo.scenario import DemoConfig, DemoResult, Scenario
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.engines.registry import missing_packages
from kvcs.errors import ConfigError

__all__ = ("demo",)


@click.command(cls=Command)
@option(
    "--engine",
    type=click.Choice(ENGINE_CHOICES),
    show_default="reference, else file",
    help="What computes the cache; file publishes a shipped one and needs no model.",
)
@option(
    "--model",
    type=click.Path(path_type=Path, exists=True),
    help="GGUF file or Hugging Face directory; with --engine file a cache file.",
)
@option(
    "--kill-relay",
    is_flag=True,
    help="Kill the relay in the middle of the first consumer's forward pass; it plays alone then.",
)
@option("--timeout", type=DURATION, default="5m", help="Whole time allowed.")
@pass_output
def demo(output: Output, **settings: Any) -> int:
    """Publish a real KV cache through a relay to three consumers, on this machine.

    The first consumer listens from the start, the second one joins in the middle, the third one
    comes when the publisher has left and takes half of the layers and blocks. Every byte is
    compared; where there is a model, consumers with a whole prefix decode from it and must get
    the same tokens as without it. The exit code is not 0 if anything differs or is missing.

    \b
    Examples:
      kvcs demo
      kvcs demo --engine file --json
      kvcs demo --kill-relay
    """  # noqa: D301 - click reads the backslash
    config = _configure(output, settings)
    with tempfile.TemporaryDirectory(prefix="kvcs-demo-") as directory, Board(output) as board:
        result = run(_perform(config, Path(directory), board))
    _show(output, config, result)
    return ExitCode.DONE if result.succeeded else ExitCode.DATA


def _configure(output: Output, settings: dict[str, Any]) -> DemoConfig:
    engine = settings.pop("engine")
    if engine is None:
        engine = default_engine(settings["model"])
        if engine == FILE:
            output.note(
                "no model is installed (dependency group light): publishing a cache from a file"
            )
    if engine == FILE and settings["kill_relay"]:
        raise ConfigError("--kill-relay", "an engine that can compute what is lost", FILE)
    if engine == FILE:
        load_cache(settings["model"] or SAMPLE_CACHE)
    elif missing := missing_packages(engine, settings["model"]):
        expected = f"an engine that is installed; {engine} lacks {', '.join(missing)}"
        raise ConfigError("--engine", expected)
    return DemoConfig(engine=engine, **settings)


async def _perform(config: DemoConfig, directory: Path, board: Board) -> DemoResult:
    return await Scenario(config, directory, board).run()


def _show(output: Output, config: DemoConfig, result: DemoResult) -> None:
    output.result(
        {
            "consumers": [portion.report() for portion in result.portions],
            "relay": {
                "bytes_in": result.relay.bytes_in,
                "bytes_out": result.relay.bytes_out,
                "upstream_subscriptions": result.relay.upstream_subscriptions,
            },
            "equal": result.equal,
        }
    )
    output.table(_arrival_table(result.portions))
    output.text(
        f"relay: {format_bytes(result.relay.bytes_in)} in, {format_bytes(result.relay.bytes_out)} "
        f"out, {result.relay.upstream_subscriptions} upstream subscriptions"
    )
    for portion in result.portions:
        output.text(_decoding(portion))
    output.text(_conclusion(config, result))


def _arrival_table(portions: list[Portion]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("consumer")
    for title in ("layers", "blocks", "bytes", "first layer", "last layer", "verified", "rejected"):
        table.add_column(title, justify="right")
    for portion in portions:
        outcome = portion.retrieved
        assert outcome is not None
        table.add_row(
            portion.name,
            f"{len(portion.digests)}/{outcome.layers}",
            str(outcome.blocks),
            format_bytes(outcome.payload_bytes),
            _seconds(outcome.first_layer_s),
            _seconds(outcome.last_layer_s),
            str(outcome.verified),
            str(outcome.rejected),
        )
    return table


def _decoding(portion: Portion) -> str:
    """Return what a consumer decoded, and how fast, or what it checked instead."""
    outcome, compared = portion.retrieved, portion.compared
    assert outcome is not None
    if outcome.time_to_first_token is None or compared is None:
        same = "equal" if portion.is_equal else "DIFFERENT"
        return f"{portion.name}: every byte compared, {same}"
    reused = f"{outcome.reused_tokens} tokens reused while they were computed elsewhere"
    how = "recomputed" if portion.is_recomputed else reused
    same = "equal" if compared.is_equal else "DIFFERENT"
    return (
        f"{portion.name}: first token after {_seconds(outcome.time_to_first_token)} ({how}), "
        f"alone {_seconds(compared.time_to_first_token)}; {compared.tokens} tokens {same}: "
        f"{outcome.text.strip()!r}"
    )


def _conclusion(config: DemoConfig, result: DemoResult) -> str:
    if not result.succeeded:
        return "FAILED: something differs or is missing"
    if config.kill_relay:
        return "the relay was killed, and the tokens are the same"
    if not any(portion.compared for portion in result.portions):
        return "every byte is the same; there was no model, so no token was decoded"
    return "every byte and every token is the same"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f} s"
