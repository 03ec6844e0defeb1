"""``kvcs doctor``: publish and fetch a small test cache, and say what a relay lacks for KVCS."""

import itertools
from collections.abc import Sequence
from typing import Any, Final

import click
from rich.progress import SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from kvcs.cli._connection import connect_config
from kvcs.cli._errors import ExitCode
from kvcs.cli._options import (
    Command,
    RelaySettings,
    option,
    pass_output,
    trust_options,
    url_argument,
)
from kvcs.cli._output import Output, rounded
from kvcs.cli._runtime import run
from kvcs.cli._text import printable
from kvcs.cli._units import DURATION
from kvcs.cli.doctor.examination import examine
from kvcs.cli.doctor.finding import Finding, Grade, Outcome, Report
from kvcs.cli.doctor.probes import PROBES
from kvcs.cli.doctor.site import Site

__all__ = ("doctor",)

# So many rows with the same reason are shown as one.
_MANY: Final = 3
_CODES: Final = {
    Outcome.GOOD: ExitCode.DONE,
    Outcome.LIMITED: ExitCode.LIMITED,
    Outcome.UNSUITABLE: ExitCode.UNSUITABLE,
    Outcome.REFUSED: ExitCode.REFUSED,
}
_SENTENCES: Final = {
    Outcome.GOOD: "This relay has all that KVCS uses.",
    Outcome.LIMITED: "KVCS works through this relay, with limitations.",
    Outcome.UNSUITABLE: "KVCS does not work through this relay.",
    Outcome.REFUSED: (
        "This relay refuses the examination, which has a scope of its own.\n"
        "  Give --token-file a token for every scope: kvcs token mint --scope all --role producer "
        "--role consumer, with --audience NAME where the relay demands its own"
    ),
}
_MARKS: Final = {
    Grade.GOOD: ("ok", "green"),
    Grade.LIMITED: ("limited", "yellow"),
    Grade.BAD: ("bad", "red"),
    Grade.UNKNOWN: ("unknown", "yellow"),
    Grade.MEASURED: ("", ""),
}


@click.command(cls=Command)
@url_argument
@trust_options
@option(
    "--timeout", type=DURATION, default="2m", help="Whole time allowed; a probe takes 20 s at most."
)
@pass_output
def doctor(output: Output, url: str, timeout: float, **trust: Any) -> int:
    """Examine the relay at URL: what does it lack for KVCS?

    Publishes a small test cache through the relay in a scope of its own, takes it back in all the
    ways that consumers use, and says what it saw, row by row, with what it means for KVCS. The
    relay may keep the test cache for a minute. A single failure stops nothing. The exit code is
    0 when all is there, 8 when KVCS works with limitations, 9 when it does not work, 4 when the
    relay refuses the examination: one that goes by tokens must be shown one for every scope
    (kvcs token mint --scope all --role producer --role consumer).

    \b
    Examples:
      kvcs doctor moqt://127.0.0.1:4433/ --ca certificate/ca.pem
      kvcs doctor moqt://relay.example:4433/ --json
    """  # noqa: D301 - click reads the backslash
    # Less than all, so that a relay that does not answer is told as such.
    relay = RelaySettings(url=url, timeout=timeout / 2, **trust)
    site = Site(url, connect_config(relay))
    report = run(_examine(output, site, timeout))
    _show(output, site, report)
    return _CODES[report.outcome()]


async def _examine(output: Output, site: Site, seconds: float) -> Report:
    columns = (SpinnerColumn(), TextColumn("{task.completed}/{task.total} {task.description}"))
    with output.progress(*columns) as progress:
        task = progress.add_task("", total=len(PROBES))

        def show(number: int, title: str) -> None:
            progress.update(task, completed=number + 1, description=title)

        return await examine(site, seconds=seconds, on_probe=show)


def _show(output: Output, site: Site, report: Report) -> None:
    findings, outcome = report.findings(), report.outcome()
    output.result(
        {
            "url": site.url,
            "outcome": outcome,
            "implementation": site.options.implementation,
            "rows": [_describe(finding) for finding in findings],
        }
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")
    for alike in _alike(findings):
        finding, *others = alike
        mark, style = _MARKS[finding.grade]
        title = f"{len(alike)} rows more" if others else finding.row.title
        table.add_row(Text(mark, style), title, Text(printable(finding.text)))
        if not others and not finding.is_fine and finding.row.meaning:
            table.add_row("", "", Text(finding.row.meaning, "italic"))
    output.table(table)
    output.text(f"\n{_SENTENCES[outcome]}")


def _alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Join neighbours that are unknown for the same reason: many of them say no more than one."""
    joined: list[list[Finding]] = []
    for _, group in itertools.groupby(findings, lambda it: (it.grade, it.text)):
        alike = list(group)
        is_one = alike[0].grade is Grade.UNKNOWN and len(alike) >= _MANY
        joined.extend([alike] if is_one else ([finding] for finding in alike))
    return joined


def _describe(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.row.name,
        "title": finding.row.title,
        "grade": finding.grade,
        "finding": finding.text,
        "meaning": None if finding.is_fine else finding.row.meaning,
        "value": rounded(finding.value),
    }
