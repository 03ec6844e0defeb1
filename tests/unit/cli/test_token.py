import json
import stat
import time

import pytest

from kvcs.c4m import Claims, Match, Scope, TokenVerifier, mint, peek
from kvcs.cli._tokens import decode_token, encode_token
from kvcs.cli.relay.authorization import token_keys
from kvcs.keyring import KeyRing, Purpose, encode_ring, encode_set, load_ring, mac_key, new_secret

SCOPE = "6d1c6481cd428737da312c089db3832a"


@pytest.fixture(autouse=True)
def no_ring_of_the_reader(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))


@pytest.fixture
def ring(kvcs_json, tmp_path):
    directory = tmp_path / "ring"
    kvcs_json("keys", "new", "token", "--keys", directory)
    return directory


@pytest.fixture
def relay_keys(kvcs_json, ring, tmp_path):
    path = tmp_path / "relay.json"
    kvcs_json("keys", "export", "relay", path, "--keys", ring)
    return path


@pytest.fixture
def write(tmp_path):
    """Write a token that a shared secret of its own makes; return its file and that of the key."""

    def make(claims, name="other.token"):
        key = new_secret("other")
        file, keys = tmp_path / name, tmp_path / f"{name}.jwks"
        file.write_text(encode_token(mint(claims, mac_key(key))))
        keys.touch(mode=0o600)
        keys.write_bytes(encode_ring(KeyRing().added(Purpose.VERIFIER, key)))
        return file, keys

    return make


def test_minted_token_is_good_for_who_has_the_public_key(kvcs_json, ring, relay_keys):
    made = kvcs_json(
        "token", "mint", "--scope", SCOPE, "--role", "producer", "--keys", ring, "--ttl", "2h"
    )

    claims = TokenVerifier(token_keys(relay_keys)).verify(
        decode_token(made["token"].encode()), wall=time.time()
    )
    assert [scope.actions for scope in claims.scopes] == [{2, 6}]
    assert claims.scopes[0].namespace == (
        Match.exact(b"kvcs-1"),
        Match.exact(bytes.fromhex(SCOPE)),
    )
    assert 7190 < claims.expires_at - time.time() <= 7200
    assert made["expires_at"] == claims.expires_at


def test_roles_and_scopes_are_all_in_one_token(kvcs_json, ring):
    made = kvcs_json(
        *("token", "mint", "--keys", ring, "--role", "producer", "--role", "consumer"),
        *("--scope", SCOPE, "--scope", "all", "--issuer", "us", "--revalidate", "30s"),
        *("--audience", "relay-1", "--audience", "relay-2"),
    )

    assert [(scope["actions"][0], len(scope["namespace"])) for scope in made["scopes"]] == [
        ("PUBLISH_NAMESPACE", 2),
        ("PUBLISH_NAMESPACE", 1),
        ("SUBSCRIBE_NAMESPACE", 2),
        ("SUBSCRIBE_NAMESPACE", 1),
    ]
    assert (made["issuer"], made["audience"], made["revalidation"]) == (
        "us",
        "relay-1, relay-2",
        30.0,
    )


def test_a_token_for_one_session_has_an_identifier_of_its_own(kvcs_run, kvcs_json, ring):
    files = [ring.parent / name for name in ("one.token", "other.token")]
    for file in files:
        mint = ("token", "mint", "--keys", ring, "--role", "consumer", "--scope", SCOPE, "--once")
        assert kvcs_json(*mint, "-o", file)["one_session"]

    one, other = (peek(decode_token(file.read_bytes())).claims for file in files)
    _, shown, _ = kvcs_run("token", "inspect", files[0])

    assert one.is_for_one_session
    assert len(one.token_id) == 16
    assert one.token_id != other.token_id
    assert "opens      one session, the first that uses it" in shown


def test_claims_have_the_numbers_that_the_relay_takes(kvcs_run, kvcs_json, ring, relay_keys):
    file = ring.parent / "other.token"
    numbers = ("--moqt-claim", "400", "--revalidation-claim", "401")
    kvcs_json(
        *("token", "mint", "--keys", ring, "--role", "relay", "--scope", SCOPE, "-o", file),
        *("--revalidate", "30s", *numbers),
    )

    shown = kvcs_json("token", "inspect", file, "--token-keys", relay_keys, *numbers)
    code, out, err = kvcs_run("token", "inspect", file, "--token-keys", relay_keys)

    assert (shown["good"], shown["revalidation"], len(shown["scopes"])) == (True, 30.0, 1)
    assert (code, out) == (4, "")
    assert "claim 327" in err


def test_scope_is_that_of_the_ring_by_default(kvcs_json, ring):
    scope_id = kvcs_json("scope", "new", "--keys", ring)["scope_id"]

    made = kvcs_json("token", "mint", "--keys", ring, "--role", "relay")

    assert made["scopes"][0]["namespace"] == ["kvcs-1", scope_id]


def test_token_in_a_file_is_for_its_owner_and_is_replaced_as_a_whole(kvcs_json, ring, tmp_path):
    file = tmp_path / "a.token"
    arguments = ("token", "mint", "--keys", ring, "--scope", SCOPE, "--role", "relay", "-o", file)

    first = kvcs_json(*arguments)
    before = file.stat().st_ino
    kvcs_json(*arguments)

    assert "token" not in first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_ino != before
    assert decode_token(file.read_bytes())


def test_key_of_a_file_signs(kvcs_json, ring, tmp_path):
    jwk = tmp_path / "token.jwk"
    jwk.touch(mode=0o600)
    jwk.write_bytes(encode_set(Purpose.TOKEN, load_ring(ring).sets[Purpose.TOKEN]))

    made = kvcs_json("token", "mint", "--key-file", jwk, "--scope", SCOPE, "--role", "consumer")

    claims = TokenVerifier(token_keys(ring)).verify(
        decode_token(made["token"].encode()), wall=time.time()
    )
    assert claims.scopes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--role", "producer"), "--scope: expected a Scope ID"),
        (("--role", "producer", "--scope", "ff"), "--scope: expected 32 hex digits, or all"),
        (("--role", "producer", "--scope", "zz" * 16), "--scope: expected 32 hex digits"),
        (("--role", "producer", "--scope", SCOPE, "--key-file", "gone.jwk"), "gone.jwk"),
        (("--role", "producer", "--scope", SCOPE, *17 * ("--audience", "a")), "at most 16 names"),
        (("--role", "producer", "--scope", SCOPE, "--audience", ""), "audience: expected a name"),
        (("--role", "producer", "--moqt-claim", "4"), "--moqt-claim: expected a number that no"),
        (("--role", "producer", "--revalidation-claim", "327"), "--revalidation-claim: expected"),
    ],
)
def test_what_cannot_be_minted_is_told(kvcs_run, ring, arguments, words):
    code, out, err = kvcs_run("token", "mint", "--keys", ring, *arguments)

    assert (code, out) == (2, "")
    assert words in err


def test_without_a_token_key_nothing_is_minted(kvcs_run):
    code, _, err = kvcs_run("token", "mint", "--scope", SCOPE, "--role", "relay")

    assert code == 2
    assert "kvcs keys new token" in err


def test_inspecting_shows_what_a_token_says_and_never_the_token(
    kvcs_run, kvcs_json, ring, relay_keys, tmp_path
):
    file = tmp_path / "a.token"
    mint_it = ("token", "mint", "--keys", ring, "--scope", SCOPE, "--role", "producer")
    kvcs_json(*mint_it, "-o", file)

    code, out, _ = kvcs_run("token", "inspect", file, "--token-keys", relay_keys)
    shown = kvcs_json("token", "inspect", file, "--token-keys", relay_keys)
    unverified = kvcs_json("token", "inspect", file)

    assert code == 0
    assert out.startswith("verdict    good\n")
    assert f"PUBLISH_NAMESPACE, PUBLISH in kvcs-1 / {SCOPE} and below" in out
    assert file.read_text().strip()[40:60] not in out + json.dumps(shown)
    assert (shown["good"], shown["algorithm"], shown["expired"]) == (True, "ES256", False)
    assert unverified["good"] is None


@pytest.mark.parametrize(
    ("claims", "fault"),
    [
        ({"expires_at": 1000.0}, "the token has expired (expired)"),
        ({"expires_at": 4e9, "not_before": 3.9e9}, "the token is not good yet (early)"),
        ({"expires_at": 4e9, "audience": ("a",)}, "the token is for somebody else (audience)"),
    ],
)
def test_inspecting_says_why_a_token_is_not_good(kvcs_run, write, claims, fault):
    scope = Scope(actions=frozenset({4, 99}), namespace=(Match.prefix(b"\xff"),), is_exact=True)
    file, keys = write(Claims(scopes=(scope,), **claims))

    code, out, _ = kvcs_run("token", "inspect", file, "--token-keys", keys)

    assert code == 4
    assert out.startswith(f"verdict    {fault}\n")
    assert "SUBSCRIBE, 99 in begins ff\n" in out


def test_a_token_that_is_just_over_is_not_called_good(kvcs_run, write):
    scope = Scope(actions=frozenset({4}))
    file, keys = write(Claims(scopes=(scope,), expires_at=float(int(time.time()) - 1)))

    code, out, _ = kvcs_run("token", "inspect", file, "--token-keys", keys)

    assert code == 4
    assert out.startswith("verdict    expired; relays take it for some seconds more\n")


def test_inspecting_a_token_of_a_stranger_says_so(kvcs_run, write, relay_keys):
    file, _ = write(Claims(scopes=(Scope(actions=frozenset({4})),), expires_at=4e9))

    code, out, _ = kvcs_run("token", "inspect", file, "--token-keys", relay_keys)

    assert code == 4
    assert "no trusted key has the key identifier" in out


def test_inspecting_tells_a_relay_by_its_name(kvcs_json, write):
    claims = Claims(scopes=(Scope(actions=frozenset({4})),), expires_at=4e9, audience=("a",))
    file, keys = write(claims)

    assert kvcs_json("token", "inspect", file, "--token-keys", keys, "--audience", "a")["good"]


def test_inspecting_tells_what_a_relay_that_requires_an_audience_refuses(kvcs_run, write):
    file, keys = write(Claims(scopes=(Scope(actions=frozenset({4})),), expires_at=4e9))
    arguments = ("token", "inspect", file, "--token-keys", keys, "--require-audience")

    code, out, _ = kvcs_run(*arguments, "--audience", "a")
    unnamed, _, error = kvcs_run(*arguments)

    assert code == 4
    assert out.startswith("verdict    the token is for no relay in particular (audience)\n")
    assert unnamed == 2
    assert "an audience beside it" in error


def test_a_time_beyond_all_calendars_can_be_shown(kvcs_run, write):
    file, _ = write(Claims(scopes=(Scope(actions=frozenset({4})),), expires_at=float(2**53)))

    code, out, _ = kvcs_run("token", "inspect", file)

    assert code == 0
    assert "a time that no calendar has" in out


@pytest.mark.parametrize("content", [b"", b"secret words", b"\xd1\x00", b"x" * 20_000])
def test_what_is_no_token_is_not_shown(kvcs_run, tmp_path, content):
    file = tmp_path / "file"
    file.write_bytes(content)

    code, out, err = kvcs_run("token", "inspect", file)

    assert code in (2, 4)
    assert out == ""
    assert "secret" not in err
    assert "producer" not in err


def test_a_token_that_relays_find_too_large_is_made_with_a_word(kvcs_run, ring, tmp_path):
    file = tmp_path / "large.token"
    minting = ("token", "mint", "--keys", ring, "--role", "relay", "--scope", SCOPE, "-o", file)

    made, _, told = kvcs_run(*minting, "--audience", "a" * 4096)
    inspected, _, error = kvcs_run("token", "inspect", file)
    _, _, silence = kvcs_run(*minting, "--audience", "a")

    assert (made, inspected) == (0, 4)
    assert "relays take at most 4096" in told
    assert "octets of COSE, at most 4096" in error
    assert silence == ""


def test_the_secret_of_a_key_is_in_no_output(kvcs_run, tmp_path):
    ring = tmp_path / "secret"
    kvcs_run("keys", "new", "token", "--algorithm", "hs256", "--keys", ring)
    (secret,) = [key.secret for key in load_ring(ring).keys(Purpose.TOKEN)]

    texts = [
        "".join(map(str, kvcs_run("token", "mint", "--keys", ring, "-vv", *arguments)))
        for arguments in (("--role", "relay", "--scope", SCOPE), ("--role", "relay"))
    ]

    for text in texts:
        assert secret.hex() not in text
        assert encode_token(secret) not in text
