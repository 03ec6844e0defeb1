import shutil
import tempfile
from pathlib import Path

import pytest

from kvcs.moqt.codepoints import ObjectStatus
from kvcs.moqt.track.knowledge import Knowledge
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.properties import EMPTY_PROPERTIES, Properties
from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.disk.operation import TrackWrite
from kvcs.relay.disk.store import DiskStore

TRACK = FullTrackName(TrackNamespace((b"kvcs-1", b"scope")), b"k")
KNOWS_NOTHING = Knowledge(properties=EMPTY_PROPERTIES)
ALL = 2**128 - 1


@pytest.fixture
def tmp_path(tmp_path):
    """A directory in memory, if the system has one: no test here is about a loss of power."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or shutil.disk_usage(memory).free < 2**28:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


@pytest.fixture
def make_object():
    def make(group_id, object_id, size=1000, *, status=ObjectStatus.NORMAL, subgroup_id=0):
        is_data = status is ObjectStatus.NORMAL
        return Object(
            group_id=group_id,
            object_id=object_id,
            subgroup_id=subgroup_id,
            publisher_priority=group_id % 256,
            status=status,
            properties=Properties.of((0x78, object_id)) if is_data else EMPTY_PROPERTIES,
            payload=bytes([group_id % 256, object_id % 256]) * (size // 2) if is_data else b"",
        )

    return make


@pytest.fixture
def make_write():
    def make(*objects, name=TRACK, received=1000.0, lifetime=None, **changes):
        settings = {
            "name": name,
            "objects": tuple((obj, received) for obj in objects),
            "knowledge": KNOWS_NOTHING,
            "lifetime": lifetime,
            "complete": False,
            "used": received,
        }
        return TrackWrite(**settings | changes)

    return make


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def open_store(directory):
    """Open the directory, after whoever had it open let go of it and `change` was made."""
    opened = []

    def make(change=None):
        while opened:
            opened.pop().close()
        if change is not None:
            change()
        opened.append(DiskStore(directory))
        return opened[-1]

    yield make
    while opened:
        opened.pop().close()
