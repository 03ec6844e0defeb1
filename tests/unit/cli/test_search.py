"""Which publication a person means, and waiting for it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from kvcs.cli._errors import ExitCode, exit_code, hint
from kvcs.cli._publication import ShortId, parse_fragment
from kvcs.cli._search import Announced, NotAppeared, NotListed, find, short_ids
from kvcs.client import Publisher
from kvcs.endpoint.connect import connect
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.errors import ConfigError, ConnectionLost
from kvcs.kv import PublicationId, PublicationName, ScopeKey
from kvcs.relay import Relay, RelayConfig, allow_all
from kvcs.testing import MemoryNetwork, run
from kvcs.transport.interface import ServerTls

URL = "moqt://localhost:4433/"
SCOPE_KEY = ScopeKey(bytes(32))
CACHE = load_cache(SAMPLE_CACHE)


def name(publication_id):
    return PublicationName(
        scope_id=bytes(16),
        compatibility_id=bytes(32),
        anchor_key=bytes(32),
        publication_id=PublicationId(bytes.fromhex(publication_id.ljust(32, "0"))),
    )


@asynccontextmanager
async def reader(*publication_ids, after=0.0):
    """A connection to a relay where publications with these IDs are announced after a time."""
    network = MemoryNetwork()
    config = RelayConfig(
        tls=ServerTls(certificate_file="", private_key_file=""), authorize=allow_all
    )
    left = [bytes.fromhex(text.ljust(32, "0")) for text in publication_ids]

    async def publish(origin):
        publisher = Publisher(
            origin,
            scope_key=SCOPE_KEY,
            descriptor=CACHE.descriptor,
            random_bytes=lambda _: left.pop(),
        )
        await asyncio.sleep(after)
        for _ in publication_ids:
            publication = await publisher.publication(CACHE.tokens).__aenter__()
            await publication.add_segment()

    async with (
        Relay(config, transport=network),
        connect(URL, transport=network) as origin,
        connect(URL, transport=network) as connection,
    ):
        publishing = asyncio.create_task(publish(origin))
        if not after:
            await publishing
        yield connection
        await publishing


def in_seconds(seconds):
    return asyncio.get_running_loop().time() + seconds


def found(reference, *publication_ids, after=0.0, wait=False, patience=10.0):
    """Return the Publication ID that is found."""

    async def scenario():
        async with reader(*publication_ids, after=after) as connection:
            deadline = in_seconds(patience)
            if isinstance(reference, str):
                what = ShortId(reference)
            else:
                async with Announced(connection, SCOPE_KEY, deadline=deadline) as announced:
                    await asyncio.sleep(after + 1)
                    (what,) = announced.matching()
            name = await find(connection, SCOPE_KEY, what, deadline=deadline, wait=wait)
            return name.publication_id.hex()

    return run(scenario())


def test_first_digits_name_the_publication():
    assert found("abcdef01", "0123456789", "abcdef0123").startswith("abcdef0123")


def test_all_digits_name_it_too():
    whole = "abcdef01" * 4

    assert found(whole, whole, "abcdef01") == whole


def test_unknown_digits_are_not_found():
    with pytest.raises(NotListed, match="begins with abcdef01 is known there") as caught:
        found("abcdef01", "0123456789")

    assert exit_code(caught.value) is ExitCode.NOT_FOUND
    assert "--wait" in hint(caught.value)


def test_digits_of_several_publications_are_refused_with_more_of_them():
    with pytest.raises(ConfigError, match="abcdef010, abcdef012 are all there"):
        found("abcdef01", "abcdef0123", "abcdef0102")


def test_publication_that_comes_later_is_waited_for():
    assert found("abcdef01", "abcdef0123", after=5.0, wait=True).startswith("abcdef0123")


def test_waiting_for_what_never_comes_ends_in_time():
    with pytest.raises(NotAppeared, match="did not appear within 3 s"):
        found("abcdef01", "0123456789", wait=True, patience=3.0)


def test_whole_name_is_waited_for():
    assert found(None, "abcdef0123", after=1.0, wait=True).startswith("abcdef0123")


def test_whole_name_is_taken_for_granted_without_waiting():
    async def scenario():
        async with reader() as connection:
            return await find(connection, SCOPE_KEY, name("ab"), deadline=in_seconds(1))

    assert run(scenario()) == name("ab")


def test_session_that_is_lost_ends_the_waiting():
    async def scenario():
        async with reader() as connection:
            waiting = asyncio.create_task(
                find(connection, SCOPE_KEY, ShortId("abcdef01"), deadline=in_seconds(60), wait=True)
            )
            await asyncio.sleep(1)
            connection.abort(0, "gone")
            await waiting

    with pytest.raises(ConnectionLost):
        run(scenario())


def test_shown_digits_are_as_many_as_tell_publications_apart():
    one, two, three = name("abcdef01"), name("abcdef01ff"), name("0123")

    assert short_ids([one]) == {one: "abcdef01"}
    assert short_ids([one, two, three]) == {one: "abcdef010", two: "abcdef01f", three: "012300000"}
    assert short_ids([one, one]) == {one: "abcdef01"}
    assert short_ids([]) == {}


@pytest.mark.parametrize("digits", ["01234567", "0123456789abcdef" * 2])
def test_fragment_of_digits_is_a_short_id(digits):
    assert parse_fragment(f"moqt://x/#kvcs:{digits}") == ShortId(digits)


@pytest.mark.parametrize("digits", ["dead", "", "0123456", "0" * 33, "ABCDEF01", "xyz45678"])
def test_fragment_of_other_digits_is_refused(digits):
    with pytest.raises(ConfigError, match="8 to 32 hex digits"):
        parse_fragment(f"moqt://x/#kvcs:{digits}")


def test_fragment_of_a_namespace_is_the_name():
    assert parse_fragment(f"moqt://x/#kvcs:{name('ab')}") == name("ab")
