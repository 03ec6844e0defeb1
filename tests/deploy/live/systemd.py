"""The unit under a systemd that has booted, in a container of systemd-nspawn without a network."""

import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.live.machine import (
    CA_VARIABLES,
    ROOT,
    Client,
    NotSeen,
    call,
    debian,
    see,
    settings,
    until,
)

UNIT = "kvcs-relay.service"
# Seconds; RestartSec of the unit is one.
_LONGER_THAN_RESTART = 3.0


def check(place):
    """Install as docs/howto/deploy-a-relay.md says, boot, and look."""
    root = place / "root"
    debian(root)
    _install(root)
    ca_file = settings(root / "etc/kvcs")
    (root / "etc/kvcs/key.pem").chmod(0o600)
    call("chroot", root, "kvcs", "relay", "check-config", "/etc/kvcs/relay.toml")
    call("chroot", root, "systemctl", "enable", UNIT)
    with _booted(root) as machine:
        machine.until_active()
        _see_confined(machine)
        client = Client(place, ca_file, machine.enter_network)
        client.examine()
        client.publish()
        os.kill(machine.relay(), signal.SIGKILL)
        until("the relay is started again", lambda: machine.value("NRestarts") == "1")
        machine.until_active()
        client.see_served("after SIGKILL, started again by systemd,")
        _see_wrong_settings(machine, root)
        _see_credentials_of_a_child(machine, root)


def _install(root):
    source = root / "src"
    source.mkdir()
    files = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=files, check=True)
    (root / "etc/resolv.conf").write_text(Path("/etc/resolv.conf").read_text())
    page = (ROOT / "docs/howto/deploy-a-relay.md").read_text()
    (steps,) = re.findall(
        r"^```\n(python3.12 -m venv /opt/kvcs-0.1.0\n.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    # The certificate is written afterwards, and kernel settings are those of the machine around.
    kept = [line for line in steps.splitlines() if not re.search(r"\.pem|^sysctl", line)]
    script = "set -e; cd /src; umask 022\n" + "\n".join(kept)
    call("chroot", root, "sh", "-c", script, env={**os.environ, **CA_VARIABLES})


class _Machine:
    """A systemd that runs."""

    def __init__(self, init):
        self._enter = ("nsenter", "--target", init, "--all")
        self.enter_network = ("nsenter", "--target", str(init), "--net")

    def call(self, *words):
        """Run a command inside."""
        return call(*self._enter, *words)

    def value(self, name):
        """Return a property of the unit."""
        return self.call("systemctl", "show", UNIT, "--property", name, "--value").strip()

    def answers(self):
        """Tell whether systemd says anything of the unit."""
        try:
            return bool(self.value("ActiveState"))
        except NotSeen:
            return False

    def stays(self):
        """Return the state of the unit after longer than systemd waits to start it again."""
        time.sleep(_LONGER_THAN_RESTART)
        return self.value("SubState")

    def relay(self):
        """Return the number of the relay's process, as it is outside."""
        (number,) = call("pgrep", "-f", "^/opt/kvcs.*/bin/kvcs relay run").split()
        return int(number)

    def until_active(self):
        """Wait until the relay serves."""
        until("the unit is active", lambda: self.value("SubState") == "running")
        until("the relay answers", lambda: "ready" in self._status())

    def _status(self):
        try:
            return self.call("kvcs", "relay", "status")
        except NotSeen:
            return ""

    def journal(self):
        """Return what the unit said."""
        return self.call("journalctl", "--unit", UNIT, "--no-pager", "--output", "cat")


@contextmanager
def _booted(root):
    nspawn = ("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network")
    with subprocess.Popen(
        [*nspawn, "--console=pipe", "--boot", "--directory", str(root)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as container:
        try:
            children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
            until("systemd has begun", lambda: children.read_text().split())
            machine = _Machine(children.read_text().split()[-1])
            until("systemd answers", machine.answers)
            yield machine
        finally:
            container.terminate()


def _see_confined(machine):
    status = Path(f"/proc/{machine.relay()}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    see("the relay is no root", "0" not in fields["Uid"].split(), instead=fields["Uid"])
    capabilities = [fields[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")]
    see("it has no capabilities", not any(int(c, 16) for c in capabilities))
    see("it cannot gain any", fields["NoNewPrivs"] == "1")
    see("its system calls are filtered", fields["Seccomp"] == "2")
    mode = machine.call("stat", "--format", "%a %U", "/etc/kvcs/key.pem").split()
    see("its key is for root alone", mode == ["600", "root"], instead=str(mode))


def _see_wrong_settings(machine, root):
    file = root / "etc/kvcs/relay.toml"
    text = file.read_text()
    machine.call("systemctl", "stop", UNIT)
    ended = (machine.value("Result"), machine.value("ExecMainStatus"))
    see("systemctl stop ends it with 0", ended == ("success", "0"), instead=str(ended))
    file.write_text(text.replace('policy = "allow-anyone"', 'policy = "nonsense"'))
    machine.call("systemctl", "start", UNIT)
    until("it ends", lambda: machine.value("ActiveState") == "failed")
    ended = (machine.stays(), machine.value("ExecMainStatus"), machine.value("NRestarts"))
    see("wrong settings end it with 2, and once", ended == ("failed", "2", "0"), instead=str(ended))
    see("the journal says what is wrong", "'nonsense'" in machine.journal())
    file.write_text(text)


def _see_credentials_of_a_child(machine, root):
    page = (ROOT / "docs/howto/deploy-a-relay.md").read_text()
    (override,) = re.findall(r"^```ini\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    directory = root / f"etc/systemd/system/{UNIT}.d"
    directory.mkdir()
    (directory / "override.conf").write_text(override)
    kvcs = root / "etc/kvcs"
    (kvcs / "parents.pem").write_text((kvcs / "chain.pem").read_text())
    token = kvcs / "upstream.token"
    token.write_text("not a token that anybody looks at\n")
    for secret in (token, kvcs / "parents.pem"):
        secret.chmod(0o600)
    file = kvcs / "relay.toml"
    file.write_text(f'upstream = ["moqt://127.0.0.1:4499/"]\n{file.read_text()}')
    machine.call("systemctl", "daemon-reload")
    machine.call("systemctl", "start", UNIT)
    state = machine.stays()
    see("a child reads the token of its parents", state == "running", instead=machine.journal())
