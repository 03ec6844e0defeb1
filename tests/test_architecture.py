"""What the layout promises: file budget, exports, docstrings, no print (imports: import-linter)."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import kvcs

SOURCE = Path(kvcs.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MAX_LINES = 600
MAX_FUNCTION_LINES = 60
BANNED_NAMES = {"utils", "helpers", "common", "misc", "base"}
OPTIONAL = {"numpy", "torch", "transformers", "gguf", "tokenizers", "uvloop"}


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def module_names() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(kvcs.__path__, "kvcs.")]
    return ["kvcs", *(name for name in found if not name.endswith("__main__"))]


def load(name: str):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in OPTIONAL:
            pytest.skip(f"{error.name} is not installed")
        raise


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_file_keeps_the_budget(path):
    tree = ast.parse(path.read_text())
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    assert len(path.read_text().splitlines()) <= MAX_LINES
    assert path.stem not in BANNED_NAMES
    for node in functions:
        first = node.body[1] if len(node.body) > 1 and ast.get_docstring(node) else node.body[0]
        assert (node.end_lineno or 0) - first.lineno < MAX_FUNCTION_LINES, node.name


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_only_the_command_line_prints(path):
    calls = [
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]

    assert "print" not in calls or relative(path).startswith("cli/")


@pytest.mark.parametrize("name", module_names())
def test_public_names_exist_and_are_documented(name):
    module = load(name)
    exported = getattr(module, "__all__", ())

    assert module.__doc__, f"{name} has no docstring"
    assert isinstance(exported, tuple)
    assert len(set(exported)) == len(exported)
    for item in exported:
        value = getattr(module, item)
        if callable(value) and getattr(value, "__module__", "").startswith("kvcs"):
            assert value.__doc__, f"{name}.{item} has no docstring"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_every_public_module_declares_its_exports(path):
    tree = ast.parse(path.read_text())
    public = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    ]
    declared = any(
        isinstance(node, ast.Assign | ast.AnnAssign)
        and "__all__" in ast.unparse(node).partition("=")[0]
        for node in tree.body
    )

    assert declared or not public or path.stem.startswith("_")
