import contextlib

import pytest

from kvcs.c4m import Claims, Scope, TokenConfig, TokenVerifier, encode_claims, mint
from kvcs.cose import Algorithm, MacKey, SigningKey, encode_mac0
from kvcs.errors import ConfigError, NotAuthentic, TokenRefused

MAC = MacKey(b"issuer", bytes(range(32)))
SIGNER = SigningKey.generate(b"signer")
EDDSA = SigningKey.generate(b"edwards", Algorithm.EDDSA)
CLAIMS = Claims(scopes=(Scope(actions=frozenset({4})),), expires_at=2000.0, not_before=1000.0)


def verifier(*keys, **rules):
    return TokenVerifier(keys or (MAC, SIGNER.public, EDDSA.public), TokenConfig(**rules))


def refusal(token, *, of=TokenRefused, at=1500.0, keys=(), **rules):
    with pytest.raises(of) as refused:
        verifier(*keys, **rules).verify(token, wall=at)
    return refused.value.reason


@pytest.mark.parametrize("key", [MAC, SIGNER, EDDSA], ids=["HS256", "ES256", "EdDSA"])
def test_token_is_good_for_who_has_the_key(key):
    assert verifier().verify(mint(CLAIMS, key), wall=1500.0) == CLAIMS


def test_the_tag_of_a_cwt_may_stand_around_it():
    assert verifier().verify(b"\xd8\x3d" + mint(CLAIMS, MAC), wall=1500.0) == CLAIMS


@pytest.mark.parametrize(
    ("at", "reason"),
    [(989.9, "early"), (990.0, None), (2009.9, None), (2010.0, "expired"), (9e9, "expired")],
)
def test_times_are_kept_within_the_leeway(at, reason):
    token = mint(CLAIMS, MAC)

    if reason is None:
        assert verifier(leeway=10.0).verify(token, wall=at) == CLAIMS
    else:
        assert refusal(token, at=at, leeway=10.0) == reason


def test_an_expired_token_says_so_only_under_a_signature_of_ours():
    stranger = MacKey(b"issuer", bytes(32))

    assert refusal(mint(CLAIMS, stranger), of=NotAuthentic, at=9e9) == "signature"


def test_keys_rotate_by_their_identifier():
    new = MacKey(b"issuer-2", bytes(32))

    both = verifier(MAC, new)

    assert both.verify(mint(CLAIMS, MAC), wall=1500.0) == CLAIMS
    assert both.verify(mint(CLAIMS, new), wall=1500.0) == CLAIMS
    assert refusal(mint(CLAIMS, MAC), of=NotAuthentic, keys=(new,)) == "key"


def test_keys_of_one_identifier_are_all_tried_up_to_a_number():
    same = [MacKey(b"issuer", bytes([number]) * 32) for number in range(5)]

    assert verifier(*same[:4]).verify(mint(CLAIMS, same[3]), wall=1500.0) == CLAIMS
    assert refusal(mint(CLAIMS, same[3]), of=NotAuthentic, keys=same) == "key"


def test_without_keys_no_token_is_good():
    assert refusal_without_keys(mint(CLAIMS, MAC)) == "key"
    assert refusal_without_keys(mint(CLAIMS, SIGNER)) == "key"


def refusal_without_keys(token):
    with pytest.raises(NotAuthentic) as refused:
        TokenVerifier(()).verify(token, wall=1500.0)
    return refused.value.reason


def test_a_token_has_a_size():
    token = mint(CLAIMS, MAC)

    assert verifier(max_token_bytes=len(token)).verify(token, wall=1500.0) == CLAIMS
    assert refusal(token, max_token_bytes=len(token) - 1) == "size"
    assert refusal(b"\xd1" * 4097) == "size"


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\x00",
        b"\xd8\x3d",
        b"\xd8\x3d\xd8\x3d\xd1",
        b"\xd0\x84",  # COSE_Encrypt0
        b"eyJhbGciOiJub25lIn0.e30.",  # a JWT without a signature
        mint(CLAIMS, MAC)[1:],  # without a tag
    ],
)
def test_what_is_no_tagged_token_is_refused(token):
    assert refusal(token) == "form"


def test_a_tag_does_not_make_a_mac_of_a_signature():
    assert refusal(b"\xd1" + mint(CLAIMS, SIGNER)[1:], of=NotAuthentic) == "key"
    assert refusal(b"\xd2" + mint(CLAIMS, MAC)[1:], of=NotAuthentic) == "key"


def test_no_damage_changes_what_a_token_says():
    token = mint(CLAIMS, MAC)
    accepted = []

    for index in range(len(token)):
        for bit in range(8):
            damaged = bytearray(token)
            damaged[index] ^= 1 << bit
            with contextlib.suppress(NotAuthentic, TokenRefused):
                accepted.append(verifier().verify(bytes(damaged), wall=1500.0))

    # Only the name of the header that names the key is not signed: then all keys are tried.
    assert set(accepted) <= {CLAIMS}
    assert len(accepted) <= 8


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_a_token_that_is_cut_is_refused(length):
    with pytest.raises((NotAuthentic, TokenRefused)):
        verifier().verify(mint(CLAIMS, MAC)[:length], wall=1500.0)


def test_a_public_key_is_no_shared_secret():
    public = SIGNER.public
    forged = encode_mac0(encode_claims(CLAIMS), MacKey(b"signer", public.public_bytes))

    assert refusal(forged, of=NotAuthentic, keys=(public,)) == "key"


def test_a_token_for_somebody_else_is_refused():
    token = mint(Claims(scopes=CLAIMS.scopes, expires_at=2000.0, audience=("a", "b")), MAC)

    assert refusal(token) == "audience"
    assert refusal(token, audience="c") == "audience"
    assert verifier(audience="b").verify(token, wall=1500.0).audience == ("a", "b")
    assert verifier(audience="b").verify(mint(CLAIMS, MAC), wall=1500.0) == CLAIMS


def test_who_requires_an_audience_takes_no_token_that_is_for_nobody_in_particular():
    rules = {"audience": "b", "require_audience": True}
    token = mint(Claims(scopes=CLAIMS.scopes, expires_at=2000.0, audience=("a", "b")), MAC)

    assert refusal(mint(CLAIMS, MAC), **rules) == "audience"
    assert refusal(token, audience="c", require_audience=True) == "audience"
    assert verifier(**rules).verify(token, wall=1500.0).audience == ("a", "b")


def test_a_token_by_somebody_else_is_refused():
    token = mint(Claims(scopes=CLAIMS.scopes, expires_at=2000.0, issuer="a"), MAC)

    assert verifier(issuer="a").verify(token, wall=1500.0).issuer == "a"
    assert refusal(token, issuer="b") == "issuer"
    assert refusal(mint(CLAIMS, MAC), issuer="b") == "issuer"


def test_a_token_that_asks_for_more_revalidation_than_there_is_is_refused():
    def token(seconds):
        return mint(Claims(scopes=CLAIMS.scopes, expires_at=2000.0, revalidation=seconds), MAC)

    assert verifier().verify(token(1.0), wall=1500.0).revalidation == 1.0
    assert verifier().verify(token(0.0), wall=1500.0).revalidation == 0.0
    assert refusal(token(0.5)) == "revalidation"


@pytest.mark.parametrize(
    "rules",
    [
        {"leeway": -1.0},
        {"leeway": float("nan")},
        {"leeway": float("inf")},
        {"audience": ""},
        {"issuer": ""},
        {"max_token_bytes": 0},
        {"max_attempts": 0},
        {"least_revalidation": 0.0},
        {"require_audience": True},
    ],
)
def test_rules_have_bounds(rules):
    with pytest.raises(ConfigError) as error:
        TokenConfig(**rules)

    assert error.value.key in rules


def test_keys_and_tokens_are_in_no_repr_and_no_error():
    token = mint(CLAIMS, MAC)

    texts = [repr(verifier()), repr(MAC)]
    for data in (token[:-1], token + b"\x00", b"\xd1\x84" + token):
        with pytest.raises((NotAuthentic, TokenRefused)) as refused:
            verifier().verify(data, wall=1500.0)
        texts += [str(refused.value), repr(refused.value)]

    for text in texts:
        assert MAC.secret.hex() not in text
        assert token.hex()[:16] not in text
        assert str(MAC.secret)[2:12] not in text
