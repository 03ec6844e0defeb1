"""Which names a publisher gives its publications."""

from itertools import count, cycle

import pytest

from kvcs.client import Publisher
from kvcs.client.publisher import MAX_REMEMBERED_IDS
from kvcs.errors import ConfigError
from kvcs.kv import Descriptor, Dtype, ScopeKey

DESCRIPTOR = Descriptor(
    layers=2,
    block_tokens=4,
    dtype=Dtype.FLOAT16,
    position="rope-applied",
    weights_sha256="11" * 32,
    tokenizer_sha256="22" * 32,
    kv_heads=2,
    head_dim=8,
)


def publisher_of(numbers):
    return Publisher(
        scope_key=ScopeKey(bytes(32)),
        descriptor=DESCRIPTOR,
        random_bytes=lambda size: next(numbers).to_bytes(size),
    )


@pytest.mark.parametrize("anchor", [bytes(32), b"other anchor".ljust(32)], ids=["same", "other"])
def test_a_publication_id_that_comes_again_is_refused(anchor):
    publisher = publisher_of(cycle([1, 2]))
    names = [publisher.name_of(bytes(32)) for _ in range(2)]

    with pytest.raises(ConfigError, match="Publication ID that this publisher has not used") as no:
        publisher.name_of(anchor)

    assert no.value.key == "random_bytes"
    assert [name.publication_id[-1] for name in names] == [1, 2]


def test_publication_ids_are_remembered_up_to_a_number():
    publisher = publisher_of(count())

    for _ in range(MAX_REMEMBERED_IDS + 5):
        publisher.name_of(bytes(32))

    assert len(publisher._used_ids) == MAX_REMEMBERED_IDS
