"""Codecs: how the tensor of a block becomes Data.

A new codec is one module beside this one and one line in `CODECS`. None compresses yet, so Data is
as long as the tensor and nothing grows while it is read. One that does must be given the octets
that the layout has for the block and give exactly so many, stop decoding at the first one beyond,
bound what its own tables take, and stay outside the event loop: the length inside the compressed
Data is the word of whoever sent it, also where its digest fits.

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
