import pytest

from kvcs.cli._units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("8GiB", 8 * 2**30),
        ("8 gib", 8 * 2**30),
        ("500MB", 500_000_000),
        ("1.5KiB", 1536),
        ("0.1MB", 100_000),
        ("0", 0),
    ],
)
def test_size_with_unit_is_bytes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("250ms", 0.25), ("2h", 7200), ("1.5m", 90), ("30", 30), ("1d", 86400)],
)
def test_duration_with_unit_is_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "fast", "-1s", "1e9", "8 giraffes", "1.s", "1" * 19, "٣s"])
@pytest.mark.parametrize("parse", [parse_size, parse_duration])
def test_quantity_that_is_none_is_refused(parse, text):
    with pytest.raises(ValueError, match="expected"):
        parse(text)
