import cbor2
import pytest

from kvcs.c4m import MAX_SCOPES, ClaimNumbers, Claims, Scope, decode_claims, encode_claims
from kvcs.errors import ConfigError, TokenRefused

SCOPE = Scope(actions=frozenset({4}))
BARE = {4: 2000, 327: [[[4]]]}


def refusal(payload):
    with pytest.raises(TokenRefused) as refused:
        decode_claims(payload)
    return refused.value.reason


def test_all_claims_come_back():
    claims = Claims(
        scopes=(SCOPE,),
        expires_at=2000.5,
        not_before=1000.0,
        revalidation=60.0,
        issuer="issuer",
        subject="subject",
        audience=("a", "b"),
        issued_at=999.0,
        token_id=b"id",
    )

    assert decode_claims(encode_claims(claims)) == claims


def test_whole_seconds_are_integers_and_one_audience_is_a_text():
    encoded = encode_claims(Claims(scopes=(SCOPE,), expires_at=2000.0, audience=("a",)))

    assert cbor2.loads(encoded) == {3: "a", **BARE}
    assert decode_claims(encoded).audience == ("a",)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({327: [[[4]]]}, "endless"),
        ({4: 2000}, "form"),
        ({**BARE, 327: []}, "form"),
        ({**BARE, 327: [[[4]]] * (MAX_SCOPES + 1)}, "form"),
        ({**BARE, 327: [[[4], ["text"]]]}, "form"),
        ({**BARE, 4: "2000"}, "form"),
        ({**BARE, 4: True}, "form"),
        ({**BARE, 4: -1}, "form"),
        ({**BARE, 4: float("nan")}, "form"),
        ({**BARE, 4: float("inf")}, "form"),
        ({**BARE, 4: 2**54}, "form"),
        ({**BARE, 5: b""}, "form"),
        ({**BARE, 5: None}, "form"),
        ({**BARE, 328: "300"}, "form"),
        ({**BARE, 328: -1}, "form"),
        ({**BARE, 1: b"issuer"}, "form"),
        ({**BARE, 7: "id"}, "form"),
        ({**BARE, 3: []}, "form"),
        ({**BARE, 3: [1]}, "form"),
        ({**BARE, 3: ""}, "form"),
        ({**BARE, 3: ["a", ""]}, "form"),
        ({**BARE, 3: ["a"] * 17}, "form"),
        ({**BARE, 8: {3: bytes(32)}}, "claim"),
        ({**BARE, 321: {0: 60}}, "claim"),
        ({**BARE, 308: 1}, "form"),
        ({**BARE, 308: 1, 7: b""}, "form"),
        ({**BARE, 308: 2, 7: b"id"}, "claim"),
        ({**BARE, 308: True, 7: b"id"}, "claim"),
        ({**BARE, 308: 1.0, 7: b"id"}, "claim"),
        ({**BARE, 308: [], 7: b"id"}, "claim"),
        ({**BARE, "or": []}, "claim"),
        ([], "form"),
        ({**BARE, 4: cbor2.CBORTag(1, 2000)}, "form"),
        ({**BARE, 1: {1: {1: {1: {1: {1: {1: {1: {1: 1}}}}}}}}}, "form"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_claims_that_are_not_understood_are_refused(claims, reason):
    assert refusal(cbor2.dumps(claims)) == reason


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xa2",
        encode_claims(Claims(scopes=(SCOPE,), expires_at=1.0)) + b"\x00",
        b"\xa3\x04\x01\x04\x02\x19\x01\x47\x81\x81\x81\x04",  # exp twice
        b"\xbf\x04\x01\xff",  # a map of indefinite length
        b"\xbb" + b"\xff" * 8,
    ],
    ids=["empty", "cut", "more", "twice", "indefinite", "length"],
)
def test_claims_that_are_no_strict_cbor_are_refused(payload):
    assert refusal(payload) == "form"


def test_the_issuers_words_are_not_repeated():
    with pytest.raises(TokenRefused) as refused:
        decode_claims(cbor2.dumps({**BARE, "secret name": 1, 1: "issuer"}))

    assert "secret" not in str(refused.value)
    assert "issuer" not in str(refused.value)


@pytest.mark.parametrize(
    ("numbers", "key"),
    [
        ({"moqt": 4}, "moqt_claim"),
        ({"revalidation": 8}, "revalidation_claim"),
        ({"moqt": 308}, "moqt_claim"),
        ({"moqt": 328}, "revalidation_claim"),
    ],
)
def test_numbers_of_claims_do_not_collide(numbers, key):
    with pytest.raises(ConfigError) as error:
        ClaimNumbers(**numbers)

    assert error.value.key == key


def test_a_token_says_whether_it_is_for_one_session():
    once = Claims(scopes=(SCOPE,), expires_at=1.0, token_id=b"id", is_for_one_session=True)

    assert cbor2.loads(encode_claims(once))[308] == 1
    assert decode_claims(encode_claims(once)) == once
    assert not decode_claims(cbor2.dumps({**BARE, 308: 0})).is_for_one_session
    assert not decode_claims(cbor2.dumps(BARE)).is_for_one_session


def test_claims_that_cannot_be_made_are_refused():
    with pytest.raises(ConfigError):
        Claims(scopes=(SCOPE,), expires_at=1.0, is_for_one_session=True)
    with pytest.raises(ConfigError):
        Claims(scopes=(), expires_at=1.0)
    with pytest.raises(ConfigError):
        Claims(scopes=(SCOPE,), expires_at=-1.0)
    for audience in [("",), ("a", "")]:
        with pytest.raises(ConfigError, match="audience: expected a name"):
            Claims(scopes=(SCOPE,), expires_at=1.0, audience=audience)
