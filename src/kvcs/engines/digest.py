"""Digests of weights and tokenizers for the Compatibility Descriptor.

Names of models are not identities: two models that are served under one name must never
share a cache, and one model under two names should.
"""

import json
from collections.abc import Buffer, Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

__all__ = ("Parameter", "tokenizer_sha256", "weights_sha256")


class Parameter(NamedTuple):
    """One tensor of a model.

    Attributes:
        name: Name in the model, for example ``model.norm.weight``.
        dtype: Element type, for example ``float32``.
        shape: Extents.
        data: The elements in C order, little-endian.
    """

    name: str
    dtype: str
    shape: Sequence[int]
    data: Buffer


def weights_sha256(parameters: Iterable[Parameter]) -> str:
    """Digest the parameters of a model, in the order of their names.

    Each contributes ``name NUL dtype NUL shape NUL SHA-256(data)``, with the shape as
    decimal extents joined by commas. Only one tensor at a time needs to be in memory, so
    `parameters` must come sorted by name.

    Raises:
        ValueError: A name is out of order or repeated.
    """
    digest = sha256()
    previous = ""
    for name, dtype, shape, data in parameters:
        if name <= previous:
            raise ValueError(f"parameter {name!r} comes after {previous!r}")
        previous = name
        extents = ",".join(map(str, shape))
        digest.update(b"\0".join((name.encode(), dtype.encode(), extents.encode(), b"")))
        digest.update(sha256(data).digest())
    return digest.hexdigest()


def tokenizer_sha256(tokenizer_json: str) -> str:
    """Digest the meaning of a ``tokenizer.json``, whatever its white space and member order."""
    canonical = json.dumps(
        json.loads(tokenizer_json), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return sha256(canonical.encode()).hexdigest()
