"""The search behind ``kvcs demo --secure`` finds what is there, in any form and anywhere."""

import base64

import pytest

from kvcs.cli.demo import search as module
from kvcs.cli.demo.search import forms, search

NEEDLE = bytes(range(100, 132))


@pytest.mark.parametrize(
    "text",
    [
        NEEDLE,
        NEEDLE.hex().encode(),
        NEEDLE.hex().upper().encode(),
        *(base64.b64encode(b"x" * count + NEEDLE + b"y" * count) for count in range(4)),
        *(base64.urlsafe_b64encode(b"x" * count + NEEDLE) for count in range(4)),
    ],
)
@pytest.mark.parametrize("offset", [0, 1, 990, 999, 1000])
def test_octets_are_found_in_every_form_across_parts(tmp_path, monkeypatch, text, offset):
    monkeypatch.setattr(module, "_PART_BYTES", 1000)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(bytes(offset) + text + bytes(2000))
    (tmp_path / "other").write_bytes(b"nothing")

    findings = search(tmp_path, {"it": forms(NEEDLE), "not": forms(NEEDLE[::-1])})

    assert findings.found == {"it"}
    assert findings.files == 2
    assert findings.size_bytes == offset + len(text) + 2000 + 7


def test_what_is_not_there_is_not_found(tmp_path):
    (tmp_path / "file").write_bytes(NEEDLE[:31] + b"x")

    assert search(tmp_path, {"it": forms(NEEDLE)}).found == set()
    assert search(tmp_path / "nowhere", {"it": forms(NEEDLE)}).files == 0
