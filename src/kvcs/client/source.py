"""Where a publication can be had: a connection, and the publication's name."""

from dataclasses import dataclass

from kvcs.endpoint.connection import Connection
from kvcs.kv.naming import PublicationName

__all__ = ("Source",)


@dataclass(frozen=True, slots=True)
class Source:
    """One publication at one peer.

    Attributes:
        connection: Session with a relay, or with the publisher itself.
        name: The publication.
    """

    connection: Connection
    name: PublicationName

    @property
    def filter_ranges(self) -> int:
        """MAX_FILTER_RANGES of the peer; 0 forbids range filters."""
        options = self.connection.session.peer_options
        return 0 if options is None else options.max_filter_ranges
