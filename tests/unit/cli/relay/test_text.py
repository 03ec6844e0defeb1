"""Printed settings are settings."""

import tomllib
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcs.cli.relay.reader import parse
from kvcs.cli.relay.schema import Duration, Settings, Size, changed, is_table, keys
from kvcs.cli.relay.text import format_settings, format_value

HERE = Path("/etc/kvcs")


def tables(kind=Settings, path=()):
    yield path, kind
    for key in keys(kind):
        if is_table(key.type):
            yield from tables(key.type, (*path, key.name))


def test_printed_defaults_are_the_defaults():
    text = format_settings(Settings())

    assert parse(text, directory=HERE) == Settings()
    assert "default:" not in text


def test_every_key_is_printed_with_what_it_means():
    text = format_settings(Settings())
    printed = tomllib.loads(text)
    prose = " ".join(text.replace("\n# ", " ").split())

    for path, kind in tables():
        table = printed
        for name in path:
            table = table[name]
        for key in keys(kind):
            assert key.text
            assert key.text in prose
            assert key.name in table or f"# {key.name} is not set" in text


def test_lines_stay_readable():
    assert max(map(len, format_settings(Settings()).splitlines())) <= 100


def test_value_that_is_not_the_default_says_what_is():
    settings = Settings()
    settings = msgspec.structs.replace(
        settings,
        listen=msgspec.structs.replace(settings.listen, port=1),
        tls=msgspec.structs.replace(settings.tls, certificate=Path("/x.pem")),
    )

    text = format_settings(settings)

    assert "port = 1  # default: 4433" in text
    assert 'certificate = "/x.pem"  # default: not set' in text


@given(st.integers(0, 2**50))
def test_size_is_read_as_it_was_printed(size):
    text = f"[cache]\nmemory_bytes = {format_value(Size, size)}"

    assert parse(text, directory=HERE).cache.memory_bytes == size


@given(st.integers(0, 10**12).map(lambda micros: micros / 10**6))
def test_duration_is_read_as_it_was_printed(duration):
    text = f"[limits]\nlive_wait = {format_value(Duration, duration)}"

    assert parse(text, directory=HERE).limits.live_wait == duration


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_text_is_read_as_it_was_printed(text):
    shown = f"upstream = {format_value(tuple[str, ...], (text, text))}"

    assert parse(shown, directory=HERE).upstream == (text, text)


LIMITS = [path for path, kind in tables() if not issubclass(kind, msgspec.Struct)]


@pytest.mark.parametrize("path", LIMITS, ids=".".join)
def test_every_limit_is_read_as_it_was_printed(path):
    tables = [Settings()]
    for name in path:
        tables.append(getattr(tables[-1], name))
    # A little more than the default: still in its range, and different from every other value.
    values = {
        field.name: getattr(tables[-1], field.name) + index
        for index, field in enumerate(fields(tables[-1]), start=1)
        if type(getattr(tables[-1], field.name)) in {int, float}
    }
    settings = changed(tables.pop(), **values)
    for name, table in zip(reversed(path), reversed(tables), strict=True):
        settings = changed(table, **{name: settings})

    assert settings != Settings()
    assert parse(format_settings(settings), directory=HERE) == settings
