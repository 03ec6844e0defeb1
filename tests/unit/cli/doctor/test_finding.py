import pytest

from kvcs.cli.doctor.finding import ROWS, Grade, Outcome, Report
from kvcs.cli.doctor.probes import PROBES

NEEDED = [name for name, row in ROWS.items() if row.is_needed]
OTHERS = [name for name, row in ROWS.items() if not row.is_needed]


def report_of(**grades):
    report = Report()
    for name in ROWS:
        report.note(name, grades.get(name.replace("-", "_"), Grade.GOOD), "seen")
    return report


def test_outcome_is_good_when_all_rows_are_good_or_measured():
    assert report_of(round_trip=Grade.MEASURED).outcome() is Outcome.GOOD


@pytest.mark.parametrize("grade", [Grade.LIMITED, Grade.BAD, Grade.UNKNOWN])
@pytest.mark.parametrize("name", OTHERS)
def test_outcome_is_limited_by_any_row_that_is_not_needed(name, grade):
    assert report_of(**{name.replace("-", "_"): grade}).outcome() is Outcome.LIMITED


@pytest.mark.parametrize("grade", [Grade.BAD, Grade.UNKNOWN])
@pytest.mark.parametrize("name", NEEDED)
def test_outcome_is_unsuitable_without_a_needed_row(name, grade):
    assert report_of(**{name: grade}).outcome() is Outcome.UNSUITABLE


def test_nothing_examined_is_unsuitable():
    report = Report()

    assert {finding.grade for finding in report.findings()} == {Grade.UNKNOWN}
    assert report.outcome() is Outcome.UNSUITABLE


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [(("announce", "discovery"), Outcome.REFUSED), (("discovery",), Outcome.LIMITED)],
)
def test_outcome_is_refused_only_where_nothing_may_be_published(rows, outcome):
    report = Report()
    report.note_refused(rows, "UNAUTHORIZED (0x1)")
    for name in ROWS:
        report.note(name, Grade.GOOD, "seen")

    assert report.is_bad("discovery")
    assert report.outcome() is outcome


def test_first_finding_of_a_row_stands():
    report = Report()
    report.note("live", Grade.BAD, "first")
    report.note_all(("live", "join"), Grade.UNKNOWN, "second")

    texts = {finding.row.name: finding.text for finding in report.findings()}
    assert (texts["live"], texts["join"]) == ("first", "second")
    assert report.is_bad("live")
    assert not report.is_bad("join")


def test_every_row_is_found_out_by_exactly_one_probe():
    assert sorted(name for probe in PROBES for name in probe.rows) == sorted(ROWS)


def test_every_row_that_can_fall_short_says_what_it_means():
    assert [name for name, row in ROWS.items() if not row.meaning] == ["limits"]
