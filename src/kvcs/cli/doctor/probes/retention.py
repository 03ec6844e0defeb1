"""Probes of what a relay keeps: after the publisher has left, and for how long."""

import asyncio
from typing import Final

from kvcs.cli.doctor.finding import Grade, Report
from kvcs.cli.doctor.judgement import judge_delivery, judge_unheld
from kvcs.cli.doctor.probes.delivery import KEYS, VALUES
from kvcs.cli.doctor.reader import Reader
from kvcs.cli.doctor.site import Site
from kvcs.cli.doctor.source import SampleTrack
from kvcs.errors import RequestErrorCode, RequestFailed, RequestRejected
from kvcs.kv.naming import PublicationName
from kvcs.moqt.session.events import SubscribeAccepted
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.names import TrackNamespace

__all__ = ("probe_expiry", "probe_kept")

_GROUPS: Final = 4
_SIZES: Final = (8 * 1024,) * 3
_FIRST_LIVE: Final = 2
_WHOLE: Final = LocationFilter.absolute_start_group_end(0, 0, _GROUPS - 1)
# Retention of a Track that must be gone soon, and how much later it is asked for.
_SHORT_SECONDS: Final = 1.0
_EXPIRY_MARGIN: Final = 0.5
# A relay may need a moment to notice that a publisher has left.
_LEAVING_SECONDS: Final = 0.3


async def probe_kept(site: Site, report: Report) -> None:
    """Publish one Track that the relay sees whole and one that it sees half; leave, and ask."""
    async with site.reader() as early:
        async with site.source() as source:
            whole = source.add_track(KEYS, groups=_GROUPS)
            half = source.add_track(VALUES, groups=_GROUPS)
            _publish(half, range(_FIRST_LIVE))
            readings = [early.subscribe(track.track) for track in (whole, half)]
            for reading in readings:
                await early.accepted(reading)
            _publish(whole, range(_GROUPS))
            _publish(half, range(_FIRST_LIVE, _GROUPS))
            source.end(whole)
            live = [at for at in half.objects if at.group_id >= _FIRST_LIVE]
            await early.settled(lambda: readings[0].request.is_over and readings[1].has(live))
            name = source.name
        await asyncio.sleep(_LEAVING_SECONDS)
    async with site.reader() as reader:
        await _note_listing(reader, name, report)
    async with site.reader() as reader:
        await _note_fetch(reader, whole, report)
        await _note_gaps(reader, half, report)
    async with site.reader() as reader:
        await _note_late_subscribe(reader, whole, report)


async def probe_expiry(site: Site, report: Report) -> None:
    """Let a relay take a Track that it may keep for a second only; ask for it later."""
    async with site.source() as source, site.reader() as early:
        track = source.add_track(KEYS, groups=_GROUPS, kept_seconds=_SHORT_SECONDS)
        reading = early.subscribe(track.track)
        await early.accepted(reading)
        _publish(track, range(_GROUPS))
        source.end(track)
        await early.settled(lambda: reading.request.is_over)
    await asyncio.sleep(_SHORT_SECONDS + _EXPIRY_MARGIN)
    async with site.reader() as reader:
        late = reader.fetch(track.track, _WHOLE)
        try:
            await reader.finished(late)
        except RequestRejected as error:
            report.note("expiry", Grade.GOOD, f"nothing after {_SHORT_SECONDS:g} s: {error}")
            return
    if late.objects:
        text = f"{len(late.objects)} Objects served after their {_SHORT_SECONDS:g} s"
        report.note("expiry", Grade.BAD, text)
    else:
        report.note("expiry", Grade.GOOD, f"no Object after {_SHORT_SECONDS:g} s")


def _publish(track: SampleTrack, groups: range) -> None:
    for group_id in groups:
        track.publish(group_id, _SIZES)


async def _note_listing(reader: Reader, name: PublicationName, report: Report) -> None:
    namespace = name.namespace()
    try:
        listing = await reader.list_namespaces(TrackNamespace(namespace.fields[:4]))
    except RequestFailed as error:
        report.note("kept-listing", Grade.LIMITED, f"SUBSCRIBE_NAMESPACE: {error}")
        return
    found = await reader.settled(lambda: namespace in listing.present)
    grade = Grade.GOOD if found else Grade.LIMITED
    report.note("kept-listing", grade, "told" if found else "not told")


async def _note_fetch(reader: Reader, track: SampleTrack, report: Report) -> None:
    reading = reader.fetch(track.track, _WHOLE)
    try:
        await reader.finished(reading)
    except RequestRejected as error:
        report.note("kept-fetch", Grade.LIMITED, f"refused: {error}")
        return
    grade, text = judge_delivery(track.objects, reading.objects)
    report.note("kept-fetch", Grade.LIMITED if grade is Grade.BAD else grade, text)


async def _note_gaps(reader: Reader, track: SampleTrack, report: Report) -> None:
    """FETCH more than the relay holds: to refuse or to break off claims nothing either."""
    reading = reader.fetch(track.track, _WHOLE)
    try:
        await reader.finished(reading)
    except RequestRejected as error:
        report.note("gap-markers", Grade.GOOD, f"refused, so that nothing is claimed: {error}")
        return
    if reading.request.is_broken:
        report.note("gap-markers", Grade.GOOD, "broken off, so that nothing is claimed")
        return
    unheld = [at for at in track.objects if at.group_id < _FIRST_LIVE]
    report.note("gap-markers", *judge_unheld(unheld, reading.records))


async def _note_late_subscribe(reader: Reader, track: SampleTrack, report: Report) -> None:
    """SUBSCRIBE with a fill: a refusal sends consumers to FETCH, a whole fill serves them."""
    reading = reader.subscribe(track.track, fill=True)
    try:
        await reader.accepted(reading)
    except RequestRejected as error:
        right = error.code in (RequestErrorCode.DOES_NOT_EXIST, RequestErrorCode.TIMEOUT)
        grade = Grade.GOOD if right else Grade.LIMITED
        report.note("late-subscribe", grade, f"refused: {error}; consumers fetch then")
        return
    except TimeoutError:
        report.note("late-subscribe", Grade.LIMITED, "not answered")
        return
    await reader.settled(lambda: reading.has(track.objects))
    accepted = reading.request.accepted
    assert isinstance(accepted, SubscribeAccepted)
    grade, text = judge_delivery(track.objects, reading.objects)
    grade = Grade.LIMITED if grade is Grade.BAD else grade
    report.note("late-subscribe", grade, f"accepted; {text}")
