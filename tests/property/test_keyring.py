"""Documents with keys: whatever they hold, they are read whole or refused, and never quoted."""

import json

from hypothesis import given
from hypothesis import strategies as st

from kvcs.errors import ConfigError
from kvcs.keyring import Jwk, KeyKind, KeyRing, Purpose, decode_ring, encode_ring, new_pair

PAIRS = [new_pair(kind) for kind in (KeyKind.P256, KeyKind.ED25519) for _ in range(3)]
MARK = "c2VjcmV0LXNlY3JldC1zZWNyZXQ"

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just(MARK)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
names = st.sampled_from(["kty", "crv", "kid", "x", "y", "d", "k", "alg", "use", "suite", "other"])
words = st.sampled_from(
    ["EC", "OKP", "oct", "P-256", "Ed25519", "ES256", "EdDSA", "sig", MARK, "A" * 43, "A" * 22]
)
# A kid is no secret, and errors name it.
keys = st.dictionaries(names, st.one_of(words, st.integers(0, 6), values), max_size=9).map(
    lambda key: {**key, "kid": "7"} if "kid" in key else key
)
sets = st.fixed_dictionaries(
    {"keys": st.lists(keys, max_size=3)}, optional={"current": st.one_of(words, values)}
)
documents = st.dictionaries(
    st.one_of(st.sampled_from([str(purpose) for purpose in Purpose]), st.text(max_size=5)),
    st.one_of(keys, sets, values),
    max_size=4,
)


def outcome(content):
    """Return the ring, or the error that was raised instead."""
    try:
        return decode_ring(content, "place")
    except ConfigError as error:
        return error


def check(content):
    found = outcome(content)
    if isinstance(found, KeyRing):
        assert decode_ring(encode_ring(found), "place") == found
    else:
        assert MARK not in f"{found} {found.__cause__!r}"


@given(documents)
def test_any_document_is_read_whole_or_refused(document):
    check(json.dumps(document).encode())


@given(st.binary(max_size=200))
def test_any_octets_are_read_whole_or_refused(content):
    check(content)


@st.composite
def rings(draw):
    """A ring with any keys that are allowed, some of them made current."""
    ring = KeyRing()
    if draw(st.booleans()):
        ring = ring.added(
            Purpose.SCOPE,
            Jwk(kind=KeyKind.OCTETS, secret=draw(st.binary(min_size=32, max_size=32))),
        )
    for purpose in (Purpose.PRODUCER, Purpose.TRUSTED, Purpose.TOKEN, Purpose.VERIFIER):
        allowed = PAIRS if purpose in (Purpose.PRODUCER, Purpose.TRUSTED) else PAIRS[:3]
        for key in draw(st.lists(st.sampled_from(allowed), unique_by=lambda key: key.kid)):
            public = Jwk(kind=key.kind, kid=key.kid, x=key.x, y=key.y)
            ring = ring.added(purpose, public if purpose.is_public else key)
    for key_id in draw(st.lists(st.integers(0, 2**32 - 1), max_size=3, unique=True)):
        secret = draw(st.binary(min_size=16, max_size=64))
        key = Jwk(kind=KeyKind.OCTETS, kid=str(key_id), secret=secret, suite=4)
        ring = ring.added(Purpose.OBJECT, key)
    for purpose in ring.sets:
        if purpose.has_current and draw(st.booleans()):
            ring = ring.rotated(purpose, lambda: PAIRS[0]) if len(ring.keys(purpose)) > 1 else ring
    return ring


@given(rings())
def test_any_ring_survives_its_document(ring):
    assert decode_ring(encode_ring(ring), "place") == ring


@given(rings(), rings())
def test_merging_loses_no_key_and_moves_nothing_that_is_current(mine, theirs):
    try:
        merged = mine.merged(theirs)
    except ConfigError:
        return  # two scopes, or two keys of one name
    for ring in (mine, theirs):
        for purpose in ring.sets:
            assert set(ring.keys(purpose)) <= set(merged.keys(purpose))
    for purpose in mine.sets:
        assert merged.current(purpose) == mine.current(purpose)
    assert merged.merged(theirs) == merged
