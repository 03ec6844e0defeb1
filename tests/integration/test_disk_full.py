"""A relay whose disk is really full: a file system of few MiB, in a mount namespace of its own."""

import json
import shlex
import shutil
import subprocess

import pytest
from tests.integration.children import (
    KVCS,
    child_process,
    end,
    first_line,
    process,
    status_at,
    until,
)

from kvcs.engines.file import SAMPLE_CACHE

#: The sample has 5.6 MiB.
SMALL, LARGE = "4m", "64m"


def missing_rights(directory):
    """Return why there can be no file system of our own here, or an empty text."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "no unshare and nsenter"
    probe = f"mount -t tmpfs -o size={SMALL} tmpfs {shlex.quote(str(directory))}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", probe], capture_output=True, text=True, check=False
    )
    return f"no private mounts: {done.stderr.strip()}" if done.returncode else ""


@pytest.fixture
def disk(tmp_path):
    directory = tmp_path / "disk"
    directory.mkdir(mode=0o700)
    if reason := missing_rights(directory):
        pytest.skip(reason)
    return directory


def on_small_disk(disk, *command):
    """Return a command that runs where `disk` is a small file system."""
    mount = f"mount -t tmpfs -o mode=0700,size={SMALL} tmpfs {shlex.quote(str(disk))}"
    return ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *command)


def enlarge(child, disk):
    """Make room on the file system of a process."""
    remount = ("mount", "-o", f"remount,size={LARGE}", str(disk))
    subprocess.run(["nsenter", "-m", "-t", str(child.pid), *remount], check=True, timeout=20)


@pytest.mark.timeout(120)
def test_relay_on_a_full_disk_serves_from_memory_and_writes_again_when_there_is_room(
    run, tmp_path, disk
):
    (tmp_path / "relay.toml").write_text(
        f'[disk]\ndirectory = "{disk}"\nretry_interval = "1s"\n'
        '[listen]\nport = 0\n[admin]\nport = 0\n[tls]\ndevelopment_directory = "certificate"\n'
    )
    relay = (*KVCS, "relay", "run", "--config", tmp_path / "relay.toml", "--json")
    with child_process(on_small_disk(disk, *relay)) as running:
        shown = first_line(running)

        def exchange(scope):
            """Publish the sample, take it, and return what is said of that."""
            (tmp_path / scope).write_text(scope * 64)
            member = ("--ca", shown["ca"], "--scope-key-file", tmp_path / scope)
            publish = ("publish", SAMPLE_CACHE, "--url", shown["url"], *member, "--push", "--json")
            with process(*publish) as publisher:
                first_line(publisher)
                code, out, err = run(
                    "fetch", shown["url"], "--like", SAMPLE_CACHE, *member, "--json"
                )
                assert code == 0, err
                return json.loads(out)

        def statistics():
            return status_at(shown["admin"])["statistics"]

        first = exchange("5")
        full = until(lambda: (told := statistics())["disk_failures"] and told)
        again = exchange("6")
        enlarge(running, disk)
        # What the second one had failed to write may have been refused a moment ago.
        until(lambda: statistics()["disk_writable"])
        third = exchange("7")
        written = until(
            lambda: (told := statistics())["disk_complete_tracks"] >= 3 and told["disk_writable"]
        )
        code, _, _ = end(running)

    assert [taken["complete"] for taken in (first, again, third)] == [True] * 3
    assert set(full["disk_failures"]) == {"full"}
    assert full["disk_objects_dropped"]["failed"]
    assert written
    assert code == 0
