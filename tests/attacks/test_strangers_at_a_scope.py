"""A stranger announces and pushes under a scope that is not its own."""

import pytest
from tests.attacks.guarded import (
    NAMESPACE,
    OTHER_SCOPE,
    SCOPE,
    UNAUTHORIZED,
    WRITES,
    Guarded,
)
from tests.unit.relay.world import WHOLE

from kvcs.c4m import Role
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import TrackNamespace


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize(
    "namespace",
    [NAMESPACE, TrackNamespace((*SCOPE.fields, b"mine")), SCOPE, TrackNamespace((b"kvcs-1",))],
)
def test_nothing_is_published_under_a_scope_without_a_token_for_it(kind, namespace):
    guarded = Guarded()
    tokens = {
        "none": (),
        "consumer": (guarded.token(Role.CONSUMER),),
        "elsewhere": (guarded.token(Role.PRODUCER, scope=OTHER_SCOPE),),
    }

    codes = {guarded.code(kind, *each, namespace=namespace) for each in tokens.values()}

    assert codes == {UNAUTHORIZED}
    assert guarded.refused == {"UNAUTHORIZED": 3}
    guarded.assert_untouched()


def test_no_subscriber_is_led_to_a_stranger():
    guarded = Guarded()
    guarded.stranger.add_groups(0, 1, 2)  # what it would serve
    guarded.ask("publish_namespace")
    guarded.publisher.lose()
    member = guarded.world.client()
    parameters = Parameters(
        location_filter=WHOLE.location_filter,
        fill=WHOLE.fill,
        authorization_tokens=(guarded.token(Role.CONSUMER),),
    )

    member.subscribe(parameters)

    assert guarded.stranger.asked(ev.SubscribeReceived) == []
    assert guarded.stranger.asked(ev.FetchReceived) == []
