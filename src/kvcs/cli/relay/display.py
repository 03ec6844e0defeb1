"""What a relay says of itself, for a terminal.

What peers call themselves and their Tracks is made printable, and never taken for markup.
"""

import re
from collections.abc import Iterator
from typing import Final

from rich.table import Table
from rich.text import Text

from kvcs.admin import NamespaceStatus, Status
from kvcs.cli._output import format_bytes
from kvcs.cli._text import printable
from kvcs.relay import Arrival, SessionReport

__all__ = (
    "arrival_bar",
    "format_seconds",
    "health",
    "namespace_table",
    "overview",
    "session_table",
    "short_name",
    "track_table",
)

_LEVELS: Final = "·▁▂▃▄▅▆▇█"
_MAX_FIELDS: Final = 3
_FIELD_OCTETS: Final = 3
_FIELD_CHARACTERS: Final = 24


def health(status: Status) -> str:
    """Return one line: whether it is ready, where it listens, for how long."""
    state = "ready" if status.is_ready else f"NOT READY: {', '.join(status.faults)}"
    return (
        f"relay {status.address}: {state}; up for {format_seconds(status.uptime)}, "
        f"kvcs {status.version}"
    )


def overview(status: Status) -> Iterator[str]:
    """Yield the figures that matter most, a line each."""
    counts = status.statistics
    asked = counts.cache_hits + counts.cache_misses
    ratio = f"{counts.cache_hits / asked:.1%} of {asked}" if asked else "nothing asked yet"
    yield from _parents(status)
    yield f"sessions    {counts.sessions} open, {status.slow_sessions} slow"
    yield f"namespaces  {counts.namespaces} listed, {counts.tracks} Tracks"
    yield f"traffic     {format_bytes(counts.bytes_in)} in, {format_bytes(counts.bytes_out)} out"
    yield f"hit ratio   {ratio}"
    yield f"memory      {_part(counts.cache_bytes, counts.cache_capacity_bytes)}"
    if counts.disk_capacity_bytes:
        trouble = "" if counts.disk_writable else ", not writable now"
        yield f"disk        {_part(counts.disk_bytes, counts.disk_capacity_bytes)}{trouble}"


def namespace_table(status: Status) -> Table:
    """Return the namespaces that were used last."""
    page = status.namespaces
    table = _table(f"namespace ({len(page.shown)} of {page.total})", "state")
    _add_numbers(table, "served", "complete", "memory", "disk", "used")
    for report in page.shown:
        state = "published" if report.publishers else "kept" if report.is_listed else "not listed"
        table.add_row(
            Text(short_name(report.namespace)),
            state,
            str(report.deliveries),
            f"{report.complete_tracks} of {report.tracks}",
            format_bytes(report.size_bytes),
            format_bytes(report.disk_bytes),
            "never" if report.idle is None else f"{format_seconds(report.idle)} ago",
        )
    return table


def session_table(status: Status) -> Table:
    """Return the sessions that are furthest behind, and the newest."""
    table = _table(f"peer ({len(status.sessions)} of {status.statistics.sessions})", "software")
    table.add_column("state", no_wrap=True)
    _add_numbers(table, "open for", "served", "in", "out", "waiting")
    for session in status.sessions:
        table.add_row(
            Text(printable(session.address)),
            Text(printable(session.implementation or "unknown")),
            _state(session, status.slow_after),
            format_seconds(session.age),
            str(session.deliveries),
            format_bytes(session.bytes_in),
            format_bytes(session.bytes_out),
            format_bytes(session.queued_bytes),
        )
    return table


def track_table(detail: NamespaceStatus) -> Table:
    """Return which Objects of each Track are here, a character for each Group."""
    table = _table("track", "Groups")
    _add_numbers(table, "held")
    for track in detail.tracks:
        bar = Text(arrival_bar(track.arrival), overflow="crop", no_wrap=True)
        table.add_row(Text(short_name(track.name)), bar, format_bytes(track.size_bytes))
    return table


def arrival_bar(arrival: Arrival) -> str:
    """Return a character for each Group: how much of it is held."""
    return "".join(_level(column) for column in arrival.columns)


def short_name(name: str) -> str:
    """Return a name in its text form, short: each field as text if it is text, else in hex.

    Of many fields the first two and the last one are shown: those of a KVCS namespace are the
    version, the scope and the publication.
    """
    fields = [_short_field(field) for field in name.split("-")]
    if len(fields) > _MAX_FIELDS:
        fields = [*fields[:2], "…", fields[-1]]
    return "/".join(fields)


def format_seconds(seconds: float) -> str:
    """Return a duration in one unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _short_field(field: str) -> str:
    octets = bytes.fromhex(
        re.sub(
            r"\.([0-9a-f]{2})|[^.]",
            lambda match: match[1] or f"{ord(match[0]):02x}",
            field,
        )
    )
    if all(0x20 <= octet < 0x7F for octet in octets):
        text, most = octets.decode("ascii"), _FIELD_CHARACTERS
    else:
        text, most = octets.hex(), 2 * _FIELD_OCTETS
    return text if len(text) <= most else f"{text[:most]}…"


def _level(column: str) -> str:
    """Return the first level only for nothing, and the last one only for all."""
    cells = column.rstrip("-")
    if not cells:
        return " "
    if set(cells) == {"x"}:
        return "x"
    held = sum(int(cell) for cell in cells.replace("d", "9") if cell.isdigit())
    most = 9 * len(cells)
    return _LEVELS[max(min(held, 1), held * (len(_LEVELS) - 1) // most)]


def _state(session: SessionReport, slow_after: float) -> str:
    if session.behind >= slow_after:
        return f"slow, behind for {format_seconds(session.behind)}"
    if session.is_going_away:
        return "going away"
    return "sending" if session.behind else "up to date"


def _parents(status: Status) -> Iterator[str]:
    """Yield each parent, the preferred one first, and what is known of it."""
    for upstream in status.upstreams:
        state = upstream.error or ("in use" if upstream.is_used else "not in use")
        if upstream.is_used and upstream.error:
            state = f"in use, but {upstream.error}"
        yield f"parent      {printable(upstream.url)}: {printable(state)}"


def _part(size_bytes: int, capacity_bytes: int) -> str:
    return f"{format_bytes(size_bytes)} of {format_bytes(capacity_bytes)}"


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        table.add_column(title, no_wrap=True)
    return table


def _add_numbers(table: Table, *titles: str) -> None:
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True, min_width=max(7, len(title)))
