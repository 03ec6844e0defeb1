"""What ``kvcs doctor`` says of aiomoqt's test relay: the faults that are known, and no others."""

import asyncio

import pytest
from tests.interop.sites import client_config, foreign_relay, url

from kvcs.cli.doctor.examination import examine
from kvcs.cli.doctor.finding import Grade, Outcome
from kvcs.cli.doctor.site import Site
from kvcs.endpoint.connect import connect

# What is written in docs/reference/interop.md.
ALWAYS = {
    "end-of-track": (Grade.LIMITED, "turned into END_OF_GROUP at {4, 0}"),
    "large-objects": (Grade.BAD, "4 of 4 Objects did not come, the first at {0, 0}"),
    "open-fetch": (Grade.BAD, "12 of 16 Objects did not come, the first at {1, 0}"),
    "kept-fetch": (Grade.LIMITED, "DOES_NOT_EXIST"),
    "kept-listing": (Grade.LIMITED, "not told"),
    "kept-publication": (Grade.LIMITED, "DOES_NOT_EXIST"),
}
# Depends on what overtakes what inside that relay.
SOMETIMES = {"cold-join", "join"}


@pytest.mark.timeout(120)
async def test_known_faults_of_a_foreign_relay_are_found_and_kvcs_works(certificate):
    async with asyncio.timeout(100), foreign_relay(certificate) as port:
        config = client_config(certificate)
        async with connect(url(port), config):
            """The relay has started."""

        report = await examine(Site(url(port), config, silence=2.0), seconds=90)

    findings = {finding.row.name: finding for finding in report.findings()}
    lacking = {name: finding for name, finding in findings.items() if not finding.is_fine}
    texts = {name: finding.text for name, finding in lacking.items()}
    assert lacking.keys() - SOMETIMES == ALWAYS.keys(), texts
    for name, (grade, text) in ALWAYS.items():
        assert findings[name].grade is grade, texts
        assert text in findings[name].text
    for name in SOMETIMES & lacking.keys():
        assert "came again" in findings[name].text
    assert report.outcome() is Outcome.LIMITED
    assert findings["publication"].grade is Grade.GOOD
