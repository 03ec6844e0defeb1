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
        segment_keys: Block Keys of all of its segment 0, where the index has them. What it says
            is then compared with the manifest, and nobody needs to believe the index.
    """

    name: PublicationName
    blocks: int
    segment_keys: tuple[BlockKey, ...] = ()


class PublicationIndex(Protocol):
    """Knows publications by their Block Keys.

    An index that gives `IndexEntry.segment_keys` is believed about nothing: a manifest that does
    not have these blocks is refused. Without them it is believed about how many blocks a
    publication that is longer than they are begins with, so it must then be run by somebody who
    may choose what is computed with. Every Object is verified as always.
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
    block_keys: Sequence[BlockKey],
) -> list[IndexEntry]:
    """Return the entries that can be meant, those with most blocks first.

    Args:
        entries: What the index said.
        scope_id: The consumer's scope.
        compatibility_id: What the consumer's engine needs.
        block_keys: What was looked up.
    """
    own = [
        entry
        for entry in entries
        if entry.name.scope_id == scope_id
        and entry.name.compatibility_id == compatibility_id
        and 1 <= entry.blocks <= len(block_keys)
        and _has_looked_up(entry, block_keys)
    ]
    return sorted(dict.fromkeys(own), key=lambda entry: -entry.blocks)


def _has_looked_up(entry: IndexEntry, block_keys: Sequence[BlockKey]) -> bool:
    """Tell whether the keys of an entry, where it gives any, bear out what it says.

    The chain makes a Block Key stand for all before it, so the last one that is shared decides.
    """
    listed = entry.segment_keys
    if not listed:
        return True
    if listed[-1] != entry.name.anchor_key or len(listed) < entry.blocks:
        return False
    return listed[entry.blocks - 1] == block_keys[entry.blocks - 1]
