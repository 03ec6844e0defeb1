import pytest
from tests.unit.relay.world import TRACK

from kvcs.errors import RequestErrorCode
from kvcs.moqt.session import events as ev
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.moqt.wire.request import Redirect
from kvcs.names import FullTrackName

ALL = LocationFilter.absolute_start(0, 0)
REDIRECT = Redirect("", FullTrackName(TRACK.namespace, b"elsewhere"))
KINDS = (ev.SubscribeReceived, ev.FetchReceived, ev.TrackStatusReceived)


def ask(consumer, kind):
    if kind is ev.SubscribeReceived:
        return consumer.subscribe()
    if kind is ev.FetchReceived:
        return consumer.fetch(ALL)
    return consumer.send(consumer.session.track_status, TRACK)


@pytest.mark.parametrize("kind", KINDS)
def test_redirect_of_a_publisher_is_passed_on(world, kind):
    publisher, consumer = world.publisher(), world.client()
    publisher.refusing[kind] = {"code": RequestErrorCode.REDIRECT, "redirect": REDIRECT}

    rejection = consumer.one(ask(consumer, kind), ev.RequestRejected)

    assert (rejection.code, rejection.redirect) == (RequestErrorCode.REDIRECT, REDIRECT)
    assert not publisher.link.session.is_closed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("code", "passed_on"),
    [
        (RequestErrorCode.DOES_NOT_EXIST, RequestErrorCode.DOES_NOT_EXIST),
        (RequestErrorCode.GOING_AWAY, RequestErrorCode.DOES_NOT_EXIST),
        (RequestErrorCode.TIMEOUT, RequestErrorCode.TIMEOUT),
        (RequestErrorCode.NOT_SUPPORTED, RequestErrorCode.NOT_SUPPORTED),
        (RequestErrorCode.EXCESSIVE_LOAD, RequestErrorCode.EXCESSIVE_LOAD),
        (RequestErrorCode.UNSUPPORTED_EXTENSION, RequestErrorCode.UNSUPPORTED_EXTENSION),
        (RequestErrorCode.UNAUTHORIZED, RequestErrorCode.INTERNAL_ERROR),
        (RequestErrorCode.EXPIRED_AUTH_TOKEN, RequestErrorCode.INTERNAL_ERROR),
        (RequestErrorCode.INVALID_FILTER, RequestErrorCode.INTERNAL_ERROR),
        (0x7F * 5 + 0x9D, RequestErrorCode.INTERNAL_ERROR),
    ],
)
def test_refusal_says_what_concerns_the_subscriber(world, kind, code, passed_on):
    publisher, consumer = world.publisher(), world.client()
    for refused in KINDS:
        publisher.refusing[refused] = {"code": code}

    assert consumer.rejection(ask(consumer, kind)) is passed_on


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_exist_is_refused_in_the_same_words_by_whoever_knows_it(world, kind):
    consumer = world.client()
    nobody = ask(consumer, kind)
    publisher = world.publisher()
    publisher.refusing[kind] = {"code": RequestErrorCode.DOES_NOT_EXIST, "reason": "never heard"}
    somebody = ask(consumer, kind)

    one, other = (consumer.one(r, ev.RequestRejected) for r in (nobody, somebody))

    assert (one.code, one.reason) == (other.code, other.reason)
    assert one.retry_after == other.retry_after
