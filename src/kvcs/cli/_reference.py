"""The reference of commands and settings in docs/reference/cli.md, made of the commands themselves.

``python -m kvcs.cli._reference docs/reference/cli.md`` writes it anew between its two marks; a
test compares them.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from kvcs.cli import root
from kvcs.cli._options import Command

__all__ = ("BEGIN", "END", "reference", "replaced")

BEGIN: Final = "<!-- begin: made by python -m kvcs.cli._reference -->"
END: Final = "<!-- end -->"


def reference() -> str:
    """Return one section per command, with a row per setting."""
    context = click.Context(root, info_name="kvcs")
    shared = ["### Every command\n", *_table(Command("shared").params)]
    return "\n".join(
        [*shared, *(line for name in root.list_commands(context) for line in _lines(name))]
    )


def replaced(text: str) -> str:
    """Return `text` with the part between the marks made anew."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def _lines(name: str) -> Iterator[str]:
    context = click.Context(root, info_name="kvcs")
    command = root.get_command(context, name)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            member = command.get_command(context, child)
            assert member is not None
            yield from _section(member, f"kvcs {name} {child}")
    elif command is not None:
        yield from _section(command, f"kvcs {name}")


def _section(command: click.Command, path: str) -> Iterator[str]:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    usage = " ".join([path, *(p.make_metavar(click.Context(command)) for p in arguments)])
    yield f"### `{usage}`\n"
    yield f"{_help(command)}\n"
    shared = {parameter.name for parameter in Command("shared").params}
    options = [parameter for parameter in command.params if parameter.name not in shared]
    yield from _table(options)


def _table(parameters: Sequence[click.Parameter]) -> Iterator[str]:
    rows = [_row(parameter) for parameter in parameters if isinstance(parameter, click.Option)]
    if rows:
        yield from ("| Flag | Value | Default | Meaning |", "|---|---|---|---|", *rows, "")


def _help(command: click.Command) -> str:
    """Return the prose of a command's help, without its examples."""
    prose = (command.help or "").partition("\b")[0]
    return "\n\n".join(" ".join(part.split()) for part in prose.strip().split("\n\n"))


def _row(parameter: click.Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in parameter.opts)
    value = "" if parameter.is_flag or parameter.count else _value(parameter.type)
    meaning = " ".join((parameter.help or "").split()).replace("|", "\\|")
    return f"| {flags} | {value} | {_default(parameter)} | {meaning} |"


def _value(kind: click.ParamType[Any]) -> str:
    match kind:
        case click.Choice():
            return ", ".join(f"`{choice}`" for choice in kind.choices)
        case click.IntRange(min=least, max=most):
            return f"{least}..{most}" if most is not None else f"at least {least}"
        case click.Path(file_okay=False):
            return "directory"
        case click.Path(dir_okay=True):
            return "file or directory"
        case click.Path():
            return "file"
        case _:
            return kind.name


def _default(parameter: click.Option) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    default = parameter.to_info_dict()["default"]
    return "" if parameter.is_flag or parameter.count or default is None else f"`{default}`"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(replaced(page.read_text(encoding="utf-8")), encoding="utf-8")
