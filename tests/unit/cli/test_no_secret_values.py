"""No secret is the value of a flag: whoever lists the processes of a machine would read it."""

import re

import click
import pytest

from kvcs.cli import _HIDDEN, root
from kvcs.cli._units import DURATION, SIZE

SECRETS = re.compile(r"key|token|secret|passw|credential|kid", re.IGNORECASE)
# Types of values that are one of a few, a number, or the place of something.
CLOSED = (click.Path, click.File, click.Choice, click.IntRange, type(DURATION), type(SIZE))
FREE = {
    "--kid": "the public name of a key",
    "kid": "likewise, as an argument",
    "--scope": "a Scope ID, which names a scope and opens nothing",
    "--audience": "the name of a relay",
    "--token-audience": "likewise",
}


def parameters(command, context, path=()):
    """Yield the parameters of all commands, with the words that lead to them."""
    if isinstance(command, click.Group):
        for name in [*command.list_commands(context), *(() if path else _HIDDEN)]:
            found = command.get_command(context, name)
            assert found is not None
            yield from parameters(found, context, (*path, name))
    yield from ((path, parameter) for parameter in command.params)


def could_hold_a_secret(parameter):
    """Tell whether a parameter speaks of secrets and takes any text."""
    words = " ".join([*parameter.opts, getattr(parameter, "help", None) or ""])
    is_closed = isinstance(parameter.type, CLOSED) or getattr(parameter, "is_flag", False)
    return bool(SECRETS.search(words)) and not is_closed


ALL = list(parameters(root, click.Context(root)))


def test_what_speaks_of_a_secret_names_a_file():
    found = [
        f"kvcs {' '.join(path)} {parameter.opts[0]}"
        for path, parameter in ALL
        if could_hold_a_secret(parameter) and parameter.opts[0] not in FREE
    ]

    assert not found


def test_every_command_was_looked_at_and_every_exception_is_needed():
    commands = {path for path, _ in ALL}

    assert {("demo",), ("relay", "run"), ("token", "mint"), ("fetch",), ("doctor",)} <= commands
    assert {it.opts[0] for _, it in ALL if could_hold_a_secret(it)} == set(FREE)


@pytest.mark.parametrize(
    "planted",
    [
        click.Option(["--token"]),
        click.Option(["--scope-key"], type=click.STRING),
        click.Option(["--with"], help="Password of the relay."),
        click.Argument(["secret"]),
        click.Option(["--key"], type=click.UNPROCESSED, multiple=True),
    ],
    ids=lambda it: it.opts[0],
)
def test_a_flag_that_takes_a_secret_would_be_found(planted):
    assert could_hold_a_secret(planted)
    assert planted.opts[0] not in FREE
