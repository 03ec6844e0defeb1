"""Publications that are refused at their manifest are counted by a word."""

from collections import Counter

import pytest

from kvcs.client.refused import counting
from kvcs.errors import (
    ConfigError,
    IntegrityError,
    KeyMismatch,
    KeyMissing,
    LayoutMismatch,
    ManifestError,
    NotAuthentic,
    RequestRejected,
    UnsupportedEncoding,
)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (NotAuthentic("signature", "no trusted key made this message"), "signature"),
        (IntegrityError("seal", "broken"), "seal"),
        (KeyMissing(7), "unknown_key"),
        (KeyMismatch("another model"), "mismatch"),
        (UnsupportedEncoding("another format"), "unsupported"),
        (ManifestError("not JSON"), "manifest"),
    ],
)
def test_a_refusal_is_counted_by_its_word_and_raised(error, word):
    refused = Counter()

    for _ in range(2):
        with pytest.raises(type(error)), counting(refused):
            raise error

    assert refused == {word: 2}


@pytest.mark.parametrize(
    "error",
    [
        LayoutMismatch("the caller's memory is too small"),
        ConfigError("max_memory_bytes", "more"),
        RequestRejected(16, "not here"),
        TimeoutError(),
    ],
)
def test_what_is_not_the_manifests_fault_is_not_counted(error):
    refused = Counter()

    with pytest.raises(type(error)), counting(refused):
        raise error

    assert refused == {}
