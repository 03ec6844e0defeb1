"""The consumer: finds publications of a prompt and retrieves prefixes of them."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from kvcs.client.config import ConsumerConfig
from kvcs.client.discovery import Candidate, Discovery
from kvcs.client.index import IndexEntry, PublicationIndex, sorted_entries
from kvcs.client.manifest_track import ManifestTrack
from kvcs.client.memory import HostMemory, Memory
from kvcs.client.received import Wish
from kvcs.client.refused import counting
from kvcs.client.retrieval import Retrieval
from kvcs.client.selection import Prefix
from kvcs.client.signal import Signal
from kvcs.client.source import Source
from kvcs.endpoint.connection import Connection
from kvcs.errors import ConfigError, KeyMismatch, KvcsError
from kvcs.kv.consistency import check_anchor, check_identity, check_segment_keys
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.identity import BlockKey, ScopeKey
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import PublicationName, candidate_prefixes
from kvcs.names import TrackNamespace

__all__ = ("Consumer",)

# Of a publication whose manifest cannot be had: not complete, not even a layer of it known.
_NOTHING: Final = (False, -1)


class Consumer:
    """Takes KV caches from a relay, or from a publisher itself.

    Args:
        connection: Session to ask on.
        scope_key: Secret of the scope.
        descriptor: What the consumer's engine needs; None when exact publications are
            retrieved whose manifest says what they hold.
        config: Settings.
        others: Further sessions, for recovery; the same publication is asked for there.
        index: Where publications are looked up instead of asking relays about prefixes.

    Attributes:
        refused: Publications that were refused at their manifest, by reason: each time that one
            was asked for, be it to rank it or to retrieve it. The words are those of
            `kvcs.client.refused`.
        ignored_namespaces: Namespaces that peers or the index named, and that are of no use.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        scope_key: ScopeKey,
        descriptor: Descriptor | None = None,
        config: ConsumerConfig | None = None,
        others: Sequence[Connection] = (),
        index: PublicationIndex | None = None,
    ) -> None:
        self._connection = connection
        self._scope_key = scope_key
        self._descriptor = descriptor
        self._config = config or ConsumerConfig()
        self._others = tuple(others)
        self._index = index
        # Two searches at once could ask for one prefix twice, which a peer must refuse.
        self._searching = asyncio.Lock()
        self.refused: Counter[str] = Counter()
        self.ignored_namespaces = 0

    def __repr__(self) -> str:
        return f"<Consumer {self._connection.peer}>"

    def block_keys(self, tokens: Sequence[int]) -> tuple[BlockKey, ...]:
        """Return the Block Keys of the complete blocks of `tokens`.

        Raises:
            ConfigError: The consumer has no descriptor.
            DataError: A token is not an integer 0..2^32-1.
        """
        descriptor = self._needed_descriptor()
        profile = self._config.profile
        compatibility_id = profile.compatibility_id(self._scope_key, descriptor)
        return profile.block_keys(
            self._scope_key, compatibility_id, tokens, block_tokens=descriptor.block_tokens
        )

    async def discover(
        self,
        tokens: Sequence[int],
        *,
        blocks: int | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109 - expiry is an answer, not an exception
    ) -> list[Candidate]:
        """Find publications of a prompt, best first.

        The complete-block prefixes are asked for longest first, `max_probes` at a time; those
        of the longest one that is known are returned: complete ones first, then those with
        more completed layers, then those seen first. Nothing found is an empty list.

        The search ends with the first prefixes that are known. It takes longest when nothing
        is: `discovery_wait` and a round trip for every `max_probes` blocks, so that 4,096
        blocks take 64 s with the defaults, and 10 s reach the longest 640 prefixes. When
        `timeout` passes first, what was found until then is returned, as far ranked as is
        known. Whoever looks for a short prefix of a long prompt says so with `blocks`, and so does
        whoever finds that none of the longest prefix can be used: anybody who may announce can
        announce what nobody believes, for all of the prompt.

        With an index, nothing but the index is asked, and of the publications that it names those
        are returned whose manifest can be had: a relay sees no prefix, only exact publications.

        Args:
            tokens: The prompt.
            blocks: Most blocks to look for; None for all complete ones.
            timeout: Seconds for the whole call, ranking included.

        Raises:
            RequestRejected: The peer refused to tell.
            KvcsError: The session ended, or the index cannot be asked.
        """
        keys = self.block_keys(tokens)
        descriptor, profile = self._needed_descriptor(), self._config.profile
        scope_id = profile.scope_id(self._scope_key)
        compatibility_id = profile.compatibility_id(self._scope_key, descriptor)
        longest = len(keys) if blocks is None else min(blocks, len(keys))
        deadline = asyncio.get_running_loop().time() + timeout
        if self._index is not None:
            return await self._indexed(self._index, keys, longest, deadline)
        prefixes = candidate_prefixes(scope_id, compatibility_id, keys[:longest])
        covered = list(zip(range(longest, 0, -1), prefixes, strict=True))
        search = Discovery(self._connection, covered, self._config)
        try:
            async with asyncio.timeout_at(deadline), self._searching:
                found = await search.run()
        except TimeoutError:
            found = search.found
        finally:
            self.ignored_namespaces += search.ignored
        return await self._ranked(
            [Candidate(name=name, blocks=count, keys=keys) for count, name in found], deadline
        )

    def candidate(
        self,
        namespace: TrackNamespace | PublicationName,
        tokens: Sequence[int] = (),
        *,
        is_vouched: bool = False,
    ) -> Candidate:
        """Name an exact publication, for example from an index or a URL.

        Args:
            namespace: The full Track Namespace of five fields.
            tokens: The prompt; without it the caller vouches for the publication's tokens.
            is_vouched: The caller knows that the publication's tokens start with `tokens`, so
                that a segment may be used in part.

        Raises:
            DataError: Not the namespace of a publication.
        """
        if isinstance(namespace, TrackNamespace):
            namespace = PublicationName.parse(namespace)
        return Candidate(
            name=namespace,
            keys=self.block_keys(tokens) if tokens else (),
            is_vouched=is_vouched,
        )

    def retrieve(
        self,
        candidate: Candidate,
        *fallbacks: Candidate,
        layers: Iterable[int] | None = None,
        blocks: int | None = None,
        memory: Memory | None = None,
        timeout: float = 60.0,
        idle_timeout: float | None = None,
    ) -> Retrieval:
        """Prepare a retrieval; entering it starts it.

        Args:
            candidate: The publication.
            fallbacks: Other publications of the same tokens. They are used only when both
                are deterministic; otherwise start another retrieval.
            layers: Wanted layer indexes; None for all.
            blocks: Wanted blocks of the prefix; None for those that the publication lists
                when the retrieval begins, as far as they are of the candidate's tokens.
            memory: Where verified Data goes; host memory by default.
            timeout: Seconds for the whole retrieval.
            idle_timeout: Seconds without a newly verified Object after which recovery
                starts; longer than the publisher takes for a layer.

        Raises:
            ConfigError: No layers, or no blocks.
        """
        wanted = None if layers is None else tuple(sorted(set(layers)))
        if wanted == () or (blocks is not None and blocks < 1):
            raise ConfigError("layers and blocks", "at least one of each")
        prefix = Prefix(
            keys=candidate.keys,
            blocks=blocks,
            is_vouched=candidate.is_vouched or not candidate.keys,
            allow_lossy=self._config.allow_lossy,
        )
        wish = Wish(
            prefix=prefix,
            layers=wanted,
            memory=memory or HostMemory(),
            timeout=timeout,
            idle_timeout=idle_timeout,
            check=lambda manifest, name: self._check(manifest, name, candidate),
        )
        sources = (
            Source(self._connection, candidate.name),
            *(Source(other, candidate.name) for other in self._others),
            *(Source(self._connection, fallback.name) for fallback in fallbacks),
        )
        return Retrieval(sources, wish, self._config, self.refused)

    def _needed_descriptor(self) -> Descriptor:
        if self._descriptor is None:
            raise ConfigError("descriptor", "the descriptor of the consumer's engine")
        return self._descriptor

    def _check(self, manifest: Manifest, name: PublicationName, candidate: Candidate) -> None:
        check_identity(manifest, name, self._scope_key, self._config.profile)
        if self._descriptor is not None and manifest.compat != self._descriptor:
            raise KeyMismatch("the publication is of another model than the consumer's")
        check_anchor(manifest, name, candidate.keys)
        if name == candidate.name:
            check_segment_keys(manifest, candidate.segment_keys)

    async def _indexed(
        self,
        index: PublicationIndex,
        keys: tuple[BlockKey, ...],
        longest: int,
        deadline: float,
    ) -> list[Candidate]:
        """Return what the index names and is there, of the most blocks; nothing is probed."""
        profile = self._config.profile
        try:
            async with asyncio.timeout_at(deadline):
                said = await index.look_up(keys[:longest])
        except TimeoutError:
            return []
        entries = sorted_entries(
            said,
            profile.scope_id(self._scope_key),
            profile.compatibility_id(self._scope_key, self._needed_descriptor()),
            keys[:longest],
        )
        self.ignored_namespaces += len(said) - len(entries)
        for _, group in groupby(entries, key=lambda entry: entry.blocks):
            named = [_indexed_candidate(entry, keys) for entry in group]
            if there := await self._there(named, deadline):
                return there
        return []

    async def _there(self, candidates: list[Candidate], deadline: float) -> list[Candidate]:
        """Return the candidates whose manifest can be had in time, best first."""
        progress = await self._progress_of(candidates, deadline)
        there = [each for each in candidates if progress.get(each.name, _NOTHING) != _NOTHING]
        return sorted(there, key=lambda each: progress[each.name], reverse=True)

    async def _ranked(self, candidates: list[Candidate], deadline: float) -> list[Candidate]:
        """Order publications of one prefix by how much of them is known to be there in time."""
        if len(candidates) < 2:
            return candidates
        progress = await self._progress_of(candidates, deadline)
        return sorted(candidates, key=lambda c: progress.get(c.name, _NOTHING), reverse=True)

    async def _progress_of(
        self, candidates: list[Candidate], deadline: float
    ) -> dict[PublicationName, tuple[bool, int]]:
        """Ask for the manifests of candidates, some at once, until one of them can be used.

        Anybody who may announce can announce many that nobody believes.
        """
        progress: dict[PublicationName, tuple[bool, int]] = {}
        clock = asyncio.get_running_loop().time
        at_once = self._config.max_ranked
        for first in range(0, len(candidates), at_once):
            some = candidates[first : first + at_once]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._progress(each, deadline)) for each in some]
            progress |= {task.result()[0]: task.result()[1:] for task in tasks}
            if clock() >= deadline or any(each != _NOTHING for each in progress.values()):
                break
        return progress

    async def _progress(
        self, candidate: Candidate, deadline: float
    ) -> tuple[PublicationName, bool, int]:
        """Return whether a publication is complete, and how many layers are listed."""
        name = candidate.name
        track = ManifestTrack(
            Source(self._connection, candidate.name),
            self._config,
            signal=Signal(),
            check=lambda manifest: self._check(manifest, candidate.name, candidate),
            on_manifest=lambda _: None,
            on_error=lambda _error, _discards: None,
        )
        try:
            patience = asyncio.get_running_loop().time() + self._config.fill_wait
            async with asyncio.timeout_at(min(patience, deadline)):
                with counting(self.refused):
                    manifest = await track.open()
        except (KvcsError, TimeoutError):
            return name, *_NOTHING
        finally:
            track.close()
        listed = [
            len(groups)
            for segment in manifest.segments
            for groups in segment.object_digests.values()
        ]
        return name, manifest.complete, min(listed, default=0)


def _indexed_candidate(entry: IndexEntry, keys: tuple[BlockKey, ...]) -> Candidate:
    """Return a publication that an index named, with the keys that it is known to begin with."""
    blocks = entry.blocks
    # Where segment 0 ends with these blocks, the manifest says how it goes on. Of a longer one
    # the index vouches for these blocks, and for none behind them: there the tokens differ.
    is_longer = entry.name.anchor_key != keys[blocks - 1]
    return Candidate(
        name=entry.name,
        blocks=blocks,
        keys=keys[:blocks] if is_longer else keys,
        is_vouched=is_longer,
        segment_keys=entry.segment_keys,
    )
