"""``kvcs version``: package, wire draft and QUIC library."""

from importlib import metadata

import click

from kvcs.cli._options import Command, pass_output
from kvcs.cli._output import Output
from kvcs.moqt.codepoints import ALPN

__all__ = ("lines", "version")


@click.command(cls=Command)
@pass_output
def version(output: Output) -> None:
    """Show the versions of the package, the wire draft and the QUIC library."""
    output.result(_versions())
    output.text("\n".join(lines()))


def lines() -> list[str]:
    """Return a line per version for people, the package's first."""
    return [f"{name:<16} {value}" for name, value in _versions().items()]


def _versions() -> dict[str, str]:
    return {
        "kvcs": metadata.version("kvcs"),
        "moqt": ALPN,
        "kvcs_namespace": "kvcs-1",
        "aiopquic": metadata.version("aiopquic"),
    }
