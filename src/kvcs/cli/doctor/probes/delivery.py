"""Probes of subscriptions: live delivery, aggregation, and joins in mid-production."""

from collections.abc import Mapping, Sequence
from typing import Final

from kvcs.cli.doctor.finding import Grade, Report
from kvcs.cli.doctor.judgement import (
    judge_delivery,
    judge_group_ends,
    judge_object_properties,
    judge_octets,
    judge_priorities,
    judge_track_end,
    judge_track_properties,
)
from kvcs.cli.doctor.reader import Reader, Reading
from kvcs.cli.doctor.site import Site
from kvcs.cli.doctor.source import KEPT_SECONDS, SampleTrack, Source
from kvcs.errors import PublishDoneCode
from kvcs.kv.codecs import RAW
from kvcs.kv.naming import Component, DataTrackName
from kvcs.moqt.session.events import SubscribeAccepted
from kvcs.moqt.wire.object import Object
from kvcs.names import Location

__all__ = (
    "KEYS",
    "VALUES",
    "probe_cold_join",
    "probe_join",
    "probe_large_objects",
    "probe_live",
    "probe_many_groups",
)

#: Names of test Tracks: a relay may look at the grammar of Track Names.
KEYS: Final = DataTrackName(Component.K, RAW.name, 0).format()
VALUES: Final = DataTrackName(Component.V, RAW.name, 0).format()

_KIB: Final = 1024
# Octets of the Objects of each Group: less than one packet, as in KVCS.
_LIVE_GROUPS: Final = ((1, 32 * _KIB, 200 * _KIB), (32 * _KIB, 1), (64 * _KIB,), (68, 4 * _KIB))
_LARGE_GROUPS: Final = ((1024 * _KIB,) * 2,) * 2
_JOIN_GROUPS: Final = ((16 * _KIB,) * 3,) * 4
_JOINED_AT: Final = 2
_MANY_GROUPS: Final = 160


async def probe_live(site: Site, report: Report) -> None:
    """Publish to two consumers that subscribed before anything was there."""
    async with site.source() as source, site.reader() as first, site.reader() as second:
        track = source.add_track(KEYS, groups=len(_LIVE_GROUPS))
        readings = [reader.subscribe(track.track) for reader in (first, second)]
        for reader, reading in zip((first, second), readings, strict=True):
            await reader.accepted(reading)
        for group_id, sizes in enumerate(_LIVE_GROUPS):
            track.publish(group_id, sizes, with_properties=True)
        source.end(track)
        for reader, reading in zip((first, second), readings, strict=True):
            await reader.settled(lambda it=reading: it.request.is_over)
        _note_aggregation(source, track, report)
    _note_deliveries(report, track, readings)


def _note_aggregation(source: Source, track: SampleTrack, report: Report) -> None:
    count = source.subscribes[track.track.name]
    grade = Grade.GOOD if count == 1 else Grade.LIMITED
    report.note("aggregation", grade, f"{count} at the publisher for 2 consumers", count)


def _note_deliveries(report: Report, track: SampleTrack, readings: Sequence[Reading]) -> None:
    """Note what the worse of two consumers saw."""
    judged = [judge_delivery(track.objects, reading.objects) for reading in readings]
    order = (Grade.BAD, Grade.LIMITED, Grade.GOOD)
    report.note("live", *min(judged, key=lambda it: order.index(it.grade)))
    objects = [obj for reading in readings for obj in reading.objects]
    report.note("payload", *judge_octets(track.objects, objects))
    report.note("priority", *judge_priorities(track.objects, objects))
    report.note("object-properties", *judge_object_properties(track.objects, objects))
    reading = readings[0]
    accepted = reading.request.accepted
    if isinstance(accepted, SubscribeAccepted):
        judgement = judge_track_properties(accepted.properties, KEPT_SECONDS)
        report.note("track-properties", *judgement)
    ending = reading.request.ending_groups
    report.note("end-of-group", *judge_group_ends(track.objects, reading.statuses, ending))
    if track.end is not None:
        report.note("end-of-track", *judge_track_end(track.end, reading.statuses))
    _note_done(report, reading)


def _note_done(report: Report, reading: Reading) -> None:
    done = reading.request.done
    if done is None:
        report.note("publish-done", Grade.LIMITED, "not sent")
    elif done.status_code != PublishDoneCode.TRACK_ENDED:
        code = done.status_code
        report.note("publish-done", Grade.LIMITED, f"code {code:#x} in place of TRACK_ENDED")
    elif not reading.request.is_drained:
        report.note("publish-done", Grade.LIMITED, "it counts streams that did not come")
    else:
        report.note("publish-done", Grade.GOOD, "TRACK_ENDED, after all streams that it counts")


async def probe_many_groups(site: Site, report: Report) -> None:
    """Publish as many Groups at once as a large model has."""
    async with site.source() as source, site.reader() as reader:
        track = source.add_track(KEYS, groups=_MANY_GROUPS)
        reading = reader.subscribe(track.track)
        await reader.accepted(reading)
        for group_id in range(_MANY_GROUPS):
            track.publish(group_id, (_KIB,))
        await reader.settled(lambda: reading.has(track.objects))
    report.note("many-groups", *judge_delivery(track.objects, reading.objects))


async def probe_large_objects(site: Site, report: Report) -> None:
    """Publish Objects of the largest sensible size."""
    async with site.source() as source, site.reader() as reader:
        track = source.add_track(KEYS, groups=len(_LARGE_GROUPS))
        reading = reader.subscribe(track.track)
        await reader.accepted(reading)
        for group_id, sizes in enumerate(_LARGE_GROUPS):
            track.publish(group_id, sizes)
        await reader.settled(lambda: reading.has(track.objects))
    judgement = judge_delivery(track.objects, reading.objects)
    if judgement.grade is Grade.GOOD:
        judgement = judge_octets(track.objects, reading.objects)
    report.note("large-objects", *judgement)


async def probe_join(site: Site, report: Report) -> None:
    """Join in mid-production while the relay has all of it for another consumer."""
    async with site.source() as source, site.reader() as early, site.reader() as late:
        track = source.add_track(KEYS, groups=len(_JOIN_GROUPS))
        running = early.subscribe(track.track)
        await early.accepted(running)
        _publish(track, range(_JOINED_AT))
        await early.settled(lambda: running.has(track.objects))
        reading = await _join(late, source, track)
    grade, text = judge_delivery(track.objects, reading.objects)
    grade, text = _with_boundary(reading, grade, text)
    report.note("join", grade, text)


async def probe_cold_join(site: Site, report: Report) -> None:
    """Join in mid-production as the first consumer of all."""
    async with site.source() as source, site.reader() as reader:
        track = source.add_track(KEYS, groups=len(_JOIN_GROUPS))
        _publish(track, range(_JOINED_AT))
        reading = await _join(reader, source, track)
    grade, text = judge_delivery(track.objects, reading.objects)
    report.note("cold-join", *_with_boundary(reading, grade, text))


def _publish(track: SampleTrack, groups: range) -> None:
    for group_id in groups:
        track.publish(group_id, _JOIN_GROUPS[group_id])


async def _join(reader: Reader, source: Source, track: SampleTrack) -> Reading:
    """Subscribe with a fill of what was, publish the rest, and wait for all of it."""
    reading = reader.subscribe(track.track, fill=True)
    await reader.accepted(reading)
    _publish(track, range(_JOINED_AT, len(_JOIN_GROUPS)))
    source.end(track)
    await reader.settled(lambda: reading.request.is_over)
    return reading


def _with_boundary(reading: Reading, grade: Grade, text: str) -> tuple[Grade, str]:
    """Add where fill and subscription met, and Objects on the wrong side of it."""
    largest = reading.request.largest
    if largest is None:
        return Grade.BAD, f"SUBSCRIBE_OK tells no Largest Object; {text}"
    wrong = sum(
        it.obj.location <= largest
        for it in reading.arrivals
        if not it.is_fetch and _is_data(reading, it.obj)
    )
    if wrong:
        text = f"{text}; {wrong} at or below Largest {largest} on the subscription"
    return grade, text


def _is_data(reading: Reading, obj: Object) -> bool:
    statuses: Mapping[Location, object] = reading.statuses
    return obj.location not in statuses
