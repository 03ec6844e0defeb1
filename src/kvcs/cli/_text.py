"""Text of files and peers, made fit to be shown."""

__all__ = ("printable",)


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
