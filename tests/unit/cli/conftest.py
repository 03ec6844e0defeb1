"""Runs commands in this process, without the reader's own environment."""

import json
import logging
import os

import pytest

import kvcs.cli


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("KVCS_") or name == "NO_COLOR":
            monkeypatch.delenv(name)
    yield
    logging.getLogger("kvcs").handlers = []


@pytest.fixture
def kvcs_run(capsys):
    """Run a command; return its exit code, standard output and standard error."""

    def run(*arguments):
        code = kvcs.cli._run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return run


@pytest.fixture
def kvcs_json(kvcs_run):
    """Run a command that must succeed; return its JSON."""

    def run(*arguments):
        code, out, err = kvcs_run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return run
