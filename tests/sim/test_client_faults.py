"""A consumer against peers that lie, forget, refuse and break off."""

import asyncio
from dataclasses import replace

import pytest
from tests.sim.shelf import DATA, LAYERS, Shelf, assert_whole, retrieved

from kvcs.client import ConsumerConfig, MissingReason
from kvcs.errors import (
    ManifestError,
    NotAuthentic,
    PublishDoneCode,
    RequestErrorCode,
    RequestRejected,
    StreamResetCode,
)
from kvcs.kv import SIGNED_MANIFEST
from kvcs.moqt.codepoints import GroupOrder, ObjectStatus
from kvcs.moqt.session.events import FetchReceived, SubscribeReceived
from kvcs.moqt.wire.object import Object
from kvcs.testing import LinkProfile, run

PACE = 0.1


# Refusals and fallbacks.


@pytest.mark.parametrize("code", [RequestErrorCode.DOES_NOT_EXIST, RequestErrorCode.TIMEOUT])
@pytest.mark.parametrize("layers", [3, LAYERS])
def test_refused_subscriptions_become_fetches(world, code, layers):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(layers))
            shelf.refusals = {
                SubscribeReceived: code,
                (SubscribeReceived, SIGNED_MANIFEST): RequestErrorCode.DOES_NOT_EXIST,
            }
            return layers, await retrieved(shelf)

    layers, verdict = run(scenario())

    assert verdict.verified == 2 * layers * 5
    assert verdict.duplicate == 0
    assert verdict.complete == (layers == LAYERS)
    assert {gap.layer for gap in verdict.missing} == set(range(layers, LAYERS))
    assert verdict.elapsed_s < 10


def test_fill_that_never_begins_is_fetched_up_to_the_same_boundary(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(3))

            def without_fill(event):
                return replace(event, parameters=replace(event.parameters, fill=None))

            shelf.bend = without_fill

            async def rest():
                await asyncio.sleep(10)
                shelf.add_layers(range(3, LAYERS))

            verdict = await retrieved(shelf, during=rest)
            ranges = [
                event.parameters.location_filter
                for event in shelf.of_track(FetchReceived, b"k.raw.s0")
            ]

        assert_whole(verdict)
        assert verdict.duplicate == 0
        # {0, 0} up to Largest at the join: End of Group of layer 2.
        assert [
            (r.start_group, r.start_object, r.end_group_delta, r.end_object) for r in ranges
        ] == [(0, 0, 2, 5)]

    run(scenario())


@pytest.mark.parametrize("sent", [0, 7])
def test_fill_that_falls_silent_is_fetched_from_the_first_hole(world, sent):
    """7 Objects are layer 0, its End of Group not counted, and two blocks of layer 1."""

    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(3))
            shelf.bend = lambda event: replace(
                event, parameters=replace(event.parameters, fill=None)
            )

            async def begin_fills():
                await asyncio.sleep(1)
                session, now = shelf.peers[0].connection.session, shelf.peers[0].connection.now
                for name in DATA:
                    (event,) = shelf.of_track(SubscribeReceived, name)
                    stream_id = session.open_fetch_stream(
                        event.request_id, order=GroupOrder.ASCENDING, priority=4, now=now
                    )
                    objects = [
                        obj
                        for obj in shelf.tracks.tracks[name].store.objects()
                        if obj.status is ObjectStatus.NORMAL
                    ]
                    for obj in objects[:sent]:
                        session.send_object(stream_id, obj, now=now)
                shelf.peers[0].connection.wake()
                await asyncio.sleep(20)
                shelf.add_layers(range(3, LAYERS))

            verdict = await retrieved(shelf, during=begin_fills)
            ranges = [
                event.parameters.location_filter
                for event in shelf.of_track(FetchReceived, b"k.raw.s0")
            ]

        assert_whole(verdict)
        assert verdict.duplicate == 0
        assert [(r.start_group, r.start_object, r.end_object) for r in ranges] == [
            (sent // 5, sent % 5, 5)
        ]
        config = ConsumerConfig()
        assert verdict.arrivals[2].seconds < 4 + config.max_silence

    run(scenario())


def test_fetch_whose_stream_never_opens_is_repeated(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers()
            shelf.is_forgotten = lambda event: (
                isinstance(event, FetchReceived)
                and len(shelf.of_track(FetchReceived, event.track.name)) == 1
            )
            return await retrieved(shelf)

    verdict = run(scenario())

    assert_whole(verdict)
    assert verdict.elapsed_s < ConsumerConfig().fill_wait + 1


def test_fetch_whose_streams_never_open_is_given_up(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers()
            shelf.is_forgotten = lambda event: isinstance(event, FetchReceived)
            return await retrieved(shelf)

    verdict = run(scenario())

    assert {gap.reason for gap in verdict.missing} == {MissingReason.STALLED}
    assert verdict.elapsed_s < 12


def test_fill_that_is_reset_is_fetched(world):
    async def scenario():
        here = world(profile=LinkProfile(bandwidth=4000))
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(3))

            async def break_fills():
                await asyncio.sleep(1.0)
                session, now = shelf.peers[0].connection.session, shelf.peers[0].connection.now
                for event in shelf.of_track(SubscribeReceived, b"k.raw.s0"):
                    for stream_id in session.open_streams(event.request_id):
                        session.reset_stream(stream_id, StreamResetCode.INTERNAL_ERROR, now=now)
                shelf.peers[0].connection.wake()
                await asyncio.sleep(1.0)
                shelf.add_layers(range(3, LAYERS))

            verdict = await retrieved(shelf, during=break_fills)

        assert_whole(verdict)

    run(scenario())


def test_reset_live_streams_are_fetched(world):
    async def scenario():
        here = world(profile=LinkProfile(bandwidth=4000))
        async with Shelf(here).open() as shelf:

            async def layers_that_break():
                session, opened = shelf.peers[0].connection.session, []
                open_subgroup = session.open_subgroup

                def note(*arguments, **options):
                    opened.append(open_subgroup(*arguments, **options))
                    return opened[-1]

                session.open_subgroup = note
                await asyncio.sleep(3)
                shelf.add_layers(range(3))
                await asyncio.sleep(0.3)
                # What is on the wire arrives, the rest of these streams never does.
                for stream_id in opened[2:6]:
                    here.network.transports[1].reset(stream_id, StreamResetCode.TOO_FAR_BEHIND)
                await asyncio.sleep(5)
                shelf.add_layers(range(3, LAYERS))

            verdict = await retrieved(shelf, during=layers_that_break)
            fetched = [
                event.parameters.location_filter.start_group
                for name in (b"k.raw.s0", b"v.raw.s0")
                for event in shelf.of_track(FetchReceived, name)
            ]

        assert_whole(verdict)
        assert fetched
        assert set(fetched) <= {0, 1, 2}

    run(scenario())


@pytest.mark.parametrize(
    "code", [PublishDoneCode.TOO_FAR_BEHIND, PublishDoneCode.GOING_AWAY, PublishDoneCode.EXPIRED]
)
def test_subscription_that_ends_early_is_joined_again(world, code):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(2))

            async def end_and_go_on():
                await asyncio.sleep(1)
                for name in DATA:
                    shelf.peers[0].end(shelf.tracks.tracks[name], code)
                await asyncio.sleep(0.05)
                shelf.add_layers(range(2, LAYERS))

            verdict = await retrieved(shelf, during=end_and_go_on)

        assert_whole(verdict)
        assert verdict.duplicate == 0

    run(scenario())


def test_overloaded_peer_is_asked_again(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers()
            shelf.refusals = {
                (FetchReceived, b"k.raw.s0"): RequestErrorCode.EXCESSIVE_LOAD,
            }

            async def recover():
                await asyncio.sleep(0.5)
                shelf.refusals = {}

            return await retrieved(shelf, during=recover)

    assert_whole(run(scenario()))


def test_unauthorized_track_is_given_up_at_once(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers()
            shelf.refusals = {(FetchReceived, b"k.raw.s0"): RequestErrorCode.UNAUTHORIZED}
            return await retrieved(shelf)

    verdict = run(scenario())

    assert {gap.reason for gap in verdict.missing} == {MissingReason.REFUSED}
    assert verdict.verified == LAYERS * 5
    assert verdict.verified_prefix_blocks == 0
    assert verdict.elapsed_s < 1


def test_track_that_is_gone_is_not_called_forbidden(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers()
            shelf.refusals = {
                (kind, b"k.raw.s0"): RequestErrorCode.DOES_NOT_EXIST
                for kind in (SubscribeReceived, FetchReceived)
            }
            return await retrieved(shelf)

    verdict = run(scenario())

    assert {gap.reason for gap in verdict.missing} == {MissingReason.UNKNOWN}
    assert verdict.elapsed_s < 5


def test_idle_timeout_starts_recovery(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(2))

            async def forget_the_subscribers():
                await asyncio.sleep(1)
                shelf.peers[0].close()
                shelf.attach(shelf.peers[0].connection)
                shelf.add_layers(range(2, LAYERS))

            return await retrieved(shelf, during=forget_the_subscribers, idle_timeout=3.0)

    verdict = run(scenario())

    assert_whole(verdict)
    assert verdict.elapsed_s < 10


def test_stalled_production_is_given_up_after_a_few_attempts(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(2))
            return await retrieved(shelf, idle_timeout=1.0)

    verdict = run(scenario())

    assert not verdict.complete
    assert {gap.reason for gap in verdict.missing} == {MissingReason.STALLED}
    assert verdict.elapsed_s < 20


# Lies.


def test_value_object_in_the_key_track_is_rejected_and_reported(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:

            def swap(made):
                k, v = made.values()
                k[2] = v[2]

            shelf.add_layers(range(3))
            shelf.add_layers([3], lie=swap)
            shelf.add_layers(range(4, LAYERS))
            return await retrieved(shelf)

    verdict = run(scenario())

    assert not verdict.complete
    assert set(verdict.rejected) == {"component"}
    assert [(g.layer, g.first, g.end, g.reason) for g in verdict.missing] == [
        (3, 2, 3, MissingReason.REJECTED)
    ]
    assert verdict.verified_prefix_blocks == 2


def test_damaged_object_is_rejected_and_fetched_again(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:

            def damage(made):
                k, _ = made.values()
                k[1] = (k[1][0][:-1] + b"!", k[1][1])

            shelf.add_layers(lie=damage)
            return await retrieved(shelf)

    verdict = run(scenario())

    assert set(verdict.rejected) == {"data_digest"}
    assert verdict.rejected["data_digest"] > LAYERS
    assert {(g.first, g.end) for g in verdict.missing} == {(1, 2)}


@pytest.mark.parametrize("layers", [0, 2])
def test_manifest_that_lists_other_digests_discards_the_publication(world, layers):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(layers))

            def list_another(made):
                for name, blocks in made.items():
                    made[name] = [(payload, bytes(32)) for payload, _ in blocks]

            async def lie():
                await asyncio.sleep(1)
                # Layer 2 is not listed at once; the version after layer 3 contradicts it.
                shelf.add_layers(range(layers, 2))
                shelf.add_layers([2], lie=list_another)
                await asyncio.sleep(1)
                shelf.add_layers([3])

            return await retrieved(shelf, during=lie)

    verdict = run(scenario())

    assert not verdict.complete
    assert verdict.verified_prefix_blocks == 0
    assert verdict.error is not None
    assert {gap.reason for gap in verdict.missing} == {MissingReason.DISCARDED}
    assert verdict.missing_objects == 2 * LAYERS * 5


def test_manifest_that_takes_back_a_layer_discards_the_publication(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(2))

            async def take_back():
                await asyncio.sleep(1)
                segment = replace(shelf.tracks.manifest.segments[0], object_digests={})
                shelf.tracks.manifest = shelf.tracks.manifest.with_segment(segment)
                shelf.tracks.publish_manifest(now=1.0)
                shelf.peers[0].connection.wake()

            return await retrieved(shelf, during=take_back)

    verdict = run(scenario())

    assert isinstance(verdict.error, ManifestError)
    assert {gap.reason for gap in verdict.missing} == {MissingReason.DISCARDED}


def test_later_manifest_that_cannot_be_read_is_counted_and_ignored(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(2))

            async def babble():
                await asyncio.sleep(1)
                shelf.tracks.manifest_track.store.add(
                    Object(
                        group_id=shelf.tracks._next_version,
                        object_id=0,
                        subgroup_id=0,
                        publisher_priority=0,
                        payload=b"{",
                    ),
                    now=1.0,
                )
                shelf.tracks._next_version += 1
                shelf.add_layers(range(2, LAYERS))

            return await retrieved(shelf, during=babble)

    verdict = run(scenario())

    assert_whole(verdict)
    assert verdict.rejected == {"manifest": 1}


def test_first_manifest_that_cannot_be_read_is_an_error(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.tracks.publish_manifest = None
            shelf.add_object(b"manifest", 1, b'{"kvcs": 1}')
            with pytest.raises(ManifestError):
                await retrieved(shelf)

    run(scenario())


def test_signed_publication_is_refused_with_one_sentence(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers()
            shelf.add_track(SIGNED_MANIFEST, b"\xd2")
            with pytest.raises(NotAuthentic, match="the public key of its producer is needed"):
                await retrieved(shelf)
            asked = shelf.of_track(SubscribeReceived, b"manifest")

        assert asked == []

    run(scenario())


@pytest.mark.parametrize("kind", [SubscribeReceived, FetchReceived])
@pytest.mark.parametrize(
    "code",
    [
        RequestErrorCode.TIMEOUT,
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.INTERNAL_ERROR,
        RequestErrorCode.EXCESSIVE_LOAD,
    ],
)
def test_signature_is_not_stripped_by_refusing_one_request(world, kind, code):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers()
            shelf.refusals = {(kind, SIGNED_MANIFEST): code}
            with pytest.raises(RequestRejected) as caught:
                await retrieved(shelf)
            asked = shelf.of_track(SubscribeReceived, b"manifest")

        assert caught.value.code == code
        assert asked == []

    run(scenario())


def test_end_of_track_as_end_of_group_of_a_foreign_relay_is_accepted(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(2))

            async def rest():
                await asyncio.sleep(1)
                shelf.tracks._end_track = lambda track, now: track.store.add(
                    Object(
                        group_id=LAYERS,
                        object_id=0,
                        subgroup_id=0,
                        publisher_priority=128,
                        status=ObjectStatus.END_OF_GROUP,
                    ),
                    now=now,
                )
                shelf.add_layers(range(2, LAYERS))

            return await retrieved(shelf, during=rest)

    assert_whole(run(scenario()))


# Confirmation.


def test_layers_that_no_manifest_ever_lists_leave_the_retrieval_incomplete(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            shelf.add_layers(range(2))

            async def die_unlisted():
                await asyncio.sleep(1)
                shelf.tracks.publish_manifest = lambda *_, **__: 0
                shelf.add_layers(range(2, LAYERS))

            return await retrieved(shelf, during=die_unlisted)

    verdict = run(scenario())

    assert verdict.missing == ()
    assert verdict.verified == 2 * LAYERS * 5
    assert not verdict.complete
    assert verdict.unconfirmed_layers == 2 * (LAYERS - 2)
    assert verdict.elapsed_s < 30


def test_publication_that_lists_no_digests_at_all_can_be_complete(world):
    async def scenario():
        here = world()
        async with Shelf(here).open() as shelf:
            publish = shelf.tracks.publish_manifest

            def without_digests(_draft, *, now):
                kept = shelf.tracks.manifest
                segment = replace(kept.segments[0], object_digests={})
                shelf.tracks.manifest = kept.with_segment(segment)
                size = publish(now=now)
                shelf.tracks.manifest = kept
                return size

            shelf.tracks.publish_manifest = without_digests
            shelf.add_layers()
            return await retrieved(shelf)

    assert_whole(run(scenario()))


# Recovery elsewhere.


def test_same_publication_at_another_peer_gives_what_is_missing(world):
    async def scenario():
        here = world()
        first, second = Shelf(here), Shelf(here)
        async with first.open(4433), second.open(4434):
            first.add_layers()
            second.add_layers()
            for name in DATA:
                first.tracks.tracks[name].store.drop_group(4)
            verdict = await retrieved(first, ports=(4433, 4434))
            asked = [
                (
                    e.parameters.location_filter.start_group,
                    e.parameters.location_filter.end_group_delta,
                )
                for e in second.of_track(FetchReceived, b"v.raw.s0")
            ]

        assert_whole(verdict)
        assert verdict.duplicate == 0
        assert asked == [(4, 0)]

    run(scenario())


def test_lost_relay_is_replaced_by_another_one(world):
    async def scenario():
        here = world()
        first, second = Shelf(here), Shelf(here)
        async with first.open(4433), second.open(4434):
            first.add_layers(range(2))
            second.add_layers(range(2))

            async def lose_the_first():
                await asyncio.sleep(1)
                await first.peers[0].connection.close()
                await asyncio.sleep(1)
                second.add_layers(range(2, LAYERS))

            verdict = await retrieved(first, during=lose_the_first, ports=(4433, 4434))

        assert_whole(verdict)
        assert verdict.duplicate == 0

    run(scenario())


def test_other_publication_that_is_cut_differently_is_not_used(world):
    async def scenario():
        here = world()
        first = Shelf(here, deterministic=True)
        second = Shelf(here, publication_id=b"q" * 16, deterministic=True, cut=(2, 3))
        async with first.open():
            first.add_layers()
            second.add_layers()
            first.tracks.tracks[b"k.raw.s0"].store.drop_group(4)
            find = first.find
            first.find = lambda track: find(track) or second.find(track)
            async with first.consumer(ConsumerConfig(max_attempts=1)) as consumer:
                candidates = (first.candidate(consumer), second.candidate(consumer))
                async with consumer.retrieve(*candidates, timeout=60) as retrieval:
                    async for layer in retrieval:
                        assert here.is_equal(layer)
                return retrieval.verdict

    verdict = run(scenario())

    assert {(gap.layer, gap.reason) for gap in verdict.missing} == {(4, MissingReason.UNKNOWN)}
    assert verdict.verified == 2 * LAYERS * 5 - 5


@pytest.mark.parametrize("deterministic", [False, True])
def test_objects_of_two_publications_are_combined_only_if_both_are_deterministic(
    world, deterministic
):
    async def scenario():
        here = world()
        first = Shelf(here, deterministic=True)
        second = Shelf(here, publication_id=b"q" * 16, deterministic=deterministic)
        async with first.open():
            first.add_layers()
            second.add_layers()
            for name in DATA:
                first.tracks.tracks[name].store.drop_group(4)
            find = first.find
            first.find = lambda track: find(track) or second.find(track)
            async with first.consumer(ConsumerConfig(max_attempts=1)) as consumer:
                candidates = (first.candidate(consumer), second.candidate(consumer))
                async with consumer.retrieve(*candidates, timeout=60) as retrieval:
                    async for layer in retrieval:
                        assert here.is_equal(layer)
                return retrieval.verdict

    verdict = run(scenario())

    assert verdict.complete == deterministic
    assert {gap.layer for gap in verdict.missing} == (set() if deterministic else {4})


@pytest.mark.parametrize("liar", ["first", "second"])
def test_publications_whose_lists_differ_are_not_combined_whatever_they_say(world, liar):
    async def scenario():
        here = world()
        first = Shelf(here, deterministic=True)
        second = Shelf(here, publication_id=b"q" * 16, deterministic=True)

        def lie(made):
            (name, blocks), *_ = made.items()
            blocks[2] = second.payload(name.component, 4, 2, second.zeros(name.component, 4))

        async with first.open():
            for shelf in (first, second):
                shelf.add_layers(range(4))
                is_liar = (shelf is first) == (liar == "first")
                shelf.add_layers([4], lie=lie if is_liar else None)
                shelf.add_layers([5])
            for name in DATA:
                first.tracks.tracks[name].store.drop_group(4)
            find = first.find
            first.find = lambda track: find(track) or second.find(track)
            async with first.consumer(ConsumerConfig(max_attempts=1)) as consumer:
                candidates = (first.candidate(consumer), second.candidate(consumer))
                async with consumer.retrieve(*candidates, timeout=60) as retrieval:
                    async for layer in retrieval:
                        assert here.is_equal(layer)
                return retrieval.verdict

    verdict = run(scenario())

    assert {gap.layer for gap in verdict.missing} == {4}
