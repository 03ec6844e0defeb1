"""The container file: what it says, and its commands in a plain environment."""

import http.server
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests.deploy.serving import serves

import kvcs.cli
from kvcs.endpoint.certificate import create_dev_certificate

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UV = os.environ.get("UV") or shutil.which("uv")
UNPRIVILEGED = 65532


def instructions():
    """Instruction and arguments of every step, by stage."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text())
    stages = []
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        if word and not word.startswith("#"):
            stages[-1].append((word, rest))
    return stages


BUILD, FINAL = instructions()


def of(stage, word):
    return [rest for name, rest in stage if name == word]


def exec_form(text):
    """Words of the exec form: a JSON array, as Docker wants it."""
    return [shlex.split(word)[0] for word in text.strip("[]").split(", ")]


def test_image_runs_as_nobody_and_writes_to_one_place():
    assert of(FINAL, "USER") == [f"{UNPRIVILEGED}:{UNPRIVILEGED}"]
    assert of(FINAL, "VOLUME") == ["/var/lib/kvcs"]
    assert of(FINAL, "STOPSIGNAL") == ["SIGTERM"]
    # Both stages have the same Python, which the environment points to.
    assert len({rest.split()[0] for stage in (BUILD, FINAL) for rest in of(stage, "FROM")}) == 1


def test_copied_files_exist_and_reach_the_build():
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    kept = [line[1:] for line in ignored if line.startswith("!")]
    copied = [
        word
        for stage in (BUILD, FINAL)
        for rest in of(stage, "COPY")
        if not rest.startswith("--from")
        for word in rest.split()[:-1]
    ]

    assert ignored[0] == "*"
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert any(fnmatch(name, pattern) for pattern in kept), name


def test_started_command_takes_its_arguments(tmp_path):
    program, *words = exec_form(of(FINAL, "ENTRYPOINT")[0]) + exec_form(of(FINAL, "CMD")[0])
    (tmp_path / "relay.toml").write_text("")

    code = kvcs.cli._run(
        [word.replace("/etc/kvcs", str(tmp_path)) for word in words] + ["--print-config"]
    )

    assert program == "/opt/kvcs/bin/kvcs"
    assert code == 0


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """What the build stage installs, from what uv has at hand."""
    if UV is None:
        pytest.skip("uv is not on the path")
    place = tmp_path_factory.mktemp("image")
    variables = dict(word.split("=", 1) for rest in of(BUILD, "ENV") for word in rest.split())
    environment = {
        **os.environ,
        **variables,
        "UV_PROJECT_ENVIRONMENT": str(place / "kvcs"),
        "UV_PYTHON": sys.executable,
        "UV_OFFLINE": "1",
    }
    # The first step installs uv itself; the last one installs kvcs with it.
    *_, step = of(BUILD, "RUN")
    assert step.startswith("/opt/uv/bin/uv sync ")
    done = subprocess.run(
        [UV, *shlex.split(step)[1:]],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and ("offline" in done.stderr or "network" in done.stderr):
        pytest.skip(f"uv does not have all packages at hand: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return place / "kvcs"


def test_installed_environment_is_all_that_a_relay_needs(installed, tmp_path):
    program = exec_form(of(FINAL, "ENTRYPOINT")[0])[0].replace("/opt/kvcs", str(installed))

    done = subprocess.run(
        [program, "relay", "run", "--print-config"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )

    assert done.returncode == 0, done.stderr
    assert "[listen]" in done.stdout
    assert not list(installed.rglob("pytest*"))


# As `docker run --read-only --cap-drop ALL --security-opt no-new-privileges` has it.
_CONFINED = """
mount --make-rprivate / && mount --bind "$0" "$0" && mount -o remount,bind,ro / || exit 100
exec setpriv --bounding-set -all --inh-caps -all --no-new-privs "$@"
"""


def confined(state, *command):
    return ["unshare", "--mount", "sh", "-c", _CONFINED, str(state), *map(str, command)]


@pytest.fixture
def state(tmp_path):
    """The only directory that can be written to; skips where that cannot be arranged."""
    trial = f"touch {tmp_path}/here && ! touch {ROOT}/there && ! mount --bind / /mnt"
    try:
        done = subprocess.run(
            confined(tmp_path, "sh", "-c", trial), capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if done.returncode:
        pytest.skip(f"no mount namespace, or no read-only root here: {done.stderr[-200:]}")
    return tmp_path


def test_relay_runs_on_a_read_only_root_without_capabilities(installed, state, capsys):
    certificate = create_dev_certificate(state / "made")
    shutil.copy(certificate.certificate_file, state / "chain.pem")
    shutil.copy(certificate.private_key_file, state / "key.pem")
    shutil.copy(DEPLOY / "relay.toml", state / "relay.toml")
    start = exec_form(of(FINAL, "ENTRYPOINT")[0]) + exec_form(of(FINAL, "CMD")[0])
    words = [
        word.replace("/opt/kvcs", str(installed)).replace("/etc/kvcs", str(state)) for word in start
    ]
    changed = (
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--admin-port",
        "0",
        "--allow-anyone",
        "--json",
    )
    command = confined(state, *words, *changed, "--disk-directory", state / "disk")
    environment = dict(word.split("=", 1) for rest in of(FINAL, "ENV") for word in rest.split())
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environment},
    ) as child:
        try:
            listening = json.loads(child.stdout.readline())
            port = listening["url"].rstrip("/").rpartition(":")[2]
            alive = healthcheck(f"{listening['admin']}healthz")
            is_serving = serves(port, certificate.ca_file, state)
            child.send_signal(signal.SIGTERM)
            _, err = child.communicate(timeout=45)
        finally:
            child.kill()

    assert alive == 0
    assert is_serving, capsys.readouterr()
    assert child.returncode == 0, err
    assert "Read-only" not in err


class _Answer(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self):
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


def healthcheck(url):
    words = exec_form(of(FINAL, "HEALTHCHECK")[0].partition("CMD ")[2])
    assert words == ["/opt/kvcs/bin/python", "/opt/kvcs/healthcheck.py"]
    command = [sys.executable, str(DEPLOY / "healthcheck.py"), url]
    return subprocess.run(command, check=False).returncode


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_healthcheck_is_what_the_listener_says(status, code):
    handler = type("Handler", (_Answer,), {"status": status})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert healthcheck(f"http://127.0.0.1:{server.server_port}/healthz") == code
        finally:
            server.shutdown()

    assert healthcheck(f"http://127.0.0.1:{server.server_port}/healthz") == 1


def test_names_of_kernel_settings_exist():
    for line in (DEPLOY / "90-kvcs.conf").read_text().splitlines():
        if line and not line.startswith("#"):
            name = line.partition("=")[0].strip()
            assert Path("/proc/sys", *name.split(".")).exists()
