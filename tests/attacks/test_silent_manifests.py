"""A relay announces a publication and never brings its manifest: it costs a few seconds.

Each silence is another one: no answer, an answer without data, a stream without an Object, an
Object that does not end. Then the next publication has its turn, or another peer that has the same
one; and where there is none, the error names the publication.
"""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from tests.attacks.liar import (
    DESCRIPTOR,
    LAYERS,
    SCOPE_KEY,
    TLS,
    TOKENS,
    URL,
    Liar,
    is_genuine,
)
from tests.attacks.signed_copy import TRUST, attack, genuine
from tests.attacks.test_crowds_of_publications import fetch, longer

from kvcs.cli._keys import Member
from kvcs.cli._publication import read_manifest
from kvcs.client import Consumer, ConsumerConfig
from kvcs.endpoint.connect import connect
from kvcs.endpoint.serve import ServeConfig, serve
from kvcs.errors import RequestTimedOut
from kvcs.keyring import KeyRing
from kvcs.kv import MANIFEST, SIGNED_MANIFEST
from kvcs.moqt.session import events as ev
from kvcs.testing import MemoryNetwork, run

WAIT = ConsumerConfig().manifest_wait
NAMES = (MANIFEST, SIGNED_MANIFEST)


def nothing(liar, connection, event, objects):
    """No answer at all."""


def nothing_behind_the_answer(liar, connection, event, objects):
    """SUBSCRIBE_OK or FETCH_OK, and no data."""
    largest = max(obj.location for obj in objects)
    if isinstance(event, ev.SubscribeReceived):
        liar.accept_subscribe(connection, event, largest)
    else:
        liar.accept_fetch(connection, event, largest)


def nothing_on_the_stream(liar, connection, event, objects):
    """A stream that neither brings an Object nor ends."""
    nothing_behind_the_answer(liar, connection, event, objects)
    liar.fetch_stream(connection, event.request_id, [], finish=False)


def an_octet_a_second(liar, connection, event, objects):
    """A version that arrives, for hours."""
    nothing_behind_the_answer(liar, connection, event, objects)
    session, version = connection.session, objects[-1]
    stream_id = liar.fetch_stream(connection, event.request_id, [], finish=False)
    begun = version._replace(payload=b"")
    session.begin_object(stream_id, begun, len(version.payload), now=connection.now)

    def more(number):
        if session.is_open(stream_id):
            octet = version.payload[number : number + 1]
            session.send_payload(stream_id, octet, now=connection.now)
            connection.wake()
            asyncio.get_running_loop().call_later(1.0, more, number + 1)

    more(0)


def refused_and_nothing(liar, connection, event, _):
    """What cannot be subscribed to is fetched, and FETCH is not answered."""
    if isinstance(event, ev.SubscribeReceived):
        liar.reject(connection, event)


SILENCES = pytest.mark.parametrize(
    "silence",
    [
        nothing,
        nothing_behind_the_answer,
        nothing_on_the_stream,
        an_octet_a_second,
        refused_and_nothing,
    ],
    ids=lambda silence: silence.__name__,
)


def silent(liar, silence, *copies):
    """Have the manifests of some copies, or of all, never come."""
    copies = copies or liar.copies
    namespaces = [copy.namespace for copy in copies]

    def lie(liar, connection, event, objects):
        if event.track.namespace in namespaces:
            silence(liar, connection, event, objects or copies[0].tracks[SIGNED_MANIFEST])
        elif isinstance(event, ev.SubscribeReceived):
            Liar.answer_subscribe(liar, connection, event, objects)
        else:
            Liar.answer_fetch(liar, connection, event, objects)

    for kind in (ev.SubscribeReceived, ev.FetchReceived):
        liar.lying(kind, lie, NAMES)
    return liar


@SILENCES
def test_a_retrieval_does_not_wait_for_its_deadline_and_names_the_publication(silence):
    copy = genuine()

    outcome = attack(silent(Liar(copy), silence), timeout=300.0)

    assert isinstance(outcome.error, RequestTimedOut)
    assert copy.name.short_id in str(outcome.error)
    assert f"within {WAIT:g} s" in str(outcome.error)
    assert WAIT <= outcome.seconds < WAIT + 1


def test_a_short_retrieval_waits_for_half_of_its_time():
    outcome = attack(silent(Liar(genuine()), nothing), timeout=4.0)

    assert isinstance(outcome.error, RequestTimedOut)
    assert 2.0 <= outcome.seconds < 2.5


@SILENCES
def test_the_next_publication_has_its_turn(silence, capsys):
    first, second = genuine(b"a" * 16), genuine(b"b" * 16)

    run(fetch(silent(Liar(first, second), silence, first)))

    taken = json.loads(capsys.readouterr().out)
    assert taken["publication_id"] == second.name.publication_id.hex()


def test_publications_of_a_shorter_prefix_have_their_turn(capsys):
    bogus, real = longer(), genuine(b"q" * 16)

    run(fetch(silent(Liar(bogus, real), nothing, bogus)))

    assert json.loads(capsys.readouterr().out)["publication_id"] == real.name.publication_id.hex()


def test_where_nobody_else_has_any_the_command_says_which_one_it_was():
    bogus = longer()

    with pytest.raises(RequestTimedOut, match=bogus.name.short_id):
        run(fetch(silent(Liar(bogus), nothing)))


async def from_two_peers(first, second):
    """Retrieve from two peers that have the publication, or another one that the first has."""
    network, layers = MemoryNetwork(), 0
    async with AsyncExitStack() as stack:
        peers = []
        for port, liar in enumerate((first, second), 4433):
            server = serve(
                "localhost", port, liar.attach, config=ServeConfig(tls=TLS), transport=network
            )
            await stack.enter_async_context(server)
            url = URL.replace("4433", str(port))
            peers.append(await stack.enter_async_context(connect(url, transport=network)))
        consumer = Consumer(
            peers[0],
            scope_key=SCOPE_KEY,
            descriptor=DESCRIPTOR,
            config=TRUST,
            others=peers[1:],
        )
        candidates = [consumer.candidate(copy.name, TOKENS) for copy in first.copies]
        async with consumer.retrieve(*candidates, timeout=60.0) as retrieval:
            async for layer in retrieval:
                layers += is_genuine(layer)
    return layers, retrieval.verdict.complete


def test_another_peer_that_has_the_same_publication_has_its_turn():
    copy = genuine()

    assert run(from_two_peers(silent(Liar(copy), nothing), Liar(copy))) == (LAYERS, True)


def test_no_other_publication_is_taken_that_is_not_the_same_by_its_own_word():
    first, other = genuine(b"a" * 16), genuine(b"b" * 16)
    one, two = Liar(first, other), Liar(first)

    with pytest.raises(RequestTimedOut, match=first.name.short_id):
        run(from_two_peers(silent(one, nothing, first), silent(two, nothing)))
    asked = {event.track.namespace for event in one.asked}
    assert asked == {first.namespace, other.namespace}


def test_an_exact_publication_is_not_waited_for_longer():
    """What `kvcs fetch URL#kvcs:ID` and `kvcs inspect` ask first."""
    copy = genuine()

    async def scenario():
        network = MemoryNetwork()
        liar = silent(Liar(copy), nothing)
        async with liar.open(network), connect(URL, transport=network) as connection:
            begun = connection.now
            with pytest.raises(RequestTimedOut, match=copy.name.short_id):
                await read_manifest(connection, copy.name, Member(SCOPE_KEY, KeyRing()))
            return connection.now - begun

    assert run(scenario()) == pytest.approx(WAIT, abs=0.5)
