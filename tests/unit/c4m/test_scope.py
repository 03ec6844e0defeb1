import pytest

from kvcs.c4m import MAX_ACTIONS, Action, Match, Role, Scope, role_scopes
from kvcs.c4m.scope import ScopeError
from kvcs.names import MAX_FIELDS, MAX_NAME_BYTES, TrackNamespace

SUBSCRIBE = frozenset({Action.SUBSCRIBE})


def namespace(*fields):
    return TrackNamespace(fields)


@pytest.mark.parametrize(
    ("match", "octets", "covered"),
    [
        (Match.exact(b"ab"), b"ab", True),
        (Match.exact(b"ab"), b"abc", False),
        (Match.exact(b"ab"), b"AB", False),
        (Match.prefix(b"ab"), b"abc", True),
        (Match.prefix(b"ab"), b"a", False),
        (Match.suffix(b"ab"), b"cab", True),
        (Match.suffix(b"ab"), b"abc", False),
        (Match.exact(b"\xff\x00"), b"\xff\x00", True),
        (Match.exact(b"\xc3\xa9"), b"e\xcc\x81", False),  # not normalised
        (Match.exact(b""), b"", True),
        (Match.prefix(b""), b"anything", True),
    ],
)
def test_match_compares_octet_by_octet(match, octets, covered):
    assert match.covers(octets) is covered


def test_scope_without_names_is_for_everything():
    scope = Scope(actions=SUBSCRIBE)

    assert scope.allows(Action.SUBSCRIBE, namespace(), b"")
    assert scope.allows(Action.SUBSCRIBE, namespace(b"a", b"b"), b"t")


@pytest.mark.parametrize("action", set(Action) - {Action.SUBSCRIBE})
def test_what_is_not_listed_is_refused(action):
    assert not Scope(actions=SUBSCRIBE).allows(action, namespace(b"a"), b"t")


def test_a_list_covers_longer_namespaces_and_no_shorter_ones():
    scope = Scope(actions=SUBSCRIBE, namespace=(Match.exact(b"a"), Match.exact(b"b")))

    assert scope.allows(Action.SUBSCRIBE, namespace(b"a", b"b"), b"t")
    assert scope.allows(Action.SUBSCRIBE, namespace(b"a", b"b", b"c"), b"t")
    assert not scope.allows(Action.SUBSCRIBE, namespace(b"a"), b"t")
    assert not scope.allows(Action.SUBSCRIBE, namespace(), b"t")
    assert not scope.allows(Action.SUBSCRIBE, namespace(b"b", b"a"), b"t")


def test_a_list_with_an_end_covers_its_own_length_only():
    scope = Scope.from_claim([[4], [b"a", None]])

    assert scope.allows(Action.SUBSCRIBE, namespace(b"a"), b"t")
    assert not scope.allows(Action.SUBSCRIBE, namespace(b"a", b"b"), b"t")
    assert not scope.allows(Action.SUBSCRIBE, namespace(), b"t")


def test_a_scope_for_some_tracks_lists_a_namespace_and_does_not_offer_it():
    scope = Scope(
        actions=frozenset({Action.PUBLISH_NAMESPACE, Action.SUBSCRIBE_NAMESPACE}),
        track=Match.exact(b"t"),
    )

    assert scope.allows(Action.SUBSCRIBE_NAMESPACE, namespace(b"a"))
    assert not scope.allows(Action.PUBLISH_NAMESPACE, namespace(b"a"))


@pytest.mark.parametrize(
    ("claim", "scope"),
    [
        ([[4]], Scope(actions=SUBSCRIBE)),
        ([[4], b"t"], Scope(actions=SUBSCRIBE, track=Match.exact(b"t"))),
        ([[4], [1, b"t"]], Scope(actions=SUBSCRIBE, track=Match.prefix(b"t"))),
        ([[4], [[1, b"n"]]], Scope(actions=SUBSCRIBE, namespace=(Match.prefix(b"n"),))),
        ([[4], [None]], Scope(actions=SUBSCRIBE, is_exact=True)),
        (
            [[4, 99], [b"n", None], [2, b"t"]],
            Scope(
                actions=frozenset({4, 99}),
                namespace=(Match.exact(b"n"),),
                is_exact=True,
                track=Match.suffix(b"t"),
            ),
        ),
    ],
)
def test_claim_and_scope_are_the_same(claim, scope):
    assert Scope.from_claim(claim) == scope
    assert scope.to_claim() == claim


@pytest.mark.parametrize(
    "claim",
    [
        None,
        4,
        b"",
        [],
        [4],
        [[]],
        [[4], []],
        [["4"]],
        [[4.0]],
        [[True]],
        [[4, 4]],
        [[4], [b"a"], b"t", b"u"],
        [[4], b"t", b"u"],
        [[4], [b"a"], [b"t"]],
        [[4], [None, b"a"]],
        [[4], [None, None]],
        [[4], ["a"]],
        [[4], [[0, b"a"]]],
        [[4], [[3, b"a"]]],
        [[4], [[1, b"a", b"b"]]],
        [[4], [[1, "a"]]],
        [[4], [[True, b"a"]]],
        [[4], [3, b"t"]],
        [[4], [b"a"], None],
        [[4], {1: b"a"}],
        [{0: 4}],
        [[4], [b"a"] * (MAX_FIELDS + 1)],
        [[*range(MAX_ACTIONS + 1)]],
        [[4], [b"a" * (MAX_NAME_BYTES + 1)]],
    ],
    ids=lambda claim: repr(claim)[:40],
)
def test_what_is_not_understood_is_no_scope(claim):
    with pytest.raises(ScopeError):
        Scope.from_claim(claim)


def test_roles_allow_what_their_party_does_under_its_namespaces():
    places = [namespace(b"kvcs-1", b"one"), namespace(b"kvcs-1", b"two")]

    producer = role_scopes(Role.PRODUCER, places)
    consumer = role_scopes(Role.CONSUMER, places)
    relay = role_scopes(Role.RELAY, places)

    assert [scope.actions for scope in producer] == [{2, 6}, {2, 6}]
    assert [scope.actions for scope in consumer] == [{3, 4, 7, 8}, {3, 4, 7, 8}]
    assert relay[0].actions == producer[0].actions | consumer[0].actions
    assert producer[1].namespace == (Match.exact(b"kvcs-1"), Match.exact(b"two"))
