"""Probes of FETCH while the publisher is there: ranges, filters, gaps."""

from typing import Final

from kvcs.cli.doctor.finding import Grade, Report
from kvcs.cli.doctor.judgement import judge_delivery, judge_octets, judge_priorities
from kvcs.cli.doctor.probes.delivery import KEYS, VALUES
from kvcs.cli.doctor.reader import FROM_START, Reader, Reading
from kvcs.cli.doctor.site import Site
from kvcs.cli.doctor.source import SampleTrack
from kvcs.errors import RequestRejected
from kvcs.moqt.codepoints import ParameterType
from kvcs.moqt.wire.filters import LocationFilter, Range, RangeFilter
from kvcs.names import Location

__all__ = ("probe_fetch", "probe_filters", "probe_gap_filling")

_GROUPS: Final = 4
_OBJECTS: Final = 4
_SIZES: Final = (8 * 1024,) * _OBJECTS
_FIRST_LIVE: Final = 2
_WHOLE: Final = LocationFilter.absolute_start_group_end(0, 0, _GROUPS - 1)
_FIRST_BLOCKS: Final = RangeFilter(kind=ParameterType.OBJECTID_FILTER, ranges=(Range(0, 1),))


async def probe_fetch(site: Site, report: Report) -> None:
    """FETCH some Groups, and a range that begins and ends inside Groups."""
    async with site.source() as source, site.reader() as reader:
        track = source.add_track(KEYS, groups=_GROUPS)
        _publish(track, range(_GROUPS))
        source.end(track)
        groups = await _fetch(reader, track, LocationFilter.absolute_start_group_end(1, 0, 1))
        inner = await _fetch(reader, track, LocationFilter.absolute_range(1, 1, 1, 1))
        everything = await _fetch(reader, track, FROM_START)
    wanted = track.within(Location(1, 0), Location(2, _OBJECTS - 1))
    report.note("open-fetch", *judge_delivery(track.objects, everything.objects))
    exact = track.within(Location(1, 1), Location(2, 1))
    for judgement in (
        judge_delivery(wanted, groups.objects),
        judge_octets(wanted, groups.objects),
        judge_priorities(wanted, groups.objects),
        judge_delivery(exact, inner.objects),
    ):
        if judgement.grade is not Grade.GOOD:
            report.note("fetch", *judgement)
            return
    report.note("fetch", Grade.GOOD, "whole Groups and parts of Groups, each Object once")


async def probe_filters(site: Site, report: Report) -> None:
    """FETCH the first blocks only, then everything from the same relay."""
    if not site.options.max_filter_ranges:
        text = "the relay takes no range filters"
        report.note("range-filter", Grade.LIMITED, text)
        report.note("filtered-cache", Grade.MEASURED, f"does not arise: {text}")
        return
    async with site.source() as source, site.reader() as reader:
        track = source.add_track(VALUES, groups=_GROUPS)
        _publish(track, range(_GROUPS))
        source.end(track)
        first = {at: obj for at, obj in track.objects.items() if at.object_id <= 1}
        try:
            filtered = await _fetch(reader, track, _WHOLE, _FIRST_BLOCKS)
        except RequestRejected as error:
            report.note("range-filter", Grade.LIMITED, f"refused: {error}")
        else:
            report.note("range-filter", *judge_delivery(first, filtered.objects))
        whole = await _fetch(reader, track, _WHOLE)
    report.note("filtered-cache", *judge_delivery(track.objects, whole.objects))


async def probe_gap_filling(site: Site, report: Report) -> None:
    """FETCH a Track of which the relay has seen the second half only."""
    async with site.source() as source, site.reader() as early, site.reader() as late:
        track = source.add_track(KEYS, groups=_GROUPS)
        _publish(track, range(_FIRST_LIVE))
        running = early.subscribe(track.track)
        await early.accepted(running)
        _publish(track, range(_FIRST_LIVE, _GROUPS))
        live = track.within(Location(_FIRST_LIVE, 0), Location(_GROUPS, 0))
        await early.settled(lambda: running.has(live))
        reading = await _fetch(late, track, _WHOLE)
        count = source.fetches[track.track.name]
    grade, text = judge_delivery(track.objects, reading.objects)
    report.note("gap-filling", grade, f"{text}; {count} FETCH at the publisher")


def _publish(track: SampleTrack, groups: range) -> None:
    for group_id in groups:
        track.publish(group_id, _SIZES)


async def _fetch(
    reader: Reader, track: SampleTrack, location_filter: LocationFilter, *filters: RangeFilter
) -> Reading:
    reading = reader.fetch(track.track, location_filter, *filters)
    await reader.finished(reading)
    return reading
