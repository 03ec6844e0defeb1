"""The index in a file: what is written is found, and what is no index is refused."""

import asyncio
import json
import stat

import pytest

from kvcs.cli import _index
from kvcs.cli._index import FileIndex, add_to_index
from kvcs.errors import ConfigError, DataError, FileFailed
from kvcs.kv import PublicationName


def keys(*fills):
    return tuple(bytes([fill]) * 32 for fill in fills)


def name(anchor, publication_id=1):
    return PublicationName(
        scope_id=bytes(16),
        compatibility_id=bytes(32),
        anchor_key=anchor,
        publication_id=bytes([publication_id]) * 16,
    )


def look_up(path, block_keys):
    found = asyncio.run(FileIndex(path).look_up(block_keys))
    return [(entry.name.publication_id[0], entry.blocks) for entry in found]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "index"
    add_to_index(path, name(keys(3)[0], 1), keys(1, 2, 3))
    add_to_index(path, name(keys(9)[0], 2), keys(1, 9))
    add_to_index(path, name(keys(5)[0], 3), keys(5))
    return path


def test_publications_are_found_by_what_they_begin_with_newest_first(path):
    assert look_up(path, keys(1, 2, 3, 4)) == [(2, 1), (1, 3)]
    assert look_up(path, keys(1, 2)) == [(2, 1), (1, 2)]
    assert look_up(path, keys(5, 6)) == [(3, 1)]
    assert look_up(path, keys(7)) == []
    assert look_up(path, ()) == []


def test_file_is_its_owners_and_has_a_line_each(path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.keys() for line in lines] == [{"namespace", "block_keys"}] * 3


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace("namespace", "name"),
        lambda line: line.replace("0303", "0304"),
        lambda line: line[:-2],
        lambda line: line.partition(",")[0] + ',"block_keys":[]}',
        lambda line: line.replace('["', '["zz'),
        lambda line: line.replace('["', '[1,"'),
    ],
)
def test_line_that_is_none_is_named(path, change):
    lines = path.read_text().splitlines()
    lines[0] = change(lines[0])
    path.write_text("\n".join(lines))

    with pytest.raises(DataError, match="line 1: "):
        look_up(path, keys(1))


def test_file_beyond_the_limit_or_not_there_is_refused(path, tmp_path, monkeypatch):
    with pytest.raises(FileFailed, match="No such file"):
        look_up(tmp_path / "nothing", keys(1))
    monkeypatch.setattr(_index, "MAX_INDEX_BYTES", 100)
    with pytest.raises(FileFailed, match="more than 100 octets"):
        look_up(path, keys(1))


def test_index_that_cannot_be_written_is_a_setting_at_fault(tmp_path):
    with pytest.raises(ConfigError, match="--index"):
        add_to_index(tmp_path / "no" / "index", name(keys(1)[0]), keys(1))
    with pytest.raises(ConfigError, match="65536 blocks"):
        add_to_index(tmp_path / "index", name(keys(1)[0]), keys(1) * 65537)
