"""A consumer with an index: exact publications, and no prefix that a relay could see."""

from contextlib import asynccontextmanager

from tests.sim.conftest import SCOPE_KEY
from tests.sim.forest import A, assert_whole, produce, publisher, relay, url

from kvcs.client import Consumer, IndexEntry
from kvcs.endpoint.connect import connect
from kvcs.errors import DataError
from kvcs.kv import PublicationName
from kvcs.relay import AccessAction
from kvcs.testing import run


class Index:
    """Answers with what it was given; notes what it was asked."""

    def __init__(self, *entries):
        self.entries = entries
        self.asked = []

    async def look_up(self, block_keys):
        self.asked.append(tuple(block_keys))
        return self.entries


class Watch:
    """A policy that allows everything and notes it."""

    def __init__(self):
        self.seen = []

    def __call__(self, access):
        self.seen.append((access.action, access.namespace))


@asynccontextmanager
async def consumer(world, index, *, descriptor=None):
    async with connect(url(A), transport=world.network) as connection:
        yield Consumer(
            connection,
            scope_key=SCOPE_KEY,
            descriptor=descriptor or world.descriptor,
            index=index,
        )


@asynccontextmanager
async def published(world):
    """A relay with a whole publication, and what it was asked."""
    watch = Watch()
    async with (
        relay(world.network, A, authorize=watch),
        publisher(world, A) as source,
        source.publication(world.tokens) as publication,
    ):
        await produce(world, publication, pace=0)
        yield publication, watch


def changed(name, **fields):
    """A publication that differs from `name`."""
    every = {field: getattr(name, field) for field in name.__dataclass_fields__}
    return PublicationName(**{**every, **fields})


async def retrieve(world, it, candidate):
    async with it.retrieve(candidate, timeout=30) as retrieval:
        async for layer in retrieval:
            assert world.is_equal(layer, retrieval.blocks)
        return await retrieval.finished()


def test_indexed_publication_is_taken_and_no_prefix_is_asked_for(world):
    async def scenario():
        here = world()
        async with published(here) as (publication, watch):
            index = Index(IndexEntry(name=publication.name, blocks=5))
            del watch.seen[:]
            async with consumer(here, index) as it:
                (candidate,) = await it.discover(here.tokens)
                verdict = await retrieve(here, it, candidate)
            return verdict, watch.seen, index.asked, publication, candidate

    verdict, seen, asked, publication, candidate = run(scenario())

    assert_whole(verdict)
    assert not candidate.is_vouched
    assert asked == [publication.block_keys]
    actions = {action for action, _ in seen}
    assert AccessAction.SUBSCRIBE in actions or AccessAction.FETCH in actions
    assert AccessAction.SUBSCRIBE_NAMESPACE not in actions
    # And what it did see is the publication that was taken, by its whole name.
    assert {namespace for _, namespace in seen} == {publication.name.namespace()}


def test_longer_publication_is_found_and_taken_in_part(world):
    async def scenario():
        here = world()
        async with published(here) as (publication, _):
            index = Index(IndexEntry(name=publication.name, blocks=3))
            async with consumer(here, index) as it:
                (candidate,) = await it.discover(here.tokens[:13])
                return await retrieve(here, it, candidate), candidate

    verdict, candidate = run(scenario())

    assert candidate.is_vouched
    assert_whole(verdict, blocks=3)


def test_entry_whose_publication_is_gone_gives_way_to_a_shorter_one(world):
    async def scenario():
        here = world()
        async with published(here) as (publication, _):
            gone = changed(publication.name, publication_id=bytes(16))
            index = Index(
                IndexEntry(name=publication.name, blocks=4), IndexEntry(name=gone, blocks=5)
            )
            async with consumer(here, index) as it:
                return await it.discover(here.tokens), publication.name

    found, name = run(scenario())

    assert [(candidate.name, candidate.blocks) for candidate in found] == [(name, 4)]


def test_entries_of_other_scopes_and_models_and_impossible_ones_are_ignored(world):
    async def scenario():
        here = world()
        async with published(here) as (publication, watch):
            name = publication.name
            index = Index(
                IndexEntry(name=changed(name, scope_id=bytes(16)), blocks=5),
                IndexEntry(name=changed(name, compatibility_id=bytes(32)), blocks=5),
                IndexEntry(name=name, blocks=6),
                IndexEntry(name=name, blocks=0),
                IndexEntry(name=name, blocks=-1),
            )
            del watch.seen[:]
            async with consumer(here, index) as it:
                return await it.discover(here.tokens), it.ignored_namespaces, watch.seen

    assert run(scenario()) == ([], 5, [])


def test_index_that_is_silent_or_fails_ends_the_search_in_time(world):
    class Silent:
        async def look_up(self, block_keys):
            del block_keys
            import asyncio  # noqa: PLC0415

            await asyncio.sleep(3600)

    class Broken:
        async def look_up(self, block_keys):
            raise DataError(f"of {len(block_keys)} keys")

    async def scenario():
        here = world()
        async with published(here):
            async with consumer(here, Silent()) as it:
                assert await it.discover(here.tokens, timeout=1.0) == []
            async with consumer(here, Broken()) as it:
                try:
                    await it.discover(here.tokens, blocks=2)
                except DataError as error:
                    return str(error)
        return ""

    assert run(scenario()) == "of 2 keys"


def test_publication_tells_the_keys_of_its_segments(world):
    async def scenario():
        here = world()
        async with (
            relay(here.network, A),
            publisher(here, A) as source,
            source.publication(here.tokens) as publication,
        ):
            before = publication.block_keys
            await publication.add_segment(2)
            return before, publication.block_keys, publication.name

    before, keys, name = run(scenario())

    assert before == ()
    assert len(keys) == 2
    assert keys[-1] == name.anchor_key


def test_prompt_that_diverges_from_a_longer_publication_gets_the_shared_blocks_alone(world):
    async def scenario():
        here = world()
        async with published(here) as (publication, _):
            index = Index(IndexEntry(name=publication.name, blocks=2))
            # The third block of the prompt is another one.
            tokens = [*here.tokens[:8], *(token + 1 for token in here.tokens[8:16])]
            async with consumer(here, index) as it:
                (candidate,) = await it.discover(tokens)
                return await retrieve(here, it, candidate), candidate

    verdict, candidate = run(scenario())

    assert candidate.blocks == 2
    assert_whole(verdict, blocks=2)


def test_index_that_puts_a_publication_of_another_prompt_in_place_is_not_believed(world):
    async def scenario():
        here = world()
        async with published(here) as (publication, _):
            other = [token + 1 for token in here.tokens]
            async with consumer(here, Index()) as it:
                own = it.block_keys(other)
            # The first keys of the prompt, and at the end what the publication is named by.
            lie = (*own[:4], publication.block_keys[4])
            entries = [
                IndexEntry(name=publication.name, blocks=2, segment_keys=lie),
                IndexEntry(name=publication.name, blocks=2, segment_keys=lie[:2]),
                IndexEntry(name=publication.name, blocks=2, segment_keys=publication.block_keys),
            ]
            found = []
            for entry in entries:
                async with consumer(here, Index(entry)) as it:
                    found.append(await it.discover(other[:13]))
            return found

    assert run(scenario()) == [[], [], []]


def test_index_that_has_the_keys_need_not_be_believed(world):
    async def scenario():
        here = world()
        async with published(here) as (publication, _):
            keys = publication.block_keys
            index = Index(IndexEntry(name=publication.name, blocks=3, segment_keys=keys))
            async with consumer(here, index) as it:
                (candidate,) = await it.discover(here.tokens[:13])
                return await retrieve(here, it, candidate)

    assert_whole(run(scenario()), blocks=3)
