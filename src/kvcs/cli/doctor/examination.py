"""All probes one after the other, each bounded in time, none stopped by another's failure."""

import asyncio
from collections.abc import Callable
from typing import Final

from kvcs.cli._errors import ExitCode, exit_code, first_cause
from kvcs.cli.doctor.finding import ROWS, Grade, Report
from kvcs.cli.doctor.probes import PROBES, Probe
from kvcs.cli.doctor.site import Site
from kvcs.errors import ConfigError, KvcsError, RequestTimedOut

__all__ = ("PROBE_SECONDS", "examine")

#: Longest time for one probe: throughput over a slow link takes it, all others end far earlier.
PROBE_SECONDS: Final = 20.0


async def examine(
    site: Site,
    *,
    seconds: float,
    on_probe: Callable[[int, str], None] = lambda _, __: None,
) -> Report:
    """Probe a relay.

    Args:
        site: The relay.
        seconds: For all probes; rows that are not reached are unknown.
        on_probe: Called before each probe with its number and title.

    Raises:
        ConfigError: The URL or a setting is wrong.
    """
    report = Report()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    for number, probe in enumerate(PROBES):
        on_probe(number, probe.title)
        await _attempt(probe, site, report, min(deadline, loop.time() + PROBE_SECONDS))
    return report


async def _attempt(probe: Probe, site: Site, report: Report, deadline: float) -> None:
    """Make one probe; what goes wrong is its finding."""
    missing = [name for name in probe.needs if report.is_bad(name)]
    if missing:
        report.note_all(probe.rows, Grade.UNKNOWN, f"needs {ROWS[missing[0]].title}")
        return
    if deadline <= asyncio.get_running_loop().time():
        report.note_all(probe.rows, Grade.UNKNOWN, "the time was up")
        return
    try:
        async with asyncio.timeout_at(deadline):
            await probe.run(site, report)
    except TimeoutError as error:
        text = str(error) if isinstance(error, RequestTimedOut) else "not answered in time"
        report.note_all(probe.rows, Grade.BAD, text)
    except ConfigError:
        raise
    except (KvcsError, ExceptionGroup) as error:
        cause = first_cause(error)
        if not isinstance(cause, KvcsError):
            raise
        if exit_code(cause) is ExitCode.REFUSED:
            report.note_refused(probe.rows, str(cause))
        report.note_all(probe.rows, Grade.BAD, str(cause))
    report.note_all(probe.rows, Grade.UNKNOWN, "not found out")
