import subprocess
import sys

import pytest

import kvcs


@pytest.mark.parametrize("name", kvcs.__all__)
def test_public_name_is_loaded_on_first_use(name):
    assert getattr(kvcs, name) is not None
    assert name in dir(kvcs)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = kvcs.nonsense


def test_import_loads_no_layer():
    code = (
        "import sys, kvcs; "
        "print([m for m in sys.modules if m.startswith('kvcs.') or m in ('asyncio', 'numpy')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
