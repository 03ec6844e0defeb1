"""Publications that a consumer refuses at their manifest, counted by reason.

What is wrong with an Object is counted by the retrieval that it came to
(`kvcs.client.verdict.Counters`). A publication whose manifest cannot be used has no retrieval, and
no verdict: its error is all that the caller sees, and for one candidate among several not even
that. So the consumer counts.

Source:
    KVCS, "Manifest Track" and "Security Considerations".
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from kvcs.errors import (
    DataError,
    KeyMismatch,
    KeyMissing,
    LayoutMismatch,
    RefusedData,
    UnsupportedEncoding,
)
from kvcs.kv.sealing import SealReason

__all__ = ("counting", "refusal_reason")

_REASONS: Final[dict[type[DataError], str]] = {
    KeyMissing: SealReason.UNKNOWN_KEY.value,
    KeyMismatch: "mismatch",
    UnsupportedEncoding: "unsupported",
}


def refusal_reason(error: DataError) -> str:
    """Return a short fixed word for why a manifest is not used.

    That of the error where it has one; else ``mismatch`` (of another scope, model or prompt),
    ``unsupported``, ``unknown_key`` (sealed with a key that is not held), or ``manifest``: it
    cannot be read, contradicts itself, or did not come.
    """
    if isinstance(error, RefusedData):
        return error.reason
    return _REASONS.get(type(error), "manifest")


@contextmanager
def counting(refused: Counter[str]) -> Generator[None]:
    """Count a publication that is refused inside the block; the error goes on to the caller."""
    try:
        yield
    except LayoutMismatch:
        # The memory is the caller's: that it does not fit is not the publication's fault.
        raise
    except DataError as error:
        refused[refusal_reason(error)] += 1
        raise
