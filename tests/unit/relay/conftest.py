import pytest
from tests.unit.relay.world import World


@pytest.fixture
def make_world():
    return World


@pytest.fixture
def world():
    return World()
