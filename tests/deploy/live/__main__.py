"""The deployment as it is used: ``python -m tests.deploy.live systemd``, or ``container``.

Run by hand, as root, on a machine that can make a Debian with debootstrap and has a way to PyPI:

* ``systemd`` boots it with systemd-nspawn, the relay installed as the how-to says;
* ``container`` builds the image with Podman and runs it with the how-to's flags. ``--local-base``
  makes the base image from that Debian and this Python, where no registry can be reached.

Prints a line for each thing that was seen, and ends with 1 at the first that was not.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.deploy.live import container, systemd
from tests.deploy.live.machine import NotSeen


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.deploy.live", description=__doc__)
    parser.add_argument("what", choices=("systemd", "container"))
    parser.add_argument("--local-base", action="store_true", help="make the base image")
    parser.add_argument("--runtime", default="runc", help="the container runtime for Podman")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvcs-live-") as name:
        place = Path(name)
        place.chmod(0o755)
        try:
            if arguments.what == "systemd":
                systemd.check(place)
            else:
                container.check(place, arguments.runtime, has_registry=not arguments.local_base)
        except NotSeen as error:
            sys.exit(f"not so: {error}")


if __name__ == "__main__":
    main()
