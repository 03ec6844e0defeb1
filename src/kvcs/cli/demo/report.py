"""The tables of the demo: what each consumer took, and when it had its first token."""

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from kvcs.cli._output import format_bytes
from kvcs.cli.demo.portion import Portion

__all__ = ("arrival_table", "decoding_notes", "decoding_table")

_EXPLANATION: Final = (
    "late counts from before it connects, finding and fetching included; alone is the same",
    "prompt in the same process, which has run it once before. live and mid-join wait for a",
    "prefill on the same processors: reuse saves time where the prefix is there already.",
)


def arrival_table(portions: Sequence[Portion]) -> Table:
    """Return a row per consumer: what it took, when, and whether every byte is the same."""
    table = _table("consumer")
    titles = ("layers", "blocks", "bytes", "first\nlayer", "last\nlayer")
    for title in (*titles, "verified\nObjects", "rejected\nObjects", "every\nbyte"):
        table.add_column(title, justify="right", no_wrap=True)
    for portion in portions:
        outcome = portion.retrieved
        assert outcome is not None
        table.add_row(
            portion.name,
            f"{len(portion.digests)}/{outcome.layers}",
            str(outcome.blocks),
            format_bytes(outcome.payload_bytes),
            _seconds(outcome.first_layer_s),
            _seconds(outcome.last_layer_s),
            str(outcome.verified),
            str(outcome.rejected),
            _sameness(is_equal=portion.has_equal_bytes),
        )
    return table


def decoding_table(portions: Sequence[Portion]) -> Table:
    """Return a row per consumer that decoded: with the prefix from the relay, and alone."""
    table = _table("consumer", gap=2)
    table.add_column("tokens\nreused", justify="right")
    table.add_column("their keys\nand values")
    for title in ("first\ntoken", "alone", "times\nas fast", "tokens\ndecoded"):
        table.add_column(title, justify="right", no_wrap=True)
    for portion in portions:
        outcome, compared = portion.retrieved, portion.compared
        assert outcome is not None
        assert outcome.time_to_first_token is not None
        assert compared is not None
        table.add_row(
            portion.name,
            str(outcome.reused_tokens),
            _origin(portion),
            _seconds(outcome.time_to_first_token),
            _seconds(compared.time_to_first_token),
            f"{compared.time_to_first_token / outcome.time_to_first_token:.1f}",
            f"{compared.tokens} {_sameness(is_equal=compared.is_equal)}",
        )
    return table


def decoding_notes(portions: Sequence[Portion]) -> list[str]:
    """Return what was decoded, and what the times count."""
    texts = [portion.retrieved.text for portion in portions if portion.retrieved]
    notes = [f"decoded: {next(filter(None, texts), '').strip()!r}"]
    if any(portion.is_late for portion in portions):
        notes += _EXPLANATION
    return notes


def _origin(portion: Portion) -> str:
    if portion.is_recomputed:
        return "recomputed"
    return "was in the relay" if portion.is_late else "being computed"


def _table(first: str, *, gap: int = 1) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, gap, 0, 0))
    table.add_column(first, no_wrap=True)
    return table


def _sameness(*, is_equal: bool) -> str:
    return "equal" if is_equal else "DIFFERENT"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f} s"
