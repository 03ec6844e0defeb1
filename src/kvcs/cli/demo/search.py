"""Looking for octets in everything that a relay has written to its disk."""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ("Findings", "forms", "search")

# Read at a time. What is looked for may lie across two parts.
_PART_BYTES: Final = 8 * 2**20


@dataclass(slots=True)
class Findings:
    """What was found.

    Attributes:
        files: Files that were looked through.
        size_bytes: Their octets.
        found: Names of what is in one of them.
    """

    files: int = 0
    size_bytes: int = 0
    found: set[str] = field(default_factory=set[str])


def forms(octets: bytes) -> tuple[bytes, ...]:
    """Return octets as they are, in hex, and in base64, whatever stands in front of them."""
    texts = [octets.hex(), octets.hex().upper()]
    for skipped in range(3):
        # Three octets make four digits: what the neighbours take part in is left out.
        whole = octets[skipped : len(octets) - (len(octets) - skipped) % 3]
        texts += [base64.b64encode(whole).decode(), base64.urlsafe_b64encode(whole).decode()]
    return (octets, *dict.fromkeys(text.encode() for text in texts if len(text) >= 8))


def search(directory: Path, wanted: Mapping[str, tuple[bytes, ...]]) -> Findings:
    """Look through all files below a directory.

    Args:
        directory: Where.
        wanted: What to look for, by name, in each of its forms.

    Raises:
        OSError: A file cannot be read.
    """
    findings = Findings()
    overlap = max((len(text) for texts in wanted.values() for text in texts), default=1) - 1
    for path in sorted(directory.rglob("*")):
        if not path.is_file():
            continue
        findings.files += 1
        findings.size_bytes += path.stat().st_size
        for part in _parts(path, overlap):
            findings.found |= {
                name
                for name, texts in wanted.items()
                if name not in findings.found and any(text in part for text in texts)
            }
    return findings


def _parts(path: Path, overlap: int) -> Iterator[bytes]:
    """Return the file in parts, each with the end of the one before."""
    end = b""
    with path.open("rb") as file:
        while part := file.read(_PART_BYTES):
            part = end + part
            yield part
            end = part[-overlap:] if overlap else b""
