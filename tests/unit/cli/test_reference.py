"""The documentation of the command line says what the commands say."""

from pathlib import Path

import pytest

from kvcs.cli._errors import ExitCode
from kvcs.cli._reference import BEGIN, END, reference, replaced
from kvcs.cli.doctor.finding import ROWS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_page_has_every_command_and_setting_as_they_are(page):
    assert replaced(page) == page, "python -m kvcs.cli._reference docs/reference/cli.md"


def test_page_has_every_exit_code(page):
    table = page.partition("## Exit codes")[2].partition("## JSON")[0]

    assert [int(line.split("|")[1]) for line in table.splitlines() if line[2:3].isdigit()] == [
        *ExitCode
    ]


def test_only_the_part_between_the_marks_is_replaced():
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nz") == f"a\n{BEGIN}\n\n{reference()}\n{END}\nz"


def test_page_of_the_doctor_has_every_row_as_it_is():
    page = (PAGE.parent / "doctor.md").read_text(encoding="utf-8")
    table = page.partition("## Rows")[2].partition("## JSON")[0]

    rows = [
        f"| `{row.name}` | {row.title} | {'needed' if row.is_needed else ''} | "
        f"{row.meaning or 'measured only'} |"
        for row in ROWS.values()
    ]
    assert [line for line in table.splitlines() if line.startswith("| `")] == rows
