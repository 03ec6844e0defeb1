"""What several files share: a certificate, commands in this process, and one relay process.

The relay is the same for all who ask for it: each of them uses a scope of its own.
"""

import logging
import os
import secrets

import pytest
from tests.integration.children import first_line, process

import kvcs.cli
from kvcs.endpoint.certificate import create_dev_certificate


@pytest.fixture(scope="session")
def certificate_directory(tmp_path_factory):
    """Where relays of this machine find a development certificate; more names need another one."""
    return tmp_path_factory.mktemp("certificate")


@pytest.fixture(scope="session")
def certificate(certificate_directory):
    return create_dev_certificate(certificate_directory)


@pytest.fixture(scope="session")
def relay(certificate_directory, certificate):
    """A relay process: what it says of itself."""
    assert certificate.ca_file.exists()
    arguments = ("relay", "run", "--port", 0, "--no-admin", "--json")
    with process(*arguments, "--dev-cert", certificate_directory) as child:
        yield first_line(child)


@pytest.fixture(scope="module")
def scope_key_file(tmp_path_factory):
    """The key of a scope that no other file knows."""
    path = tmp_path_factory.mktemp("scope") / "scope.key"
    path.write_text(secrets.token_hex(32))
    return path


@pytest.fixture
def own_scope_key_file(tmp_path_factory):
    """The key of a scope that no other test knows."""
    path = tmp_path_factory.mktemp("own") / "own.key"
    path.write_text(secrets.token_hex(32))
    return path


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command in this process; return its exit code, standard output and error."""
    for name in os.environ:
        if name.startswith("KVCS_"):
            monkeypatch.delenv(name)
    log = logging.getLogger("kvcs")
    before = (log.handlers, log.level, log.propagate)

    def call(*arguments):
        code = kvcs.cli._run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(code), captured.out, captured.err

    yield call
    log.handlers, _, log.propagate = before
    log.setLevel(before[1])
