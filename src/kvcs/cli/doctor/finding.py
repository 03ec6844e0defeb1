"""What an examination finds: one row for each thing that KVCS uses of a relay."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ("ROWS", "Finding", "Grade", "Outcome", "Report", "Row")


class Grade(StrEnum):
    """How a row stands.

    Attributes:
        GOOD: As KVCS wants it.
        LIMITED: KVCS gets along without it.
        BAD: Absent or wrong.
        UNKNOWN: Could not be found out.
        MEASURED: A value, neither good nor bad.
    """

    GOOD = "good"
    LIMITED = "limited"
    BAD = "bad"
    UNKNOWN = "unknown"
    MEASURED = "measured"


class Outcome(StrEnum):
    """What all rows together mean.

    Attributes:
        GOOD: Everything that KVCS uses is there.
        LIMITED: KVCS works, with the limitations that the rows name.
        UNSUITABLE: KVCS does not work here.
        REFUSED: The relay lets nobody publish without another token, so most is unknown.
    """

    GOOD = "good"
    LIMITED = "limited"
    UNSUITABLE = "unsuitable"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is examined.

    Attributes:
        name: Stable name, for programs.
        title: For people.
        meaning: What it means for KVCS where the row is not good.
        is_needed: KVCS does not work at all without it.
    """

    name: str
    title: str
    meaning: str
    is_needed: bool = False


_ROWS: Final = (
    Row("connection", "QUIC connection", "Nothing works without a connection.", is_needed=True),
    Row(
        "certificate",
        "TLS certificate",
        "Publishers and consumers refuse the connection unless they trust its authority.",
        is_needed=True,
    ),
    Row(
        "draft",
        "MOQT draft",
        "kvcs speaks draft 22 only; the relay must offer its ALPN, moqt-22.",
        is_needed=True,
    ),
    Row(
        "filter-ranges",
        "MAX_FILTER_RANGES",
        "Consumers of the first blocks take whole layers and drop the rest.",
    ),
    Row("limits", "other SETUP options", ""),
    Row("round-trip", "round trip", "Nothing is known about the delay."),
    Row(
        "announce",
        "PUBLISH_NAMESPACE",
        "Nothing can be published here; the operator may have to allow the scope.",
        is_needed=True,
    ),
    Row(
        "discovery",
        "SUBSCRIBE_NAMESPACE, 4 fields",
        "Consumers cannot find a publication by its prompt; they need its exact URL.",
    ),
    Row(
        "scope-listing",
        "SUBSCRIBE_NAMESPACE, 2 fields",
        "kvcs inspect cannot list the publications of a scope.",
    ),
    Row(
        "later-namespace",
        "NAMESPACE when announced later",
        "Consumers that ask before the publisher is there are not told when it comes.",
    ),
    Row(
        "withdrawal",
        "NAMESPACE_DONE",
        "Consumers take publications for available that are gone, and lose time on them.",
    ),
    Row(
        "refusal",
        "refusal of an unknown Track",
        "Consumers turn from manifest.cose to manifest only after DOES_NOT_EXIST to SUBSCRIBE "
        "and to FETCH; any other answer delays or ends their retrieval.",
    ),
    Row(
        "live",
        "live SUBSCRIBE",
        "Layers do not reach consumers while they are computed; what is lost is fetched, if it "
        "can be.",
    ),
    Row(
        "aggregation",
        "one upstream subscription",
        "The publisher sends everything once for every consumer.",
    ),
    Row(
        "payload",
        "payload octets",
        "Consumers refuse every Object whose octets were changed.",
        is_needed=True,
    ),
    Row(
        "priority",
        "Publisher Priority",
        "Early layers do not overtake later ones, so the first layer is usable later.",
    ),
    Row(
        "track-properties",
        "Track Properties",
        "MAX_CACHE_DURATION is lost: relays behind this one keep prompts for too long.",
    ),
    Row(
        "object-properties",
        "Object Properties",
        "Properties of protected Objects are lost; plain KVCS uses none.",
    ),
    Row(
        "end-of-group",
        "End of Group",
        "Consumers and relays behind this one learn only from the manifest how many blocks a "
        "layer has.",
    ),
    Row(
        "end-of-track",
        "End of Track",
        "Relays behind this one do not learn that a Track is whole; consumers complete by the "
        "manifest.",
    ),
    Row(
        "publish-done",
        "PUBLISH_DONE",
        "Consumers cannot tell the end of a publication from a pause.",
    ),
    Row(
        "many-groups",
        "160 Groups at once",
        "Models with many layers lose some on the way; consumers must fetch them.",
    ),
    Row(
        "large-objects",
        "Objects of 1 MiB",
        "Publications with large blocks lose Objects here; publish smaller blocks.",
    ),
    Row(
        "join",
        "join in mid-production, cached",
        "Consumers that join a running publication lack layers, or get some twice.",
    ),
    Row(
        "cold-join",
        "join in mid-production, not cached",
        "The first consumer of a running publication lacks layers, or gets some twice.",
    ),
    Row(
        "fetch",
        "FETCH of ranges",
        "Completed caches and lost layers cannot be had, or not in part.",
    ),
    Row(
        "open-fetch",
        "FETCH without an end",
        "Consumers that ask for everything lack layers; those of kvcs name both ends.",
    ),
    Row(
        "range-filter",
        "OBJECTID_FILTER",
        "Consumers of the first blocks take whole layers and drop the rest.",
    ),
    Row(
        "filtered-cache",
        "FETCH after a filtered one",
        "After somebody took the first blocks, others are told that the rest does not exist.",
    ),
    Row(
        "gap-filling",
        "gaps filled upstream",
        "Consumers lack what the relay did not happen to see, although the publisher has it.",
    ),
    Row(
        "kept-fetch",
        "FETCH after the publisher left",
        "A cache lives only as long as its publisher.",
    ),
    Row(
        "kept-listing",
        "NAMESPACE after the publisher left",
        "Cached publications are found by their exact URL only.",
    ),
    Row(
        "late-subscribe",
        "SUBSCRIBE after the publisher left",
        "Consumers wait for what does not come before they fetch.",
    ),
    Row(
        "gap-markers",
        "honest gaps",
        "Consumers are told that blocks do not exist which this relay does not hold, and stop "
        "looking elsewhere.",
    ),
    Row(
        "expiry",
        "MAX_CACHE_DURATION",
        "Prompts stay here longer than the retention that the publisher set.",
    ),
    Row(
        "publication",
        "a KV cache, joined half way",
        "Consumers do not get a whole cache through this relay.",
        is_needed=True,
    ),
    Row(
        "kept-publication",
        "a KV cache, after the publisher left",
        "Publishers must stay for as long as their caches are wanted.",
    ),
    Row("live-rate", "throughput, live", "Nothing is known about the throughput."),
    Row("fetch-rate", "throughput, FETCH", "Nothing is known about the throughput."),
)
# Without it nothing else of KVCS can be tried.
_FIRST_NEED: Final = "announce"
#: All rows by name, in the order in which they are shown.
ROWS: Final = {row.name: row for row in _ROWS}


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one row.

    Attributes:
        row: The row.
        grade: How it stands.
        text: What was seen, in one sentence without a full stop.
        value: The measured value in SI units, where there is one.
    """

    row: Row
    grade: Grade
    text: str
    value: float | None = None

    @property
    def is_fine(self) -> bool:
        """Nothing is to be said about what it means."""
        return self.grade in (Grade.GOOD, Grade.MEASURED)


class Report:
    """Findings of one examination, one for each row."""

    def __init__(self) -> None:
        """Know nothing."""
        self._findings: dict[str, Finding] = {}
        self._is_refused = False

    def note(self, name: str, grade: Grade, text: str, value: float | None = None) -> None:
        """Note a finding; only the first one for a row counts."""
        self._findings.setdefault(name, Finding(ROWS[name], grade, text, value))

    def note_all(self, names: Iterable[str], grade: Grade, text: str) -> None:
        """Note the same finding in all rows of `names` that have none."""
        for name in names:
            self.note(name, grade, text)

    def note_refused(self, names: Collection[str], text: str) -> None:
        """Note in all rows of `names` that have no finding that the relay asks for authority."""
        self.note_all(names, Grade.BAD, text)
        self._is_refused = self._is_refused or _FIRST_NEED in names

    def is_bad(self, name: str) -> bool:
        """Tell whether a row is known not to work."""
        finding = self._findings.get(name)
        return finding is not None and finding.grade is Grade.BAD

    def findings(self) -> list[Finding]:
        """Return all rows in order; what was not examined is unknown."""
        return [
            self._findings.get(name) or Finding(row, Grade.UNKNOWN, "not examined")
            for name, row in ROWS.items()
        ]

    def outcome(self) -> Outcome:
        """Return what the rows mean together."""
        findings = self.findings()
        if self._is_refused:
            return Outcome.REFUSED
        if any(it.row.is_needed and it.grade in (Grade.BAD, Grade.UNKNOWN) for it in findings):
            return Outcome.UNSUITABLE
        return Outcome.GOOD if all(it.is_fine for it in findings) else Outcome.LIMITED
