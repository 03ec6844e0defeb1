"""The files of the status page: self-contained, safe, and readable in both colour schemes."""

import re
from importlib import resources

import pytest

PAGE = resources.files("kvcs.admin") / "page"
FILES = {file.name: file.read_text(encoding="utf-8") for file in PAGE.iterdir()}
STYLE = FILES["status.css"]
# What is written on what.
PAIRS = [
    ("--text", "--ground"),
    ("--text", "--surface"),
    ("--quiet", "--ground"),
    ("--quiet", "--surface"),
    ("--accent", "--ground"),
    ("--accent", "--surface"),
    ("--text", "--none"),
    ("--good", "--good-ground"),
    ("--bad", "--bad-ground"),
    ("--wait", "--wait-ground"),
]


def colours(scheme):
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    found = dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", light))
    return found if scheme == "light" else found | dict(re.findall(r"(--[\w-]+): (#\w{6})", dark))


def luminance(colour):
    """Relative luminance (WCAG 2)."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_can_be_read(scheme, text, ground):
    named = colours(scheme)

    assert contrast(named[text], named[ground]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_states_of_a_picture_differ_in_brightness_too(scheme):
    named = colours(scheme)

    assert contrast(named["--held"], named["--none"]) >= 3
    assert contrast(named["--held"], named["--some"]) >= 1.5
    assert contrast(named["--disk"], named["--none"]) >= 3
    assert contrast(named["--lost"], named["--none"]) >= 2


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_loaded_from_elsewhere(name):
    addresses = set(re.findall(r"https?://[^\s\"')]+", FILES[name]))

    assert addresses <= {"http://www.w3.org/2000/svg"}  # the name of a namespace, never loaded
    assert "@import" not in FILES[name]


def test_text_is_never_made_into_markup():
    script = FILES["status.js"]

    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in script


def test_markup_has_no_code_and_no_style_of_its_own():
    # The policy that goes with every answer would stop them.
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|style=|<style", FILES["index.html"])


def test_elements_that_the_script_looks_for_are_there():
    wanted = set(re.findall(r'byId\("([\w-]+)"\)', FILES["status.js"]))
    there = set(re.findall(r'id="([\w-]+)"', FILES["index.html"]))

    assert wanted
    assert wanted <= there


def test_page_is_small():
    assert sum(map(len, FILES.values())) < 64 * 1024
