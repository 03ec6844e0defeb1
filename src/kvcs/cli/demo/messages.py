"""What the demo and its nodes say to each other: one JSON object per line.

The first line that a node reads is its job. `Go` lets it take its next step. Everything a node
writes to standard output is an event.
"""

from typing import Final

import msgspec

__all__ = (
    "MAX_LINE_BYTES",
    "Announced",
    "Command",
    "Compared",
    "ConsumerJob",
    "Event",
    "Failed",
    "Go",
    "Halfway",
    "Joined",
    "LayerPassed",
    "Listening",
    "PublisherJob",
    "Ready",
    "RelayCounters",
    "RelayJob",
    "Retrieved",
    "SeenTrack",
    "decode_command",
    "decode_event",
    "encode_line",
)

# The longest line is a job with the tokens of a prompt.
MAX_LINE_BYTES: Final = 2**20


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag=True):
    """A line; its type is its tag."""


class RelayJob(_Line):
    """Run a relay on a free port.

    Attributes:
        directory: Where the development certificate goes.
        cache_bytes: Budget of the cache.
        keys: File with the key ring of the relay: it goes by tokens then. None allows everything.
        disk: Directory where it stores everything, or None.
    """

    directory: str
    cache_bytes: int
    keys: str | None = None
    disk: str | None = None


class _EndpointJob(_Line):
    """What publisher and consumers need.

    Attributes:
        url: The relay.
        directory: Where the certificate authority and the scope key are.
        engine: Name of the engine, or ``file``.
        model: Path of a model, or of a cache file; None for the default.
        timeout: Seconds for everything.
        keys: Directory with a key ring, or None for nothing but the scope key.
        token: File with an authorization token, or None.
    """

    url: str
    directory: str
    engine: str
    model: str | None
    timeout: float
    keys: str | None = None
    token: str | None = None


class PublisherJob(_EndpointJob):
    """Publish the prompt's prefix; wait for `Go` to begin, before the first layer and halfway."""


class Ready(_Line):
    """Model or file are loaded.

    Attributes:
        blocks: Blocks of the prefix.
        tokens: The whole prompt.
        descriptor: What the cache is computed with, as JSON.
    """

    blocks: int
    tokens: list[int]
    descriptor: str


class ConsumerJob(_EndpointJob):
    """Take a prefix when `Go` comes; compare with a run without reuse at the second `Go`.

    Attributes:
        prompt: What to ask for, for a consumer that needs no model; None to find it out.
        layers: The first so many layers; None for all.
        blocks: The first so many blocks; None for all.
        new_tokens: Tokens to decode; 0 for none.
        alone_first: Run without reuse before the retrieval, and once before that uncounted: both
            runs then find the process in the same state.
        idle_timeout: Seconds after which a silent relay counts as gone.
    """

    prompt: Ready | None = None
    layers: int | None = None
    blocks: int | None = None
    new_tokens: int = 0
    alone_first: bool = False
    idle_timeout: float = 10.0


class Go(_Line):
    """Take the next step."""


class Listening(_Line):
    """The relay is open.

    Attributes:
        port: UDP port.
    """

    port: int


class Announced(_Line):
    """The publication exists; no layer does.

    Attributes:
        short_id: The first digits of its Publication ID.
    """

    short_id: str


class Halfway(_Line):
    """Half of the layers are published; the publisher waits."""


class Joined(_Line):
    """The consumer found the publication and has its manifest.

    Attributes:
        listed_layers: Layers that the manifest listed.
    """

    listed_layers: int


class LayerPassed(_Line):
    """A layer was published, or became usable.

    Attributes:
        layer_index: Layer.
        size_bytes: Octets of its keys and values.
        digests: KVSP layer digest of each block, in hex.
        seconds: Since the publisher's or the retrieval's start.
        samples: Pieces of its blocks, in hex, from a publisher with a key ring.
    """

    layer_index: int
    size_bytes: int
    digests: list[str]
    seconds: float
    samples: list[str] = []


class Retrieved(_Line):
    """What came of a retrieval; the fields of `kvcs.client.Verdict`.

    Attributes:
        text: What was decoded.
        reused_tokens: Tokens whose keys and values were not computed.
        time_to_first_token: Seconds, or None when nothing was decoded. They count from the
            moment when the publication was found; of a consumer that ran alone first, from before
            it connected to the relay.
        failure: Why the prefix was given up, or None.
        is_like_file: Every byte equals the file's; None where there is no file.
        authenticated: A trusted producer signed all of it.
    """

    complete: bool
    verified: int
    rejected: int
    missing: int
    duplicate: int
    excess: int
    payload_bytes: int
    first_layer_s: float | None
    last_layer_s: float | None
    layers: int
    blocks: int
    text: str = ""
    reused_tokens: int = 0
    time_to_first_token: float | None = None
    failure: str | None = None
    is_like_file: bool | None = None
    authenticated: bool = False


class Compared(_Line):
    """The run without reuse has ended.

    Attributes:
        is_equal: It decoded the same tokens.
        tokens: How many.
        time_to_first_token: Seconds.
    """

    is_equal: bool
    tokens: int
    time_to_first_token: float


class SeenTrack(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A Track as the relay sees it.

    Attributes:
        name: Its name.
        groups: Groups, as its largest Location has it.
        objects_per_group: Objects of a Group.
        size_bytes: Octets that it takes in memory.
    """

    name: str
    groups: int
    objects_per_group: int
    size_bytes: int


class RelayCounters(_Line):
    """Counters of the relay since its start, and what it sees.

    Attributes:
        objects_on_disk: Objects written to disk.
        bytes_on_disk: Their octets, with what each has beside its payload.
        objects_dropped: Objects that were not written.
        bytes_waiting: Octets that wait to be written.
        sessions: Sessions that it has had.
        namespaces: Track Namespaces in text form.
        tracks: Tracks of them.
    """

    bytes_in: int
    bytes_out: int
    upstream_subscriptions: int
    objects_on_disk: int = 0
    bytes_on_disk: int = 0
    objects_dropped: int = 0
    bytes_waiting: int = 0
    sessions: int = 0
    namespaces: list[str] = []
    tracks: list[SeenTrack] = []


class Failed(_Line):
    """The node gives up.

    Attributes:
        reason: One sentence.
    """

    reason: str


type Command = RelayJob | PublisherJob | ConsumerJob | Go
type Event = (
    Listening
    | Ready
    | Announced
    | Halfway
    | Joined
    | LayerPassed
    | Retrieved
    | Compared
    | RelayCounters
    | Failed
)

_commands: Final = msgspec.json.Decoder[Command](RelayJob | PublisherJob | ConsumerJob | Go)
_events: Final = msgspec.json.Decoder[Event](
    Listening
    | Ready
    | Announced
    | Halfway
    | Joined
    | LayerPassed
    | Retrieved
    | Compared
    | RelayCounters
    | Failed
)


def encode_line(line: Command | Event) -> bytes:
    """Return the line, with its end."""
    return msgspec.json.encode(line) + b"\n"


def decode_command(line: bytes) -> Command:
    """Decode what a node was told.

    Raises:
        msgspec.DecodeError: No such line.
    """
    return _commands.decode(line)


def decode_event(line: bytes) -> Event:
    """Decode what a node said.

    Raises:
        msgspec.DecodeError: No such line.
    """
    return _events.decode(line)
