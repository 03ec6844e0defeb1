"""What every test has: no keys of the person who runs them."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def nobodys_keys(tmp_path_factory):
    """Hide the key ring of whoever runs the tests, also from the processes that tests start."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    for name in ("KVCS_KEYS", "KVCS_KEYS_JSON"):
        if name in os.environ:
            patch.delenv(name)
    yield
    patch.undo()
