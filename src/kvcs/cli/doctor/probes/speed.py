"""Throughput through the relay: live, and by FETCH of what it may have kept."""

import secrets
from collections.abc import Sequence
from typing import Final

from kvcs.cli.doctor.finding import Grade, Report
from kvcs.cli.doctor.reader import Reader
from kvcs.cli.doctor.site import Site
from kvcs.cli.doctor.source import SampleTrack, Source
from kvcs.kv.codecs import RAW
from kvcs.kv.naming import Component, DataTrackName
from kvcs.moqt.wire.filters import LocationFilter

__all__ = ("probe_speed",)

_OBJECT_BYTES: Final = 2**18
_GROUP_OBJECTS: Final = 8
# Objects of each round: the first that takes long enough is the result, so that a slow link is
# not burdened and a fast one is measured over more than its start.
_ROUNDS: Final = (8, 32, 128)
_ENOUGH_SECONDS: Final = 2.0
_MEBI: Final = 2**20


async def probe_speed(site: Site, report: Report) -> None:
    """Publish Objects of 256 KiB to one consumer, then let another one fetch them."""
    async with site.source() as source, site.reader() as reader:
        track = await _publish_enough(source, reader, report)
        if track is None:
            report.note_all(("live-rate", "fetch-rate"), Grade.UNKNOWN, "not all test data came")
            return
        last_group = len(track.objects) // _GROUP_OBJECTS - 1
        whole = LocationFilter.absolute_start_group_end(0, 0, last_group)
        async with site.reader() as late:
            reading = late.fetch(track.track, whole)
            begun = late.connection.now
            await late.finished(reading)
    objects = len(track.objects)
    if len(reading.objects) < objects:
        text = f"{len(reading.objects)} of {objects} Objects came"
        report.note("fetch-rate", Grade.UNKNOWN, text)
        return
    _note_rate(report, "fetch-rate", objects, max(it.at for it in reading.arrivals) - begun)


async def _publish_enough(source: Source, reader: Reader, report: Report) -> SampleTrack | None:
    """Publish round after round until one takes long enough; return its Track."""
    octets = secrets.token_bytes(_OBJECT_BYTES)
    track = None
    for number, objects in enumerate(_ROUNDS):
        track = source.add_track(
            DataTrackName(Component.K, RAW.name, number).format(), groups=objects // _GROUP_OBJECTS
        )
        seconds = await _measure(source, reader, track, [octets] * objects)
        if seconds is None:
            return None
        if seconds >= _ENOUGH_SECONDS or objects == _ROUNDS[-1]:
            _note_rate(report, "live-rate", objects, seconds)
            break
    return track


async def _measure(
    source: Source, reader: Reader, track: SampleTrack, payloads: Sequence[bytes]
) -> float | None:
    """Return the seconds from publishing to the last arrival, or None when some is missing."""
    reading = reader.subscribe(track.track)
    await reader.accepted(reading)
    begun = reader.connection.now
    for group_id, first in enumerate(range(0, len(payloads), _GROUP_OBJECTS)):
        track.publish_payloads(group_id, payloads[first : first + _GROUP_OBJECTS])
    source.end(track)
    if not await reader.settled(lambda: reading.has(track.objects)):
        return None
    seconds = max(it.at for it in reading.arrivals if it.obj.payload) - begun
    await reader.settled(lambda: reading.request.is_over)
    return seconds


def _note_rate(report: Report, row: str, objects: int, seconds: float) -> None:
    rate = objects * _OBJECT_BYTES / seconds
    text = f"{rate / _MEBI:.3g} MiB/s with Objects of 256 KiB"
    report.note(row, Grade.MEASURED, text, rate)
