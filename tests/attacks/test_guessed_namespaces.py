"""A stranger guesses namespaces, and learns of none whether it is there."""

import pytest
from tests.attacks.guarded import (
    NAMESPACE,
    NOWHERE,
    OTHER_SCOPE,
    READS,
    UNAUTHORIZED,
    WRITES,
    Guarded,
)

from kvcs.c4m import Role
from kvcs.names import TrackNamespace


@pytest.mark.parametrize("kind", READS)
@pytest.mark.parametrize("wait_ms", [None, 5000])
def test_what_exists_and_what_does_not_are_refused_alike_and_at_once(kind, wait_ms):
    guarded = Guarded()
    gone = TrackNamespace((*NOWHERE.fields[:-1], b"gone"))
    tokens = (guarded.token(Role.CONSUMER, scope=OTHER_SCOPE),)
    more = {"rendezvous_timeout_ms": wait_ms} if wait_ms and kind == "subscribe" else {}

    answers = {
        guarded.answer(kind, *presented, namespace=namespace, **more)
        for namespace in (NAMESPACE, NOWHERE, gone)
        for presented in ((), tokens)
    }

    # One answer, without a moment between question and answer in which anything was looked up.
    assert answers == {(UNAUTHORIZED, "", None, None)}
    guarded.assert_untouched()


@pytest.mark.parametrize("kind", [*READS, *WRITES])
def test_nothing_is_looked_up_for_a_stranger(kind, monkeypatch):
    guarded = Guarded()
    core, token = guarded.world.core, guarded.token(Role.RELAY)

    def look_up(*_, **__):
        raise AssertionError("looked up")

    monkeypatch.setattr(type(core._room), "obtain", look_up)
    monkeypatch.setattr(core, "tracks_below", look_up)
    monkeypatch.setattr(core.discovery, "receive", look_up)
    for name in ("publish", "publishers", "subscribe", "advertisements"):
        monkeypatch.setattr(type(core.discovery.namespaces), name, look_up)

    assert guarded.code(kind) == UNAUTHORIZED
    assert guarded.code(kind, namespace=NOWHERE) == UNAUTHORIZED
    # The control: what is allowed is looked up, and where nothing is as well.
    for namespace in (NAMESPACE, NOWHERE):
        with pytest.raises(AssertionError, match="looked up"):
            guarded.ask(kind, token, namespace=namespace)


def test_a_prefix_that_is_too_short_lists_nothing():
    guarded = Guarded()
    token = guarded.token(Role.CONSUMER)

    for fields in ((), (b"kvcs-1",)):
        prefix = TrackNamespace(fields)
        assert guarded.code("subscribe_namespace", token, namespace=prefix) == UNAUTHORIZED
        assert guarded.code("subscribe_tracks", token, namespace=prefix) == UNAUTHORIZED
