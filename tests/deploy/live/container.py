"""The image, built and run with Podman."""

import subprocess

from tests.deploy.live.machine import (
    CA_VARIABLES,
    DEPLOY,
    ROOT,
    Client,
    answers,
    call,
    debian,
    see,
    settings,
    until,
)

BASE = "docker.io/library/python:3.12-slim-bookworm"
IMAGE = "localhost/kvcs-relay-live"
NAME = "kvcs-relay-live"
NOBODY = 65532


def check(place, runtime, *, has_registry):
    """Build as docs/howto/deploy-a-relay.md says, run, and look."""
    if not has_registry:
        _make_base(place / "root")
    build = ("podman", "build", "--isolation=chroot", "--network=host", "--format=docker")
    pull = () if has_registry else ("--pull=never",)
    call(*build, *pull, "--file", DEPLOY / "Containerfile", "--tag", IMAGE, ROOT)
    see("the image is built", True)
    ca_file = settings(place / "etc")
    key = place / "etc/key.pem"
    call("chown", f"{NOBODY}:{NOBODY}", key)
    key.chmod(0o400)
    try:
        _run_and_look(place, ca_file, runtime)
    finally:
        for words in (("rm", "--force", NAME), ("volume", "rm", "--force", NAME)):
            subprocess.run(["podman", *words], check=False, capture_output=True)


def _run_and_look(place, ca_file, runtime):
    # The flags of the how-to. Podman wants systemd for the times of the health check.
    call(
        *("podman", "--runtime", runtime, "run", "--detach", "--name", NAME, "--no-healthcheck"),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--publish", "4433:4433/udp", "--publish", "127.0.0.1:4434:4434"),
        *("--volume", f"{place / 'etc'}:/etc/kvcs:ro", "--volume", f"{NAME}:/var/lib/kvcs"),
        *("--stop-timeout", "45", IMAGE),
    )
    inside = ("podman", "--runtime", runtime, "exec", NAME)
    health = (*inside, "/opt/kvcs/bin/python", "/opt/kvcs/healthcheck.py")
    until("its health check is content", lambda: _succeeds(*health))
    see("its health check, inside, is content", True)
    users = call("podman", "top", NAME, "huser", "capeff").splitlines()[-1].split()
    see("the relay is nobody", users == [str(NOBODY), "none"], instead=str(users))
    for path in ("/x", "/opt/kvcs/x", "/etc/kvcs/x"):
        see(f"{path} cannot be written", not _succeeds(*inside, "touch", path))
    see("its inner listener is not reached from outside", not answers("http://127.0.0.1:4434/"))
    client = Client(place, ca_file)
    client.examine()
    client.publish()
    call("podman", "kill", "--signal", "KILL", NAME)
    until("it ended", lambda: _state() == "exited 137")
    call("podman", "--runtime", runtime, "start", NAME)
    until("its health check is content again", lambda: _succeeds(*health))
    client.see_served("after SIGKILL, and a start from its volume,")
    call("podman", "stop", NAME)
    see("podman stop ends it with 0", _state() == "exited 0", instead=_state())


def _make_base(root):
    debian(root)
    changes = [
        word for name, value in CA_VARIABLES.items() for word in ("--change", f"ENV {name}={value}")
    ]
    path = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
    with subprocess.Popen(["tar", "-c", "-C", str(root), "."], stdout=subprocess.PIPE) as files:
        call(
            "podman",
            "import",
            *changes,
            "--change",
            f"ENV PATH={path}",
            "-",
            BASE,
            stdin=files.stdout,
        )


def _succeeds(*words):
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


def _state():
    shown = call("podman", "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", NAME)
    return shown.strip()
