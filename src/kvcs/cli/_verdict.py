"""What a person is told about a retrieval that lacks something."""

from typing import Any, Final

from kvcs.cli._errors import ExitCode, Incomplete, exit_code, sentence
from kvcs.client import MissingRange, MissingReason, Verdict

__all__ = ("describe_missing", "incomplete")

_CODES: Final = {
    MissingReason.DISCARDED: ExitCode.DATA,
    MissingReason.REJECTED: ExitCode.DATA,
    MissingReason.UNLISTED: ExitCode.DATA,
    MissingReason.REFUSED: ExitCode.REFUSED,
    MissingReason.NON_EXISTENT: ExitCode.NOT_FOUND,
    MissingReason.NOT_PUBLISHED: ExitCode.NOT_FOUND,
    MissingReason.UNKNOWN: ExitCode.NOT_FOUND,
    MissingReason.TIMED_OUT: ExitCode.TIMEOUT,
    MissingReason.RESET: ExitCode.UNREACHABLE,
    MissingReason.CONNECTION_LOST: ExitCode.UNREACHABLE,
    MissingReason.STALLED: ExitCode.TIMEOUT,
    MissingReason.DEADLINE: ExitCode.TIMEOUT,
    MissingReason.STOPPED: ExitCode.FAILED,
}
_WORDS: Final = {
    MissingReason.DISCARDED: "the publication contradicts itself",
    MissingReason.REJECTED: "they failed a check",
    MissingReason.UNLISTED: "no signed manifest lists them",
    MissingReason.REFUSED: "the relay does not allow it",
    MissingReason.NON_EXISTENT: "they do not exist",
    MissingReason.NOT_PUBLISHED: "they were never published",
    MissingReason.UNKNOWN: "nobody holds them any more",
    MissingReason.TIMED_OUT: "the relay waited for them in vain",
    MissingReason.RESET: "their streams were broken off",
    MissingReason.CONNECTION_LOST: "the connection was lost",
    MissingReason.STALLED: "nothing came any more",
    MissingReason.DEADLINE: "the time was up",
    MissingReason.STOPPED: "the retrieval was stopped",
}
_GRAVITY: Final = tuple(MissingReason)


def describe_missing(missing: MissingRange) -> dict[str, Any]:
    """Return a range for ``--json``."""
    return {
        "segment": missing.segment,
        "layer": missing.layer,
        "first": missing.first,
        "end": missing.end,
        "reason": missing.reason.value,
    }


def incomplete(verdict: Verdict) -> Incomplete:
    """Say what lacks, with the exit code of the gravest reason."""
    reasons = sorted({missing.reason for missing in verdict.missing}, key=_GRAVITY.index)
    if verdict.error is not None:
        cause, code = sentence(verdict.error), exit_code(verdict.error)
    elif reasons:
        cause, code = ", ".join(_WORDS[reason] for reason in reasons), _CODES[reasons[0]]
    else:
        # Everything arrived, but no manifest confirmed it.
        cause, code = "the manifest does not confirm them", ExitCode.DATA
    if not verdict.missing_objects:
        text = f"all {verdict.verified} Objects arrived, and may not be used"
    else:
        total = verdict.verified + verdict.missing_objects
        text = f"{verdict.missing_objects} of {total} Objects are missing"
    return Incomplete(f"{text}: {cause}", code, _advice(verdict.verified_prefix_blocks))


def _advice(blocks: int) -> str:
    if not blocks:
        return (
            "Nothing was written. No block is there in all layers that were asked for; try again."
        )
    return (
        f"Nothing was written. The first {blocks} blocks are there in all layers that were asked "
        f"for: try again, or take them with --blocks {blocks}."
    )
