"""The systemd unit: its syntax, its hardening, and the relay under its rules."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deploy.serving import serves

import kvcs.cli
from kvcs.cli.relay.run import relay_run
from kvcs.cli.relay.schema import Settings
from kvcs.endpoint.certificate import create_dev_certificate

pytestmark = pytest.mark.timeout(120)

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "kvcs-relay.service"
SANDBOX = Path(__file__).parent / "sandbox.py"
# Of 100, by systemd's own count; what remains is the network that a relay is for.
MAX_EXPOSURE = 15

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def value_of(name):
    text = UNIT.read_text().replace("\\\n", " ")
    (value,) = re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)
    return value


@pytest.fixture
def place(tmp_path):
    """What /etc/kvcs holds, with a development certificate in place of a real one."""
    certificate = create_dev_certificate(tmp_path / "made")
    shutil.copy(certificate.certificate_file, tmp_path / "chain.pem")
    shutil.copy(certificate.private_key_file, tmp_path / "key.pem")
    shutil.copy(DEPLOY / "relay.toml", tmp_path / "relay.toml")
    return tmp_path


def started(place):
    """Words of ExecStart, with the paths of `place`."""
    program, *words = value_of("ExecStart").split()
    assert program == "/opt/kvcs/bin/kvcs"
    words = [
        word.replace("/etc/kvcs", str(place)).replace("${CREDENTIALS_DIRECTORY}", str(place))
        for word in words
    ]
    return [sys.executable, "-m", "kvcs", *words]


@needs_systemd
def test_unit_is_what_systemd_takes(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/kvcs/bin/kvcs", sys.executable))

    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def drop_in():
    """What the how-to adds to the unit for a relay with parents."""
    page = (DEPLOY.parent / "docs" / "howto" / "deploy-a-relay.md").read_text()
    (block,) = re.findall(r"^```ini\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return block


@needs_systemd
def test_unit_with_the_credentials_of_a_child_is_what_systemd_takes(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/kvcs/bin/kvcs", sys.executable))
    (tmp_path / f"{UNIT.name}.d").mkdir()
    (tmp_path / f"{UNIT.name}.d" / "override.conf").write_text(drop_in())

    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_variables_of_the_drop_in_are_flags_of_the_relay_and_name_its_credentials():
    flags = {name for parameter in relay_run.params for name in parameter.opts}
    text = drop_in()
    credentials = set(re.findall(r"^LoadCredential=([\w.]+):", text, re.MULTILINE))
    variables = re.findall(r"^Environment=KVCS_(\w+)=%d/([\w.]+)$", text, re.MULTILINE)

    assert len(variables) == len(credentials) == 2
    assert {file for _, file in variables} == credentials
    assert {f"--{name.lower().replace('_', '-')}" for name, _ in variables} <= flags


@needs_systemd
def test_unit_is_hardened():
    arguments = ("--offline=true", "--no-pager", f"--threshold={MAX_EXPOSURE}")
    done = subprocess.run(
        ["systemd-analyze", "security", *arguments, str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


def test_unit_gives_a_drain_its_time(place):
    settings = kvcs.cli._run(["relay", "check-config", str(place / "relay.toml")])

    assert settings == 0
    assert int(value_of("TimeoutStopSec")) > Settings().drain_timeout + 5
    assert value_of("RestartPreventExitStatus") == "2"
    for name in ("chain.pem", "key.pem"):
        assert f"LoadCredential={name}:/etc/kvcs/{name}" in UNIT.read_text()
        assert f"${{CREDENTIALS_DIRECTORY}}/{name}" in value_of("ExecStart")


def confined(*command):
    return [sys.executable, str(SANDBOX), str(UNIT), *command]


@pytest.fixture(scope="module")
def sandbox():
    """Skip where the rules cannot be applied; check that they bite where they can."""
    done = subprocess.run(confined("/bin/true"), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the unit's rules cannot be applied here: {done.stderr.splitlines()[-1:]}")
    trial = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"
    done = subprocess.run(
        confined(sys.executable, "-c", trial), capture_output=True, text=True, check=False
    )
    assert "PermissionError" in done.stderr


@needs_systemd
@pytest.mark.usefixtures("sandbox")
def test_relay_serves_and_ends_under_the_rules_of_the_unit(place, capsys):
    disk = place / "disk"
    command = [
        *started(place),
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--admin-port",
        "0",
        "--allow-anyone",
        "--json",
    ]
    environment = {name: value for name, value in os.environ.items() if name[:5] != "KVCS_"}
    with subprocess.Popen(
        confined(*command, "--disk-directory", str(disk)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        try:
            listening = json.loads(child.stdout.readline())
            port = listening["url"].rstrip("/").rpartition(":")[2]
            is_serving = serves(port, place / "made" / "ca.pem", place)
            child.send_signal(signal.SIGTERM)
            _, err = child.communicate(timeout=int(value_of("TimeoutStopSec")))
        finally:
            child.kill()

    assert is_serving, capsys.readouterr()
    assert child.returncode == 0, err
    assert "Permission" not in err
