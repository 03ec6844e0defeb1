"""Tell whether the relay of this container is alive: exit code 0 when /healthz says so.

python healthcheck.py [URL]
"""

import sys
import urllib.request

URL = "http://127.0.0.1:4434/healthz"
TIMEOUT = 2.0


def is_alive(url: str) -> bool:
    """Ask; any failure to answer is an answer too."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            return response.status == 200
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(0 if is_alive(*sys.argv[1:2] or [URL]) else 1)
