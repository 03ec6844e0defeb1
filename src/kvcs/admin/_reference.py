"""The reference of metrics in docs/reference/metrics.md, made of the tables of metrics.

``python -m kvcs.admin._reference docs/reference/metrics.md`` writes it anew between its two
marks; a test compares them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvcs.admin.metrics import COUNTS, STATES

__all__ = ("BEGIN", "END", "reference", "replaced")

BEGIN: Final = "<!-- begin: made by python -m kvcs.admin._reference -->"
END: Final = "<!-- end -->"


def reference() -> str:
    """Return a table with a row for each metric."""
    return "\n".join(_lines())


def replaced(text: str) -> str:
    """Return `text` with the part between the marks made anew."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def _lines() -> Iterator[str]:
    yield from ("| Name | Type | Unit | Label | Meaning |", "|---|---|---|---|---|")
    for count in COUNTS:
        label = f"`{count.label}`" if count.label else ""
        yield f"| `{count.name}` | {count.kind} | {count.unit} | {label} | {count.text} |"
    for state in STATES:
        yield f"| `{state.name}` | gauge | {state.unit} |  | {state.text} |"
    yield from ("", "| Name | Label | Value | When |", "|---|---|---|---|")
    for count in COUNTS:
        if count.label == "code":
            yield f"| `{count.name}` | `code` | name of a code | see its name in Section 12.3 |"
        else:
            for value, text in count.values.items():
                yield f"| `{count.name}` | `{count.label}` | `{value}` | {text} |"
    yield ""


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(replaced(page.read_text(encoding="utf-8")), encoding="utf-8")
