"""Publisher, relays and consumers with tokens that end while they work."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.sim.forest import LAYERS, SCOPE_KEY, A, B, produce, relay, settled, url

from kvcs.c4m import TOKEN_TYPE, Claims, Role, TokenConfig, mint, role_scopes
from kvcs.client import Consumer, MissingReason, Publisher
from kvcs.cose import MacKey
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.endpoint.reconnect import PersistentConnection
from kvcs.errors import RequestErrorCode, RequestRejected
from kvcs.kv.identity import KVSP_PROVISIONAL
from kvcs.moqt.wire.token import Token
from kvcs.names import TrackNamespace
from kvcs.relay import TokenPolicy
from kvcs.testing import run

KEY = MacKey(b"issuer", bytes(32))
EPOCH = 1_700_000_000.0
SCOPE = TrackNamespace((b"kvcs-1", KVSP_PROVISIONAL.scope_id(SCOPE_KEY)))
OTHER = TrackNamespace((b"kvcs-1", b"another scope   "))


def wall():
    return EPOCH + asyncio.get_running_loop().time()


def policy():
    return TokenPolicy([KEY], TokenConfig(leeway=0.0), clock=wall)


def tokens(role, ttl=1e6, *, scope=SCOPE):
    claims = Claims(scopes=role_scopes(role, [scope]), expires_at=wall() + ttl)
    return (Token.use_value(mint(claims, KEY), token_type=TOKEN_TYPE),)


@asynccontextmanager
async def consumer(here, port, presented):
    config = ConnectConfig(tokens=presented)
    async with connect(url(port), config, transport=here.network) as connection:
        yield Consumer(connection, scope_key=SCOPE_KEY, descriptor=here.descriptor)


@asynccontextmanager
async def publisher(here, port, presented):
    source = Publisher(scope_key=SCOPE_KEY, descriptor=here.descriptor)
    config = ConnectConfig(tokens=presented)
    async with PersistentConnection(
        url(port), config, transport=here.network, on_connected=source.attach
    ) as connection:
        await connection.connection(5.0)
        yield source, connection


async def take(here, port, presented, **options):
    async with consumer(here, port, presented) as it:
        (candidate, *_) = await it.discover(here.tokens)
        async with it.retrieve(candidate, **{"timeout": 600, **options}) as retrieval:
            async for layer in retrieval:
                assert here.is_equal(layer)
            return retrieval.verdict


def assert_whole(verdict):
    assert verdict.complete
    assert verdict.verified == 2 * LAYERS * 5


async def look(here, port, *times):
    """How many publications are found after so many seconds."""
    found = []
    begun = asyncio.get_running_loop().time()
    for time in times:
        await asyncio.sleep(begun + time - asyncio.get_running_loop().time())
        async with consumer(here, port, ()) as it:
            found.append(len(await it.discover(here.tokens)))
    return found


async def refusal(here, port, presented):
    async with consumer(here, port, presented) as it:
        with pytest.raises(RequestRejected) as refused:
            await it.discover(here.tokens)
    return refused.value.code


def test_members_of_a_scope_publish_and_take_and_nobody_else_does(world):
    async def scenario():
        here = world()
        async with (
            relay(here.network, A, authorize=policy()),
            publisher(here, A, tokens(Role.PRODUCER)) as (source, _),
            source.publication(here.tokens) as publication,
        ):
            await produce(here, publication)
            verdict = await take(here, A, tokens(Role.CONSUMER))
            refused = [
                await refusal(here, A, presented)
                for presented in (
                    (),
                    tokens(Role.PRODUCER),
                    tokens(Role.CONSUMER, scope=OTHER),
                    tokens(Role.CONSUMER, ttl=-1.0),
                )
            ]
        return verdict, refused

    verdict, refused = run(scenario())

    assert_whole(verdict)
    assert refused == [
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.EXPIRED_AUTH_TOKEN,
    ]


def test_a_publisher_and_a_consumer_renew_while_they_run(world):
    async def scenario():
        here = world()
        async with (
            relay(here.network, A, authorize=policy()) as it,
            publisher(here, A, tokens(Role.PRODUCER, 20.0)) as (source, sending),
            source.publication(here.tokens) as publication,
            connect(
                url(A), ConnectConfig(tokens=tokens(Role.CONSUMER, 20.0)), transport=here.network
            ) as taking,
        ):
            taker = Consumer(taking, scope_key=SCOPE_KEY, descriptor=here.descriptor)
            segment = await publication.add_segment()
            (candidate,) = await taker.discover(here.tokens)
            async with taker.retrieve(candidate, timeout=600) as retrieval:
                producing = asyncio.create_task(produce(here, publication, segment, pace=10.0))
                for _ in range(4):
                    await asyncio.sleep(15)
                    sending.authorize(tokens(Role.PRODUCER, 20.0))
                    taking.authorize(tokens(Role.CONSUMER, 20.0))
                async for layer in retrieval:
                    assert here.is_equal(layer)
                await producing
            late = await take(here, A, tokens(Role.CONSUMER))
            return retrieval.verdict, late, it.statistics().grants_ended

    verdict, late, ended = run(scenario())

    assert_whole(verdict)
    assert_whole(late)
    assert ended == {}


def test_a_consumer_whose_token_ends_is_told_what_is_missing_and_why(world):
    async def scenario():
        here = world()
        async with (
            relay(here.network, A, authorize=policy()),
            publisher(here, A, tokens(Role.PRODUCER)) as (source, _),
            source.publication(here.tokens) as publication,
        ):
            segment = await publication.add_segment()
            async with asyncio.TaskGroup() as group:
                group.create_task(produce(here, publication, segment, pace=10.0))
                taking = group.create_task(
                    take(here, A, tokens(Role.CONSUMER, 25.0), idle_timeout=15.0)
                )
        return taking.result()

    verdict = run(scenario())

    assert not verdict.complete
    assert verdict.verified == 2 * 2 * 5  # the layers of the first 25 seconds
    assert {missing.reason for missing in verdict.missing} == {MissingReason.REFUSED}


def test_a_publisher_that_renews_too_late_is_announced_again(world):
    async def scenario():
        here = world()
        async with (
            relay(here.network, A, authorize=policy()) as it,
            publisher(here, A, tokens(Role.PRODUCER, 10.0)) as (source, sending),
            source.publication(here.tokens) as publication,
        ):
            await produce(here, publication)
            await asyncio.sleep(20)
            async with consumer(here, A, tokens(Role.CONSUMER)) as taker:
                before = await taker.discover(here.tokens)
            sending.authorize(tokens(Role.PRODUCER, 1000.0))
            await asyncio.sleep(1)
            return before, await take(here, A, tokens(Role.CONSUMER)), it.statistics()

    before, verdict, statistics = run(scenario())

    assert before == []
    assert_whole(verdict)
    assert statistics.grants_ended["EXPIRED_AUTH_TOKEN"] >= 1


async def published_before(here, stack):
    """Publish through a relay that goes away; return the publisher's connection, which stays."""
    async with relay(here.network, A, authorize=policy()):
        came = publisher(here, A, tokens(Role.PRODUCER))
        source, sending = await stack.enter_async_context(came)
        publication = await stack.enter_async_context(source.publication(here.tokens))
        await produce(here, publication)
    return sending


def test_a_publisher_that_comes_back_with_a_wrong_token_is_announced_with_the_next_one(
    world, caplog
):
    async def scenario():
        here = world()
        async with AsyncExitStack() as stack:
            sending = await published_before(here, stack)
            sending.authorize(tokens(Role.CONSUMER))
            async with relay(here.network, A, authorize=policy()):
                await asyncio.sleep(60)
                async with consumer(here, A, tokens(Role.CONSUMER)) as taker:
                    before = await taker.discover(here.tokens)
                sending.authorize(tokens(Role.PRODUCER))
                await asyncio.sleep(1)
                return before, await take(here, A, tokens(Role.CONSUMER))

    before, verdict = run(scenario())

    assert before == []
    assert_whole(verdict)
    assert "no longer announced: the relay does not allow it" in caplog.text


def test_a_publisher_that_comes_back_and_is_renewed_while_it_is_asked_is_announced(world):
    async def scenario():
        here = world()
        async with AsyncExitStack() as stack:
            sending = await published_before(here, stack)
            sending.authorize(tokens(Role.CONSUMER))
            await asyncio.sleep(1)
            async with relay(here.network, A, authorize=policy()):
                async with asyncio.timeout(60):
                    await sending.connection(60.0)
                sending.authorize(tokens(Role.PRODUCER))
                await asyncio.sleep(60)
                return await take(here, A, tokens(Role.CONSUMER))

    assert_whole(run(scenario()))


def test_a_child_renews_what_it_has_of_its_parent(world):
    async def scenario():
        here = world()
        async with (
            relay(here.network, A, authorize=policy()) as parent,
            relay(here.network, B, A, upstream_tokens=tokens(Role.RELAY, 20.0)) as child,
            publisher(here, A, tokens(Role.PRODUCER)) as (source, _),
            source.publication(here.tokens) as publication,
        ):
            await settled(child)
            segment = await publication.add_segment()
            async with asyncio.TaskGroup() as group:
                group.create_task(produce(here, publication, segment, pace=10.0))
                taking = group.create_task(take(here, B, ()))
                for _ in range(4):
                    await asyncio.sleep(15)
                    child.authorize_upstream(tokens(Role.RELAY, 20.0))
            return taking.result(), parent.statistics().grants_ended

    verdict, ended = run(scenario())

    assert_whole(verdict)
    assert ended == {}


def test_a_child_that_renews_too_late_announces_again(world):
    async def scenario():
        here = world()
        async with (
            relay(here.network, A, authorize=policy()),
            relay(here.network, B, A, upstream_tokens=tokens(Role.RELAY, 20.0)) as child,
            publisher(here, B, ()) as (source, _),
            source.publication(here.tokens) as publication,
        ):
            await settled(child)
            await produce(here, publication)
            await asyncio.sleep(30)
            async with consumer(here, A, tokens(Role.CONSUMER)) as taker:
                before = await taker.discover(here.tokens)
            child.authorize_upstream(tokens(Role.RELAY, 1000.0))
            await asyncio.sleep(1)
            return before, await take(here, A, tokens(Role.CONSUMER))

    before, verdict = run(scenario())

    assert before == []
    assert_whole(verdict)


def test_a_child_that_renews_too_late_goes_on(world):
    async def scenario():
        here = world()
        async with (
            relay(here.network, A, authorize=policy()) as parent,
            relay(here.network, B, A, upstream_tokens=tokens(Role.RELAY, 20.0)) as child,
            publisher(here, A, tokens(Role.PRODUCER)) as (source, _),
            source.publication(here.tokens) as publication,
        ):
            await settled(child)
            segment = await publication.add_segment()
            async with asyncio.TaskGroup() as group:
                group.create_task(produce(here, publication, segment, pace=10.0))
                taking = group.create_task(take(here, B, ()))
                looking = group.create_task(look(here, B, 20.5, 30.0))
                await asyncio.sleep(24)
                child.authorize_upstream(tokens(Role.RELAY, 1000.0))
            return taking.result(), looking.result(), parent.statistics().grants_ended

    verdict, found, ended = run(scenario())

    assert_whole(verdict)
    assert found == [0, 1]
    assert ended["EXPIRED_AUTH_TOKEN"] >= 1
