"""How a failure is shown: two lines for people, or one JSON object."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import click

from kvcs.cli._errors import Complaint, ExitCode
from kvcs.cli._standard import error_stream
from kvcs.cli._text import printable

__all__ = ("ErrorForm",)

# Seconds that it waits for a reader; the exit code comes after it.
_PATIENCE: Final = 5.0
# What click takes for true.
_TRUE = ("1", "true", "t", "yes", "y", "on")
_INTERRUPTED = Complaint(message="interrupted", hint="", code=ExitCode.INTERRUPTED)


@dataclass(slots=True)
class ErrorForm:
    """The form of what goes to standard error when a command fails.

    Attributes:
        as_json: One JSON object. What the words of the command line say holds until the command
            has been parsed, and then what the command has found, its file of settings included.
    """

    as_json: bool

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Self:
        """Guess from the words of a command line that may not be a valid one."""
        words = [*arguments, "--"]
        variable = os.environ.get("KVCS_JSON", "")
        return cls("--json" in words[: words.index("--")] or variable.lower() in _TRUE)

    def show(self, complaint: Complaint) -> ExitCode:
        """Show a failure on standard error; return its exit code."""
        # The exit code says it too, where nobody can read this.
        with suppress(OSError):
            self._echo(complaint)
        return complaint.code

    def _echo(self, complaint: Complaint) -> None:
        stream = error_stream(_PATIENCE)
        if self.as_json:
            click.echo(json.dumps(complaint.to_json()), file=stream)
            return
        click.echo(f"kvcs: {printable(complaint.message)}", file=stream)
        if complaint.hint:
            click.echo(f"  {complaint.hint}", file=stream)

    def show_interruption(self) -> ExitCode:
        """Say that somebody interrupted, to a program: a person knows."""
        return self.show(_INTERRUPTED) if self.as_json else ExitCode.INTERRUPTED
