import os

import pytest

from kvcs.engines.file import SAMPLE_CACHE, load_cache, save_cache
from kvcs.errors import ConfigError, FileFailed
from kvcs.keyring.files import write_file
from kvcs.replaceable import replaceable


def test_links_lead_to_what_is_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to("middle")
    (tmp_path / "middle").symlink_to(target)

    assert replaceable(link) == target
    target.touch()
    assert replaceable(link) == target
    assert replaceable(tmp_path / "new") == tmp_path / "new"


def made(path, kind):
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/null")
        case "circle":
            path.symlink_to(path)
    return path


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "circle"])
def test_nothing_else_is_replaced(tmp_path, kind):
    path = made(tmp_path / "here", kind)
    before = path.lstat()

    with pytest.raises(
        OSError, match="symbolic links" if kind == "circle" else "could be replaced"
    ):
        replaceable(path)
    with pytest.raises(FileFailed, match="cannot be written"):
        save_cache(path, load_cache(SAMPLE_CACHE))
    with pytest.raises(ConfigError, match="can be written"):
        write_file(path, b"secret")

    assert path.lstat() == before
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_gets_the_content(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)

    write_file(link, b"new")

    assert (link.is_symlink(), target.read_bytes()) == (True, b"new")
