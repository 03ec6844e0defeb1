"""Every example in a help text can be typed as it stands."""

import re
import shlex

import click
import pytest

from kvcs.cli import root

# What a reader has, or has made with the examples that come first.
FILES = (
    "cache.safetensors",
    "scope.key",
    "certificate/ca.pem",
    "chain.pem",
    "key.pem",
    "relay.toml",
    "site-a.jwks",
    "member.json",
)


def commands(group=root):
    """All commands that are listed, and their groups."""
    context = click.Context(group)
    yield group
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command)
        else:
            yield command


def examples(command):
    """The examples of a help text, without the words beside them."""
    text = re.sub(r"\\\n\s*", " ", (command.help or "").partition("Examples:")[2])
    for line in text.splitlines():
        if line.strip():
            yield re.split(r" {3,}", line.strip())[0]


EXAMPLES = [line for command in commands() for line in examples(command)]


def test_examples_are_found_in_the_first_help_and_in_those_of_commands():
    assert "kvcs demo" in EXAMPLES
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("line", EXAMPLES)
def test_example_is_what_its_command_takes(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "certificate").mkdir()
    for name in FILES:
        (tmp_path / name).touch()
    program, *words = shlex.split(line)
    command = root
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(click.Context(command), words)

    context = command.make_context(name, words)

    assert program == "kvcs"
    for path in (context.params.get(name) for name in ("scope_key_file", "ca")):
        assert path is None or path.exists()
    if "moqt://127" in line:
        assert context.params["ca"] is not None
        assert "scope_key_file" not in context.params or context.params["scope_key_file"]
