from pathlib import Path

import pytest

from kvcs.errors import ConfigError
from kvcs.relay.disk.config import DiskConfig


def test_capacity_below_the_least_is_refused_with_its_name():
    with pytest.raises(ConfigError, match=r"disk\.capacity_bytes.*67108864.*1000"):
        DiskConfig(directory=Path("cache"), capacity_bytes=1000)


@pytest.mark.parametrize("name", ["max_tracks", "queue_bytes", "read_ahead_bytes"])
def test_size_of_nothing_is_refused_with_its_name(name):
    with pytest.raises(ConfigError, match=rf"disk\.{name}.*more than 0"):
        DiskConfig(directory=Path("cache"), **{name: 0})
