"""Processes that do not outlive the test that started them."""

import json
import subprocess
from contextlib import contextmanager

__all__ = ("child_process", "first_line")


@contextmanager
def child_process(command, env, cwd=None):
    """Run a command beside the block, with its output in pipes; kill it at the end."""
    child = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=cwd,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def first_line(child):
    """Return the JSON of the first line that a process prints."""
    line = child.stdout.readline()
    assert line, child.stderr.read()
    return json.loads(line)
