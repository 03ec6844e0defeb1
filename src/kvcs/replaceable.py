"""Which file a new one may take the place of.

Files are written beside their place and then renamed, so that nobody finds half of one. A rename
replaces whatever is there: a link that was to be followed, a pipe that somebody reads, a device.
"""

import errno
import os
import stat
from pathlib import Path

__all__ = ("replaceable",)


def replaceable(path: Path) -> Path:
    """Return the place of the regular file that `path` names or is to name, behind all links.

    Raises:
        OSError: Something else than a regular file is there, or the system does not follow
            its links.
    """
    try:
        # The system follows, with its own rules about whose links may be.
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "what is there is no file that could be replaced")
    return Path(os.path.realpath(path)) if path.is_symlink() else path
