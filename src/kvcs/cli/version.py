"""``kvcs version``: package, wire draft and QUIC library."""

from importlib import metadata

import click

from kvcs.cli._options import Command, pass_output
from kvcs.cli._output import Output
from kvcs.moqt.codepoints import ALPN

__all__ = ("version",)


@click.command(cls=Command)
@pass_output
def version(output: Output) -> None:
    """Show the versions of the package, the wire draft and the QUIC library."""
    versions = {
        "kvcs": metadata.version("kvcs"),
        "moqt": ALPN,
        "kvcs_namespace": "kvcs-1",
        "aiopquic": metadata.version("aiopquic"),
    }
    output.result(versions)
    output.text("\n".join(f"{name:<16} {value}" for name, value in versions.items()))
