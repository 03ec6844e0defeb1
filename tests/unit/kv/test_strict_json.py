"""Strict, bounded reading of JSON, and its canonical form."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcs.kv import strict_json
from kvcs.kv.strict_json import (
    MAX_SAFE_INTEGER,
    JsonLimits,
    Members,
    canonical_json,
    decode_json,
    encode_json,
)

LIMITS = JsonLimits(max_bytes=10_000, max_depth=3, max_values=100)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a":[1,true,null,"x"]}', {"a": [1, True, None, "x"]}),
        (b" [ -0 , 9007199254740991 ] ", [0, MAX_SAFE_INTEGER]),
        ('"\u20ac \\ud83d\\ude00"'.encode(), "\u20ac \U0001f600"),
        (b"[[[]]]", [[[]]]),
        (b'[{"a":[]}]', [{"a": []}]),
        (rb'["[[[[", "\"[[[[", "\\"]', ["[[[[", '"[[[[', "\\"]),
    ],
)
def test_decode_json_accepts_the_strict_subset(text, value):
    assert decode_json(text, LIMITS) == value
    assert decode_json(memoryview(text), LIMITS) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":1,"a":1}', "names a member twice"),
        (b'{"a":1,"\\u0061":2}', "names a member twice"),
        (b'[{"b":{"a":1,"a":2}}]', "names a member twice"),
        (b"[1.0]", "not an integer"),
        (b"[1e3]", "not an integer"),
        (b"[-1E400]", "not an integer"),
        (b"[NaN]", "not an integer"),
        (b"[Infinity]", "not an integer"),
        (b"[-Infinity]", "not an integer"),
        (b"[9007199254740992]", "beyond"),
        (b"[-9007199254740992]", "beyond"),
        (b"[" + b"1" * 9000 + b"]", "beyond"),
        (b'["\\ud800"]', "surrogate"),
        (b'["\\udc00\\ud800"]', "surrogate"),
        (b'{"\\uDFFF":1}', "surrogate"),
        (b'["\xed\xa0\x80"]', "utf-8"),
        (b'["\xff"]', "utf-8"),
        ("[1]".encode("utf-16"), "utf-8"),
        (b"\xef\xbb\xbf[1]", "Expecting value"),
        (b"", "Expecting value"),
        (b"[1] 2", "Extra data"),
        (b"[1,]", "value"),
        (b"{'a':1}", "property name"),
        (b'"\n"', "control character"),
        (b'["unterminated', "do not match"),
        (b'"unterminated\\', "Unterminated"),
        (b"[01]", "delimiter"),
    ],
)
def test_decode_json_refuses_everything_else(text, reason):
    with pytest.raises(ValueError, match=reason):
        decode_json(text, LIMITS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b" " * 10_001, "10001 octets of JSON, at most 10000"),
        (b"[[[[]]]]", "deeper than 3"),
        (b'{"a":[{"b":[]}]}', "deeper than 3"),
        (b"[" * 200, "deeper than 3"),
        (b"[}", "do not match"),
        (b"[" + b"0," * 100 + b"0]", "101 JSON values, at most 100"),
        (b"[]" * 101, "101 JSON values"),
    ],
)
def test_decode_json_checks_its_limits_before_parsing(text, reason):
    with pytest.raises(ValueError, match=reason):
        decode_json(text, LIMITS)


def test_decode_json_at_its_limits_passes():
    text = b"[" + b",".join([b"0"] * 100) + b"]"

    assert decode_json(text.ljust(10_000), LIMITS) == [0] * 100


def test_errors_about_long_numbers_are_short():
    with pytest.raises(ValueError) as caught:
        decode_json(b"[0." + b"1" * 9000 + b"]", LIMITS)

    assert len(str(caught.value)) < 100


def test_canonical_json_orders_members_by_utf_16_code_units():
    # RFC 8785, Section 3.2.3: U+1F600 is D83D DE00 and comes before U+FB33.
    members = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }

    assert canonical_json(members).decode() == (
        '{"\\r":"Carriage Return","1":"One","\u0080":"Control",'
        '"\u00f6":"Latin Small Letter O With Diaeresis","\u20ac":"Euro Sign",'
        '"\U0001f600":"Emoji: Grinning Face","\ufb33":"Hebrew Letter Dalet With Dagesh"}'
    )


def test_canonical_json_writes_values_as_ecmascript_does():
    # RFC 8785, Section 3.2.2: two-character escapes, lower-case hex, nothing else escaped.
    members = {"text": '\u20ac$\u000f\nA\'B"\\\\"/\x7f\b\t\f', "list": [1, -5, True], "no": False}

    assert (
        canonical_json(members)
        == (
            '{"list":[1,-5,true],"no":false,"text":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/\x7f\\b\\t\\f"}'
        ).encode()
    )


def test_encode_json_is_compact_ascii_in_the_order_given():
    assert encode_json({"b": [1, "\u20ac"], "a": None}) == '{"b":[1,"\\u20ac"],"a":null}'


def test_members_are_taken_by_exact_type():
    members = Members({"flag": True, "count": 1, "list": [], "object": {"a": 1}}, "place")

    assert members.take("flag", bool) is True
    assert members.take("count", int) == 1
    assert members.take_array("list") == []
    assert members.take_object("object") == {"a": 1}
    assert members.others(frozenset({"flag", "list", "object"})) == {"count": 1}
    assert "count" in members
    assert "other" not in members
    for name, kind in (("flag", int), ("count", bool), ("other", int)):
        with pytest.raises(ValueError, match=f"place: {name} is missing or not of type"):
            members.take(name, kind)


def test_members_of_anything_but_an_object_are_refused():
    with pytest.raises(ValueError, match="place is not an object"):
        Members([], "place")


STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
TOKENS = st.sampled_from(["[", "]", "{", "}", ",", ":", " ", "\n", "0", "-12", "true", "null"])


@pytest.fixture
def short_slices(monkeypatch):
    """Take texts of a few octets for large ones."""
    monkeypatch.setattr(strict_json, "_SLICE_BYTES", 3)


@pytest.mark.usefixtures("short_slices")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TOKENS | st.text('[]{},"\\a0: \n').map(json.dumps), max_size=20))
def test_strings_are_found_alike_by_their_quotes_and_one_by_one(tokens):
    data = "".join(tokens).encode()
    others = bytes(set(range(256)) - set(b"[]{},"))

    by_quotes = strict_json._outside_strings(data).translate(None, others)

    assert by_quotes == STRING.sub(b"", data).translate(None, others)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text('[]{},"\\a\u20ac'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab[}"), inner, max_size=4),
    max_leaves=20,
)
DEEP = JsonLimits(max_bytes=10_000, max_depth=30, max_values=1000)


@pytest.mark.usefixtures("short_slices")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES, st.sampled_from([None, 1, "\t"]))
def test_a_large_text_is_read_in_parts_to_the_same_value(value, indent):
    assert decode_json(json.dumps(value, indent=indent).encode(), DEEP) == value


@given(
    st.lists(
        TOKENS | st.sampled_from(['"a"', '"["', '"\\""', "\\", "1.0", "NaN", "é"]), max_size=12
    )
)
def test_in_parts_the_same_texts_are_refused_as_in_one_piece(tokens):
    text = "".join(tokens)
    with pytest.MonkeyPatch.context() as patch:
        outcomes = []
        for slice_bytes in (3, 10_000):
            patch.setattr(strict_json, "_SLICE_BYTES", slice_bytes)
            try:
                outcomes.append(decode_json(text.encode(), DEEP))
            except ValueError:
                outcomes.append("refused")

    assert outcomes[0] == outcomes[1]


@pytest.mark.usefixtures("short_slices")
@pytest.mark.parametrize(
    "text",
    [
        b"[[1],]",
        b"[[1] 2]",
        b"[[1]",
        b'{"a":[1],}',
        b'{"a":[1] "b":2}',
        b"{a:[1]}",
        b'{"a" [1]}',
        b"[[1]] 2",
        b'{"a":[1],"a":2}',
        b'{"a":[1.5]}',
        b"[[],nul]",
    ],
)
def test_what_is_no_json_is_refused_in_parts_too(text):
    with pytest.raises(ValueError, match=r"\w"):
        decode_json(text, DEEP)
