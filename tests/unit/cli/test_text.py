"""Text of peers and files, as it is shown."""

import pytest

from kvcs.cli._text import format_kid


@pytest.mark.parametrize(
    ("kid", "shown"),
    [
        (None, None),
        (b"site-a", "site-a"),
        ("schl\u00fcssel".encode(), "schl\u00fcssel"),
        (b"a\x1b[2Jb\n", "a\\x1b[2Jb\\n"),
        (b"\xff\x00", "ff00"),
    ],
)
def test_a_key_identifier_is_shown_as_the_ring_names_it(kid, shown):
    assert format_kid(kid) == shown
