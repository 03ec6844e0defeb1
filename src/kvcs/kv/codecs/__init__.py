"""Codecs: how the tensor of a block becomes Data.

A new codec is one module beside this one and one line in `CODECS`.

Source: KVCS draft, "Track Names" (registry "KVSP Codecs").
"""

from collections.abc import Mapping
from typing import Final

from kvcs.errors import UnsupportedEncoding
from kvcs.kv.codecs.codec import Codec
from kvcs.kv.codecs.raw import RAW

__all__ = ("CODECS", "RAW", "Codec", "codec", "codec_by_number")

CODECS: Final[Mapping[str, Codec]] = {known.name: known for known in (RAW,)}

_BY_NUMBER: Final = {known.number: known for known in CODECS.values()}


def codec(name: str) -> Codec:
    """Return the codec called `name` in Track Names.

    Raises:
        UnsupportedEncoding: This build does not know it.
    """
    if name not in CODECS:
        raise UnsupportedEncoding(f"codec {name[:32]!r} is not known here")
    return CODECS[name]


def codec_by_number(number: int) -> Codec:
    """Return the codec with the value `number` in payload headers.

    Raises:
        UnsupportedEncoding: This build does not know it.
    """
    if number not in _BY_NUMBER:
        raise UnsupportedEncoding(f"codec number {number} is not known here")
    return _BY_NUMBER[number]
