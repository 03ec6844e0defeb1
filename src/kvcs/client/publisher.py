"""The publisher: publications of one scope and one model, on any number of connections."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kvcs.client.config import PublisherConfig
from kvcs.client.publication import Publication
from kvcs.client.published import PublishedTrack
from kvcs.client.serving import Serving
from kvcs.endpoint.connection import Connection
from kvcs.errors import ConfigError
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.identity import BlockKey, PublicationId, ScopeKey
from kvcs.kv.layout import Layout
from kvcs.kv.manifest import Manifest
from kvcs.kv.naming import PublicationName
from kvcs.kv.sealing import ObjectKey
from kvcs.moqt.track.walks import Walks
from kvcs.names import FullTrackName, TrackNamespace

__all__ = ("MAX_REMEMBERED_IDS", "Publisher")

MAX_REMEMBERED_IDS: Final = 2**14
"""Publication IDs that are remembered, so as to use none again."""
_PUBLICATION_ID_BYTES: Final = 16


class Publisher:
    """Publishes KV caches through relays, or straight to consumers.

    A publisher serves any number of connections. One that is kept alive is attached each time
    it is set up, and announces the same publications again:

        PersistentConnection(url, on_connected=publisher.attach)

    Args:
        connection: A first connection to a relay; `attach` adds more.
        scope_key: Secret of the scope.
        descriptor: What the caches are computed with.
        config: Settings.
        random_bytes: Gives the random Publication ID of each publication. One that it gave before
            is refused: sealed under one name, two publications would share their nonces.

    Raises:
        LayoutMismatch: A block of a layer is too large for an Object.
    """

    def __init__(
        self,
        connection: Connection | None = None,
        *,
        scope_key: ScopeKey,
        descriptor: Descriptor,
        config: PublisherConfig | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.layout = Layout(descriptor)
        self._config = config or PublisherConfig()
        self._descriptor = descriptor
        self._scope_key = scope_key
        self._random_bytes = random_bytes
        self._servings: dict[Connection, Serving] = {}
        self._walks = Walks()
        self._publications: dict[TrackNamespace, Publication] = {}
        self._used_ids: dict[bytes, None] = {}
        profile = self._config.profile
        self._scope_id = profile.scope_id(scope_key)
        self._compatibility_id = profile.compatibility_id(scope_key, descriptor)
        if connection is not None:
            self.attach(connection)

    def __repr__(self) -> str:
        return (
            f"<Publisher {len(self._publications)} publications, {len(self._servings)} connections>"
        )

    def attach(self, connection: Connection, *, announces: bool = True) -> None:
        """Serve on a connection until it ends.

        Args:
            connection: The session; nothing else may answer requests for tracks on it.
            announces: The peer is a relay, to which publications are announced. A consumer
                that is connected directly asks for them instead.

        Raises:
            ConfigError: Another publisher serves on this connection: each needs its own, since
                both would answer every request.
        """
        if connection.request_owner is not None:
            raise ConfigError("connection", "a connection for each Publisher", "one that is taken")
        connection.request_owner = self
        connection.outbox.walking.walks = self._walks
        serving = Serving(connection, self, self._config, announces=announces)
        self._servings[connection] = serving
        connection.on_closed(lambda: self._detach(connection))
        for publication in self._publications.values():
            publication.announce_to(serving)

    def publication(self, tokens: Sequence[int]) -> Publication:
        """Prepare the publication of the cache of `tokens`.

        Only complete blocks are published; tokens beyond them are ignored.

        Raises:
            DataError: A token is not an integer 0..2^32-1.
        """
        keys = self._config.profile.block_keys(
            self._scope_key,
            self._compatibility_id,
            tokens,
            block_tokens=self._descriptor.block_tokens,
        )
        manifest = Manifest(compat=self._descriptor, deterministic=self._config.deterministic)
        return Publication(self, manifest, keys, self._config)

    def use_object_key(self, key: ObjectKey | None) -> None:
        """Seal the publications that are prepared from now on with another key.

        Those that were prepared before keep theirs; a consumer that holds both keys reads both.

        Raises:
            ConfigError: No key, and the settings pad segments.
        """
        self._config = replace(self._config, object_key=key)

    # For publications and connections.

    @property
    def servings(self) -> Sequence[Serving]:
        """The connections that are served now."""
        return tuple(self._servings.values())

    def name_of(self, anchor_key: BlockKey) -> PublicationName:
        """Return a new name with a random Publication ID.

        Raises:
            ConfigError: The ID was used before, so `random_bytes` is not random.
        """
        return PublicationName(
            scope_id=self._scope_id,
            compatibility_id=self._compatibility_id,
            anchor_key=anchor_key,
            publication_id=self._new_id(),
        )

    def _new_id(self) -> PublicationId:
        """Draw a Publication ID.

        The keys of sealed Objects are derived from it, and their nonces are places: a second
        publication of one name would use both again.
        """
        publication_id = PublicationId(self._random_bytes(_PUBLICATION_ID_BYTES))
        if publication_id in self._used_ids:
            expected = "a Publication ID that this publisher has not used before"
            raise ConfigError("random_bytes", expected, "the same one again")
        self._used_ids[publication_id] = None
        if len(self._used_ids) > MAX_REMEMBERED_IDS:
            del self._used_ids[next(iter(self._used_ids))]
        return publication_id

    def add(self, publication: Publication) -> None:
        """Offer a publication to all peers, present and future."""
        self._publications[publication.name.namespace()] = publication

    def remove(self, publication: Publication) -> None:
        """Stop offering a publication."""
        self._publications = {
            namespace: other
            for namespace, other in self._publications.items()
            if other is not publication
        }

    def find(self, track: FullTrackName) -> PublishedTrack | None:
        """Return the track of that name, or None."""
        publication = self._publications.get(track.namespace)
        return None if publication is None else publication.tracks.tracks.get(track.name)

    def namespaces(self) -> list[TrackNamespace]:
        """Return the namespaces of all publications that are offered."""
        return list(self._publications)

    def _detach(self, connection: Connection) -> None:
        serving = self._servings.pop(connection, None)
        if serving is not None:
            serving.close()
