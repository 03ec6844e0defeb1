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
        OSError: Something else than a regular file is there, or links lead in a circle.
    """
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return path
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "links that lead in a circle")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "what is there is no file that could be replaced")
    return path
