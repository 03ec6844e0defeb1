"""Digests of weights and tokenizers: a public formula, not an implementation detail."""

from hashlib import sha256

import pytest

from kvcs.engines.digest import Parameter, tokenizer_sha256, weights_sha256

A = Parameter("a", "float32", (2,), b"\1\2\3\4\5\6\7\10")
B = Parameter("b", "bfloat16", (1, 2), b"\1\2\3\4")


def test_weights_digest_follows_the_formula():
    expected = sha256(
        b"a\0float32\0" + b"2\0" + sha256(A.data).digest()
        + b"b\0bfloat16\0" + b"1,2\0" + sha256(B.data).digest()
    ).hexdigest()  # fmt: skip

    assert weights_sha256([A, B]) == expected


@pytest.mark.parametrize(
    "changed",
    [
        A._replace(name="aa"),
        A._replace(dtype="float16"),
        A._replace(shape=(1, 2)),
        A._replace(data=b"\1\2\3\4\5\6\7\11"),
    ],
)
def test_weights_digest_covers_name_dtype_shape_and_data(changed):
    assert weights_sha256([changed, B]) != weights_sha256([A, B])


@pytest.mark.parametrize("parameters", [[B, A], [A, A]])
def test_weights_digest_refuses_another_order(parameters):
    with pytest.raises(ValueError, match="comes after"):
        weights_sha256(parameters)


def test_tokenizer_digest_ignores_white_space_and_order_of_members():
    assert tokenizer_sha256('{"a": 1, "b": "\\u00e9"}') == tokenizer_sha256('{"b":"é","a":1}')


def test_tokenizer_digest_sees_a_change():
    assert tokenizer_sha256('{"vocab": {"a": 1}}') != tokenizer_sha256('{"vocab": {"a": 2}}')
