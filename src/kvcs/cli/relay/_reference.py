"""The reference of a relay's settings in docs/reference/configuration.md, made of the schema.

``python -m kvcs.cli.relay._reference docs/reference/configuration.md`` writes it anew between
its two marks; a test compares them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from kvcs.cli.relay.flags import flag_names
from kvcs.cli.relay.schema import Count, Duration, Port, Rate, Settings, Size, is_table, keys
from kvcs.cli.relay.text import format_value

__all__ = ("BEGIN", "END", "reference", "replaced")

BEGIN: Final = "<!-- begin: made by python -m kvcs.cli.relay._reference -->"
END: Final = "<!-- end -->"

_VALUES: Final[dict[Any, str]] = {
    Size: "size",
    Duration: "duration",
    Port: "0..65535",
    Count: "whole number",
    Rate: "number",
    Path: "path",
    str: "text",
    bool: "true or false",
    tuple[str, ...]: "list of texts",
}


def reference() -> str:
    """Return a section for each table, with a row for each key."""
    return "\n".join(_sections(Settings(), "", "At the top"))


def replaced(text: str) -> str:
    """Return `text` with the part between the marks made anew."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def _sections(values: object, path: str, heading: str, text: str = "") -> Iterator[str]:
    yield f"### {heading}\n"
    if text:
        yield f"{text}\n"
    yield from ("| Key | Value | Default | Flag | Meaning |", "|---|---|---|---|---|")
    tables = [key for key in keys(values) if is_table(key.type)]
    for key in keys(values):
        if key not in tables:
            default = getattr(values, key.name)
            shown = "" if default is None else f"`{format_value(key.type, default)}`"
            flag = " ".join(f"`{name}`" for name in flag_names(path, key.name))
            meaning = key.text.replace("|", "\\|")
            yield f"| `{key.name}` | {_value(key.type)} | {shown} | {flag} | {meaning} |"
    yield ""
    for key in tables:
        place = f"{path}.{key.name}" if path else key.name
        yield from _sections(getattr(values, key.name), place, f"`[{place}]`", key.text)


def _value(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f'`"{choice}"`' for choice in get_args(kind))
    return _VALUES[kind]


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(replaced(page.read_text(encoding="utf-8")), encoding="utf-8")
