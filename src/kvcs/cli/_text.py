"""Text of files and peers, made fit to be shown."""

__all__ = ("format_kid", "printable")


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` with everything but printable characters, and those of `keep`, escaped.

    Others can act on a terminal, hide what is there, or make one line look like two.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def format_kid(kid: bytes | None) -> str | None:
    """Return a key identifier as it is named in a key ring; in hex if it is no text."""
    if kid is None:
        return None
    try:
        return printable(kid.decode())
    except UnicodeDecodeError:
        return kid.hex()
