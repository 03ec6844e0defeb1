"""``kvcs demo``: a real KV cache through a relay to several consumers, on this machine.

The demo starts its parts as processes of their own (`node`), which talk to it in JSON lines
(`messages`) and to each other over QUIC on loopback. `scenario` says who does what, and when.
"""

import tempfile
from pathlib import Path
from typing import Any, Final

import click

from kvcs.cli._errors import ExitCode, Incomplete
from kvcs.cli._options import Command, option, pass_output
from kvcs.cli._output import Output, format_bytes
from kvcs.cli._runtime import run
from kvcs.cli._units import DURATION
from kvcs.cli.demo.board import Board
from kvcs.cli.demo.material import ENGINE_CHOICES, FILE, default_engine
from kvcs.cli.demo.report import arrival_table, decoding_notes, decoding_table
from kvcs.cli.demo.scenario import DemoConfig, DemoResult, Scenario
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.engines.registry import missing_packages
from kvcs.errors import ConfigError

__all__ = ("demo",)

_FAILED_HINT: Final = "The table shows which consumer; with --json, the object on standard output."


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
@option(
    "--secure",
    is_flag=True,
    help="Sign, seal, and let the relay go by tokens; then show what it could see.",
)
@option("--timeout", type=DURATION, default="5m", help="Whole time allowed.")
@pass_output
def demo(output: Output, **settings: Any) -> None:
    """Publish a real KV cache through a relay to several consumers, on this machine.

    The first consumer listens from the start, the second one joins in the middle, the third one
    comes when the publisher has left and takes half of the layers and blocks. Where there is a
    model, a fourth one comes last, computes the prompt alone, and does it again with the whole
    prefix out of the relay. Every byte is compared; consumers with a whole prefix decode from it
    and must get the same tokens as without it. The exit code is not 0 if anything differs or is
    missing.

    With --secure the relay has no keys but public ones for tokens, manifests are signed and Objects
    sealed. At the end strangers try to get in, and everything that the relay has stored is searched
    for pieces of the cache, tokens of the prompt, the model's digests and every key.

    \b
    Examples:
      kvcs demo
      kvcs demo --engine file --json
      kvcs demo --kill-relay
      kvcs demo --secure
    """  # noqa: D301 - click reads the backslash
    config = _configure(output, settings)
    with tempfile.TemporaryDirectory(prefix="kvcs-demo-") as directory, Board(output) as board:
        result = run(_perform(config, Path(directory), board))
        chart = board.chart(is_plain=output.is_plain)
    _show(output, config, result, chart)


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
    if settings["secure"] and settings["kill_relay"]:
        raise ConfigError(
            "--secure", "no --kill-relay beside it: the relay is looked at afterwards"
        )
    if engine == FILE:
        load_cache(settings["model"] or SAMPLE_CACHE)
    elif missing := missing_packages(engine, settings["model"]):
        expected = f"an engine that is installed; {engine} needs pip install {' '.join(missing)}"
        raise ConfigError("--engine", expected)
    return DemoConfig(engine=engine, **settings)


async def _perform(config: DemoConfig, directory: Path, board: Board) -> DemoResult:
    return await Scenario(config, directory, board).run()


def _show(output: Output, config: DemoConfig, result: DemoResult, chart: list[str]) -> None:
    output.result(
        {
            "consumers": [portion.report() for portion in result.portions],
            "relay": {
                "bytes_in": result.relay.bytes_in,
                "bytes_out": result.relay.bytes_out,
                "upstream_subscriptions": result.relay.upstream_subscriptions,
            },
            "equal": result.equal,
            "late": None if result.late is None else result.late.report_decoding(),
            **({} if result.security is None else {"security": result.security.to_json()}),
        }
    )
    everyone = result.portions if result.late is None else [*result.portions, result.late]
    output.text("\n".join([*chart, ""]))
    output.table(arrival_table(everyone))
    output.text(
        f"relay: {format_bytes(result.relay.bytes_in)} in, {format_bytes(result.relay.bytes_out)} "
        f"out, {result.relay.upstream_subscriptions} upstream subscriptions\n"
    )
    decoded = [portion for portion in everyone if portion.compared]
    if decoded:
        output.table(decoding_table(decoded))
        output.text("\n".join([*decoding_notes(everyone), ""]))
    if result.security is not None:
        output.text("\n".join([*result.security.lines(), ""]))
    if not result.succeeded:
        raise Incomplete("something differs or is missing", ExitCode.DATA, _FAILED_HINT)
    output.text(_conclusion(config, result))


def _conclusion(config: DemoConfig, result: DemoResult) -> str:
    if config.secure:
        return "every byte is the same, and the relay could read none of them"
    if config.kill_relay:
        return "the relay was killed, and the tokens are the same"
    if not any(portion.compared for portion in result.portions):
        return "every byte is the same; there was no model, so no token was decoded"
    return "every byte and every token is the same"
