"""Keys of every purpose, with the published numbers of RFC 6979 and RFC 8037."""

import pytest

from kvcs.keyring import Jwk, JwkSet, KeyKind, KeyRing, Purpose

#: RFC 6979, A.2.5; the thumbprint of the public part is in draft-ietf-moq-c4m.
P256 = {
    "kty": "EC",
    "crv": "P-256",
    "x": "YP7UuiVanTHJYet0xjVtaMBJuJI7Yfps5mliLmDyn7Y",
    "y": "eQP-EAi4vJmkGunpVii8ZPLxsgwtfp9Rd6PClNRGIpk",
    "d": "ya-p2EW6dRZrXCFXZ7HWk05Qw9s26JsSe4piKxIPZyE",
}
#: RFC 8037, A.1.
ED25519 = {
    "kty": "OKP",
    "crv": "Ed25519",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",
}


@pytest.fixture
def p256():
    return dict(P256)


@pytest.fixture
def ed25519():
    return dict(ED25519)


def octets(kid, fill, size=32, suite=None):
    return Jwk(kind=KeyKind.OCTETS, kid=kid, secret=bytes([fill]) * size, suite=suite)


@pytest.fixture
def make_octets():
    return octets


@pytest.fixture
def ring():
    """A ring with keys of every purpose; their secrets are easy to search for."""
    from kvcs.keyring.jwk import parse_jwk  # noqa: PLC0415

    pair = parse_jwk({**P256, "kid": "first"}, "test")
    other = parse_jwk({**ED25519, "kid": "second"}, "test")
    stranger = parse_jwk({k: v for k, v in {**ED25519, "kid": "theirs"}.items() if k != "d"}, "")
    return KeyRing(
        {
            Purpose.SCOPE: JwkSet((octets("", 1),)),
            Purpose.PRODUCER: JwkSet((pair, other), "first"),
            Purpose.TRUSTED: JwkSet((stranger,)),
            Purpose.OBJECT: JwkSet((octets("7", 2, suite=4), octets("8", 3, suite=4)), "8"),
            Purpose.TOKEN: JwkSet((pair, octets("mac", 4)), "mac"),
            Purpose.VERIFIER: JwkSet((octets("other", 5),)),
        }
    )
