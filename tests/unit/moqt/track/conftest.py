import pytest
from tests.unit.moqt.track.pair import Site


@pytest.fixture
def new_site():
    return Site
