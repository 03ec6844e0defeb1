"""What an operator sees of a relay while it works, loses its parent, and ends."""

import asyncio
import logging

import pytest
from tests.sim.forest import A, B, consume, produce, publisher, relay, settled, url

from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.errors import ConnectFailed
from kvcs.moqt import Token
from kvcs.names import TrackNamespace
from kvcs.relay import RelayLimits
from kvcs.testing import run

SECRET = b"let-me-in-5c5c5c5c"


def now():
    return asyncio.get_running_loop().time()


def test_sessions_and_arrivals_are_reported_while_they_are_there(world):
    async def scenario():
        here = world()
        async with relay(here.network, A) as it:
            async with (
                publisher(here, A) as publishing,
                publishing.publication(here.tokens) as publication,
            ):
                await produce(here, publication)
                await consume(here, A)
                *_, session = it.reporter.sessions(10, now=now())
                page = it.reporter.namespaces(10, now=now())
                namespace = TrackNamespace.parse(page.shown[0].namespace)
                tracks = list(it.reporter.tracks(namespace, 10))
            await asyncio.sleep(1)
            after = it.reporter.sessions(10, now=now())
        return session, page, tracks, after

    session, page, tracks, after = run(scenario())

    assert session.implementation == "kvcs"
    assert session.namespaces == 1
    assert session.bytes_in > 1000
    assert session.behind == 0.0
    assert after == ()
    assert (page.total, page.shown[0].publishers) == (1, 1)
    whole = [track.arrival for track in tracks if "raw" in track.name]
    assert len(whole) == 2
    assert all(set("".join(picture.columns)) <= {"9", "-"} for picture in whole)


def test_parent_in_use_and_parent_that_failed_are_told_apart(world):
    async def scenario():
        here = world()
        async with relay(here.network, B, A) as child:
            await asyncio.sleep(2)
            without = child.upstreams()
            async with relay(here.network, A):
                await settled(child)
                with_parent = child.upstreams()
                is_listed = child.reporter.sessions(10, now=now())
            await asyncio.sleep(5)
            lost = child.upstreams()
        return without, with_parent, lost, is_listed

    (without,), (used,), (lost,), sessions = run(scenario())

    assert (without.url, without.is_used) == (url(A), False)
    assert "cannot connect" in without.error
    assert (used.is_used, used.error) == (True, "")
    assert not lost.is_used
    assert lost.error
    assert len(sessions) == 1


def test_relay_is_open_until_it_drains(world):
    async def scenario():
        here = world()
        async with relay(here.network, A) as it:
            states = [(it.is_open, it.is_draining)]
            async with connect(url(A), transport=here.network):
                draining = asyncio.create_task(it.drain(2.0))
                await asyncio.sleep(0.1)
                states.append((it.is_open, it.is_draining))
                await draining
        return [*states, (it.is_open, it.is_draining)]

    assert run(scenario()) == [(True, False), (False, True), (False, True)]


def test_log_has_no_token_of_anybody_at_any_level(world, caplog):
    caplog.set_level(logging.DEBUG, "kvcs")

    async def scenario():
        here = world()
        config = ConnectConfig(tokens=(Token(value=SECRET),))
        async with (
            relay(here.network, A),
            connect(url(A), config, transport=here.network) as connection,
        ):
            await connection.ready()
            await asyncio.sleep(1)

    run(scenario())

    text = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "session-opened" in text
    assert SECRET.decode() not in text
    assert SECRET.hex() not in text


@pytest.mark.parametrize(
    ("limits", "is_full_for_others"),
    [
        (RelayLimits(max_sessions=2), True),
        (RelayLimits(max_sessions_per_address=2), False),
    ],
    ids=["in all", "of one address"],
)
def test_sessions_beyond_a_limit_of_the_relay_are_refused(world, limits, is_full_for_others):
    async def attempt(network):
        try:
            async with connect("moqt://relay.test:4433/", transport=network):
                return True
        except ConnectFailed:
            return False

    async def scenario():
        network = world().network
        network.client_host = "192.0.2.1"
        async with relay(network, A, host="0.0.0.0", limits=limits):
            async with (
                connect("moqt://relay.test:4433/", transport=network),
                connect("moqt://relay.test:4433/", transport=network),
            ):
                third = await attempt(network)
                network.client_host = "192.0.2.7"
                other = await attempt(network)
                network.client_host = "192.0.2.1"
            await asyncio.sleep(1)
            return third, other, await attempt(network)

    third, other, later = run(scenario())

    assert (third, other, later) == (False, not is_full_for_others, True)
