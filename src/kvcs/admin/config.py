"""Settings and limits of the admin listener."""

from dataclasses import dataclass, field

__all__ = ("AdminConfig", "AdminLimits")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminLimits:
    """Bounds on what clients of the admin listener can make it hold or do.

    Sizes are octets, durations seconds.

    Attributes:
        max_connections: Open connections; one more ends the oldest that asks nothing.
        max_request_bytes: Head of one request. Requests have no body.
        request_timeout: Time for the head of a request, once it has begun.
        idle_timeout: Time between two requests of a connection.
        response_timeout: Time that a client may take for a response.
        max_page: Sessions, and Track Namespaces, of one answer.
        max_tracks: Tracks of one namespace that are shown.
        snapshot_age: An answer that is not older serves again, so that many watchers cost as
            much as one.
    """

    max_connections: int = 64
    max_request_bytes: int = 16 * 1024
    request_timeout: float = 5.0
    idle_timeout: float = 30.0
    response_timeout: float = 10.0
    max_page: int = 200
    max_tracks: int = 32
    snapshot_age: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """Settings of the admin listener.

    Attributes:
        host: Address to listen on. Nobody is asked who they are, and everybody sees the names
            of what the relay carries: a loopback address, or one of a network of operators.
        port: TCP port; 0 picks a free one.
        slow_after: Seconds behind after which a subscriber counts as slow.
        ready_without_upstream: Whether the relay is ready while no parent can be reached.
        limits: Bounds on what clients can make it hold or do.
    """

    host: str = "127.0.0.1"
    port: int = 4434
    slow_after: float = 5.0
    ready_without_upstream: bool = False
    limits: AdminLimits = field(default_factory=AdminLimits)
