"""Finding exact publications by an index, so that no relay is asked about prefixes.

Probing tells every relay on the way which prefixes a prompt shares with others, and where it
diverges from what is published. An index answers with whole names; the relay then sees only the
publication that is taken. An index also knows publications that are longer than the prompt,
whose Anchor Key the consumer cannot compute.

Source:
    KVCS, "Discovering Publications" and "Privacy Considerations".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcs.kv.identity import BlockKey, CompatibilityId, ScopeId
from kvcs.kv.naming import PublicationName

__all__ = ("IndexEntry", "PublicationIndex", "sorted_entries")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """A publication that begins with blocks that were looked up.

    Attributes:
        name: The publication.
        blocks: How many of the blocks, from the first one on, it begins with.
    """

    name: PublicationName
    blocks: int


class PublicationIndex(Protocol):
    """Knows publications by their Block Keys.

    It is believed about which blocks a publication begins with where the consumer cannot see it
    itself, so it must be run by members of the scope. It is not believed about anything else:
    every Object is verified as always.
    """

    async def look_up(self, block_keys: Sequence[BlockKey]) -> Sequence[IndexEntry]:
        """Return the publications that begin with at least the first of these blocks.

        Args:
            block_keys: Block Keys of a prompt, in order.

        Raises:
            KvcsError: The index cannot be asked.
        """
        ...


def sorted_entries(
    entries: Sequence[IndexEntry],
    scope_id: ScopeId,
    compatibility_id: CompatibilityId,
    *,
    blocks: int,
) -> list[IndexEntry]:
    """Return the entries that can be meant, those with most blocks first.

    Args:
        entries: What the index said.
        scope_id: The consumer's scope.
        compatibility_id: What the consumer's engine needs.
        blocks: How many blocks were looked up.
    """
    own = [
        entry
        for entry in entries
        if entry.name.scope_id == scope_id
        and entry.name.compatibility_id == compatibility_id
        and 1 <= entry.blocks <= blocks
    ]
    return sorted(dict.fromkeys(own), key=lambda entry: -entry.blocks)
