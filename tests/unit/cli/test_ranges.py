import pytest

from kvcs.cli._ranges import format_layers, parse_layers
from kvcs.kv.descriptor import MAX_LAYERS


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("0-14", tuple(range(15))),
        ("3", (3,)),
        ("0-1,8", (0, 1, 8)),
        ("8, 0-1, 1", (0, 1, 8)),
    ],
)
def test_layer_ranges_are_inclusive(text, layers):
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "3-1", "a", "-1", "0-", str(MAX_LAYERS), "0-99999", "1;2"])
def test_layer_ranges_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_layers(text)


@pytest.mark.parametrize("text", ["0-14", "3", "0-1,8", "0,2,4-6"])
def test_layers_are_written_as_they_are_read(text):
    assert format_layers(parse_layers(text)) == text
