"""Ever new tokens that no key of the relay made: each costs a verification, and is free to make.

A session has some verified, and then only so many a second; the rest is refused unseen. Tokens that
are known, those of other sessions, and what is decided again without being asked go on as before.
"""

import cbor2
import pytest
from tests.attacks.guarded import NAMESPACE, SCOPE, UNAUTHORIZED, Guarded, raw
from tests.unit.relay.world import BLOCKS, whole

from kvcs.c4m import Role, TokenVerifier
from kvcs.cose import Algorithm, SigningKey
from kvcs.errors import RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import TrackNamespace
from kvcs.relay import RelayLimits
from kvcs.relay.admission import Admission
from kvcs.relay.ancestry import Ancestry

EXCESSIVE_LOAD = RequestErrorCode.EXCESSIVE_LOAD
BURST = RelayLimits().max_useless_token_burst
RATE = RelayLimits().max_useless_token_rate
FORGER = SigningKey(b"signer", Algorithm.ES256, bytes(31) + b"\x09")


@pytest.fixture
def guarded():
    return Guarded()


@pytest.fixture
def opened(monkeypatch):
    """The tokens that are verified."""
    opened = []
    verify = TokenVerifier.open

    def counted(verifier, token):
        opened.append(token)
        return verify(verifier, token)

    monkeypatch.setattr(TokenVerifier, "open", counted)
    return opened


def useless(guarded, number):
    """A token that says what a good one says, and that another key made under the same name."""
    return guarded.token(Role.CONSUMER, 1000.0 + number, key=FORGER)


@pytest.mark.parametrize("kind", ["fetch", "subscribe", "subscribe_namespace", "publish"])
def test_a_session_has_as_many_verified_as_the_limit_and_then_at_its_rate(guarded, opened, kind):
    for number in range(2 * BURST):
        answer = guarded.answer(kind, useless(guarded, number))
        known = (UNAUTHORIZED, "", None, None)
        assert answer == (known if number <= BURST else (EXCESSIVE_LOAD, "", 1.0, None))
    assert len(opened) == BURST + 1

    guarded.world.pass_time(2.0)
    for number in range(BURST):
        guarded.code(kind, useless(guarded, 10_000 + number))

    assert len(opened) == BURST + 1 + 2 * RATE
    guarded.assert_untouched()


def test_ones_that_no_one_could_read_count_too(guarded, opened):
    for number in range(2 * BURST):
        guarded.code("fetch", raw(b"\xd2" + number.to_bytes(2)))

    assert len(opened) == BURST + 1


def test_useless_tokens_beside_a_good_one_count_and_the_good_one_does_not_need_them(
    guarded, opened
):
    good, member = guarded.token(Role.CONSUMER), guarded.world.client()
    for number in range(BURST):
        some = [useless(guarded, 10 * number + each) for each in range(7)]
        request_id = guarded.ask("fetch", good, *some, client=member)
        assert member.objects(request_id)[:BLOCKS] == whole(1)

    assert len(opened) == 1 + BURST + 1
    assert guarded.code("fetch", guarded.token(Role.CONSUMER, 999.0), client=member) == (
        EXCESSIVE_LOAD
    )
    guarded.world.pass_time(1.0)
    request_id = guarded.ask("fetch", guarded.token(Role.CONSUMER, 999.0), client=member)
    assert member.objects(request_id)[:BLOCKS] == whole(1)


def rewritten(token, number):
    """A good token with a header that nobody signs: as good as before, and made without a key."""
    protected, headers, payload, proof = cbor2.loads(token.value).value
    tag = token.value[0] & 0x1F
    more = [protected, {**headers, 1000 + number: b""}, payload, proof]
    return raw(cbor2.dumps(cbor2.CBORTag(tag, more)))


@pytest.mark.parametrize("name", ["mac", "signer"])
def test_a_good_token_written_in_ever_new_ways_counts_too(guarded, opened, name):
    good = guarded.token(Role.CONSUMER, key=getattr(guarded, name))
    for number in range(2 * BURST):
        request_id = guarded.ask("track_status", rewritten(good, number))
        refusals = guarded.stranger.of(request_id, ev.RequestRejected)
        is_in_time = number <= BURST + 1
        assert [refusal.code for refusal in refusals] == ([] if is_in_time else [EXCESSIVE_LOAD])

    assert len(opened) == 1 + BURST + 1
    other = guarded.ask("fetch", guarded.token(Role.CONSUMER, 999.0), client=guarded.world.client())
    assert guarded.world.clients[-1].objects(other)[:BLOCKS] == whole(1)
    guarded.assert_untouched()


def test_several_tokens_that_say_the_same_are_several(guarded, opened):
    """Issuers that sign make another one each time, and clocks have seconds."""
    for _ in range(3 * BURST):
        token = guarded.token(Role.CONSUMER, key=guarded.signer)
        assert not guarded.stranger.of(guarded.ask("track_status", token), ev.RequestRejected)

    assert len(opened) == 3 * BURST


def test_updates_count_like_requests(guarded, opened):
    member = guarded.world.client()
    good = guarded.token(Role.CONSUMER)
    opened.clear()
    for number in range(2 * BURST):
        asked = Parameters(
            authorization_tokens=(good,), location_filter=LocationFilter.next_object()
        )
        request_id = member.subscribe(asked)
        update = Parameters(authorization_tokens=(useless(guarded, number),))
        member.send(member.session.update, request_id, update)
        (refused,) = member.of(request_id, ev.UpdateRejected)
        assert refused.code == (UNAUTHORIZED if number <= BURST else EXCESSIVE_LOAD)

    assert len(opened) == 1 + BURST + 1


def test_one_that_is_known_to_be_useless_costs_nothing_again(guarded, opened):
    token = useless(guarded, 0)

    for _ in range(10 * BURST):
        assert guarded.code("fetch", token) == UNAUTHORIZED

    assert len(opened) == 1


def test_ever_new_good_tokens_are_all_verified(guarded, opened):
    member = guarded.world.client()
    for number in range(3 * BURST):
        token = guarded.token(Role.CONSUMER, 500.0 + number)
        request_id = guarded.ask("fetch", token, client=member)
        assert member.objects(request_id)[:BLOCKS] == whole(1)

    assert len(opened) == 3 * BURST


def test_what_runs_is_decided_again_whatever_the_session_did(guarded):
    """A key is withdrawn: everything is verified again, also for who has nothing left."""
    member, runs = guarded.world.client(), []
    for number in range(2 * BURST):
        key = guarded.signer if number % 2 else guarded.mac
        token = guarded.token(Role.CONSUMER, 500.0 + number, key=key)
        asked = Parameters(
            authorization_tokens=(token,), location_filter=LocationFilter.next_object()
        )
        runs.append(member.subscribe(asked))
    for number in range(2 * BURST):
        guarded.code("fetch", useless(guarded, number), client=member)

    guarded.withdraw(guarded.signer.public)

    active = [member.session.is_active(request_id) for request_id in runs]
    assert active == [True, False] * BURST
    assert guarded.ended == {"UNAUTHORIZED": BURST}


@pytest.mark.parametrize("kind", ["subscribe", "subscribe_tracks", "subscribe_namespace"])
def test_what_comes_beside_a_good_token_is_not_verified_when_that_is_looked_at(
    guarded, opened, kind
):
    """In a review nobody is asked to wait, so that nothing bounds what would be verified."""
    good, member = guarded.token(Role.CONSUMER), guarded.world.client()
    ways = [rewritten(good, number) for number in range(3)]
    some = [useless(guarded, number) for number in range(4)]
    guarded.ask(kind, *some, good, *ways, client=member)
    (access,) = member.peer.granted.values()
    assert access.tokens == member.peer.presented == (good,)
    guarded.policy.replace_keys((guarded.mac, guarded.signer.public))
    opened.clear()

    guarded.world.core.admission.review.everything(now=guarded.world.now)
    guarded.world.pass_time(61.0)

    assert [each for each in opened if each != guarded.publisher.peer.tokens[0].value] == [
        good.value
    ]


def test_a_token_for_something_else_is_kept_beside_the_one_that_opens(guarded):
    """Of what is below a prefix it may open some."""
    good, other = guarded.token(Role.CONSUMER), guarded.token(Role.PRODUCER)
    member = guarded.world.client()
    guarded.ask("subscribe_tracks", other, good, client=member)

    (access,) = member.peer.granted.values()
    assert access.tokens == (other, good)


def test_an_update_forgets_what_comes_beside_a_good_token_too(guarded):
    good, member = guarded.token(Role.CONSUMER), guarded.world.client()
    request_id = member.subscribe(Parameters(authorization_tokens=(good,)))
    renewed = guarded.token(Role.CONSUMER, 2000.0)
    update = Parameters(authorization_tokens=(useless(guarded, 1), renewed))
    member.send(member.session.update, request_id, update)

    (access,) = member.peer.granted.values()
    assert access.tokens == (renewed,)


def test_what_came_in_the_setup_beside_a_good_token_is_not_verified_again_either(guarded, opened):
    good, member = guarded.token(Role.CONSUMER), guarded.world.client()
    member.peer.tokens = (*(useless(guarded, number) for number in range(4)), good)
    guarded.ask("subscribe", client=member)
    guarded.ask("subscribe_namespace", namespace=SCOPE, client=member)
    guarded.policy.replace_keys((guarded.mac, guarded.signer.public))
    opened.clear()

    guarded.world.core.admission.review.everything(now=guarded.world.now)
    name = TrackNamespace((*NAMESPACE.fields[:-1], b"other"))
    guarded.ask("publish_namespace", namespace=name, client=guarded.publisher)

    assert [each for each in opened if each != guarded.publisher.peer.tokens[0].value] == [
        good.value
    ]
    assert len(member.peer.granted) == 2


def test_who_says_that_it_is_a_relay_has_no_more_verified_than_others(guarded, opened):
    member, liar = guarded.world.client(), guarded.stranger
    liar.peer.tokens = tuple(useless(guarded, number) for number in range(8))
    liar.peer.ancestry = Ancestry(bytes(16))
    guarded.world.core.discovery.interest.attach(liar.peer, now=guarded.world.now)
    opened.clear()
    good = guarded.token(Role.CONSUMER)
    for number in range(3 * BURST):
        guarded.policy.replace_keys((guarded.mac, guarded.signer.public))
        name = TrackNamespace((*SCOPE.fields, b"%d" % number))
        guarded.ask("subscribe_tracks", good, namespace=name, client=member)

    assert len([each for each in opened if each != good.value]) <= BURST + 1
    assert liar.received == []


def test_who_says_that_it_is_a_relay_and_shows_tokens_in_turn_has_little_looked_through(
    guarded, monkeypatch
):
    """A relay is told what others want and it may publish, which each of its tokens could allow."""
    looks, wishes = [], 20
    reader, liar = guarded.token(Role.CONSUMER), guarded.stranger
    member = guarded.world.client()
    for number in range(wishes):
        name = TrackNamespace((*SCOPE.fields, b"%d" % number))
        guarded.ask("subscribe_tracks", reader, namespace=name, client=member)
    liar.peer.ancestry = Ancestry(bytes(16))
    interest = guarded.world.core.discovery.interest
    interest.attach(liar.peer, now=guarded.world.now)
    may_offer = Admission.may_offer
    monkeypatch.setattr(
        Admission, "may_offer", lambda *given: bool(looks.append(given)) or may_offer(*given)
    )

    for number in range(100):
        guarded.ask("track_status", reader if number % 2 else guarded.token(Role.CONSUMER, 900.0))
    at_once = len(looks)
    guarded.world.pass_time(1.5)
    later = len(looks) - at_once
    guarded.ask("track_status", guarded.token(Role.RELAY))

    assert at_once == later == wishes
    assert any(isinstance(event, ev.SubscribeTracksReceived) for event in liar.events)
