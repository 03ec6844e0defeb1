"""The registry of codecs, and codec raw."""

import pytest

from kvcs.errors import UnsupportedEncoding
from kvcs.kv import CODECS, RAW, Component, codec, codec_by_number


def test_raw_is_number_one_and_keeps_every_octet():
    assert codec("raw") is codec_by_number(1) is RAW
    assert (RAW.name, RAW.number, RAW.lossy) == ("raw", 1, False)


def test_every_codec_is_found_by_its_name_and_its_number():
    for name, known in CODECS.items():
        assert known.name == name
        assert codec_by_number(known.number) is known


@pytest.mark.parametrize("component", Component)
def test_raw_data_is_the_block_itself(component, layout):
    block = memoryview(bytes(layout.data_bytes(component, 0)))

    data = RAW.encode(block, layout, component=component, layer_index=0)

    assert data is block
    assert RAW.decode(data, layout, component=component, layer_index=0) is block
    assert RAW.data_bytes(layout, component, 0) == block.nbytes


@pytest.mark.parametrize("name", ["", "RAW", "zstd", "x" * 1000])
def test_an_unknown_name_is_unsupported(name):
    with pytest.raises(UnsupportedEncoding, match="is not known here") as caught:
        codec(name)

    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("number", [0, 2, 65535])
def test_an_unknown_number_is_unsupported(number):
    with pytest.raises(UnsupportedEncoding, match=f"codec number {number} is not known here"):
        codec_by_number(number)
