import importlib
import subprocess
import sys
from importlib import metadata

import pytest

import kvcs

PACKAGES = (
    "kvcs",
    "kvcs.client",
    "kvcs.endpoint",
    "kvcs.kv",
    "kvcs.moqt",
    "kvcs.moqt.session",
    "kvcs.moqt.track",
    "kvcs.moqt.wire",
    "kvcs.relay",
    "kvcs.testing",
    "kvcs.transport",
)
PUBLIC = [
    (package, name) for package in PACKAGES for name in importlib.import_module(package).__all__
]
# What a program that uses less than everything must not pay for.
HEAVY = ("aiopquic", "asyncio", "numpy", "torch", "cryptography")


def loaded_by(statement: str) -> set[str]:
    """Return the names of the modules that a fresh interpreter has after `statement`."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{statement}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_public_name_is_loaded_on_first_use(package, name):
    module = importlib.import_module(package)

    assert getattr(module, name) is not None
    assert name in dir(module)


@pytest.mark.parametrize("package", ["kvcs", "kvcs.endpoint", "kvcs.moqt"])
def test_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"{package}' has no attribute 'nonsense'"):
        _ = importlib.import_module(package).nonsense


def test_the_version_is_the_one_of_the_package():
    assert kvcs.__version__ == metadata.version("kvcs")
    assert "__version__" in dir(kvcs)


def test_import_loads_no_layer():
    loaded = loaded_by("import kvcs")

    assert not [name for name in loaded if name.startswith("kvcs.")]
    assert not loaded.intersection(HEAVY)


@pytest.mark.parametrize("package", ["kvcs.moqt", "kvcs.moqt.track", "kvcs.endpoint"])
def test_pure_packages_load_nothing_heavy(package):
    assert not loaded_by(f"import {package}").intersection(HEAVY)


def test_the_data_model_loads_nothing_heavy_but_what_signs_and_seals():
    assert loaded_by("import kvcs.kv").intersection(HEAVY) == {"cryptography"}


@pytest.mark.parametrize("package", ["kvcs.client", "kvcs.testing"])
def test_client_and_fake_network_load_no_transport_library(package):
    assert not loaded_by(f"import {package}").intersection({"aiopquic", "numpy", "torch"})


def test_import_adds_little_to_the_interpreter():
    bare, ours = len(loaded_by("import typing")), len(loaded_by("import kvcs"))

    assert ours <= bare + 1


@pytest.mark.parametrize("name", kvcs.__all__)
def test_public_name_is_the_one_of_its_package(name):
    value = getattr(kvcs, name)
    home = importlib.import_module(value.__module__)

    assert getattr(home, name) is value
