"""Settings of publisher and consumer."""

from dataclasses import dataclass
from enum import StrEnum

from kvcs.cose import SigningKey
from kvcs.errors import ConfigError
from kvcs.kv.identity import KVSP_PROVISIONAL, IdentityProfile
from kvcs.kv.manifest import ManifestCadence, ManifestLimits
from kvcs.kv.naming import Component
from kvcs.kv.sealing import KEY_ID_PROPERTY, ObjectKey, ObjectKeys
from kvcs.kv.signing import TrustedProducers
from kvcs.moqt.codepoints import PropertyType
from kvcs.moqt.wire.token import Token

__all__ = ("ConsumerConfig", "Hold", "PublisherConfig")

_MIB = 2**20


class Hold(StrEnum):
    """What a publisher keeps of what it has published.

    Attributes:
        ALL: Everything, until the publication is closed.
        UNTIL_DELIVERED: Each layer until its subscribers have it.
        NONE: Only what present subscribers are still owed.
    """

    ALL = "all"
    UNTIL_DELIVERED = "until-delivered"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig:
    """Settings of a publisher.

    Attributes:
        hold: What is kept of what was published. What is no longer held is reported as
            unknown, never as missing.
        push: Send PUBLISH for every track, so that a relay warms itself.
        components: Tracks to offer: k and v, or one kv.
        deterministic: Any publication of the same tokens has bit-identical Objects. Say so
            only when the whole computation guarantees it.
        max_cache_duration: Seconds that relays may keep the tracks (MAX_CACHE_DURATION), the
            retention allowed for the scope. An hour outlives most sessions that share a
            prefix and bounds how long prompts linger; None sets no limit.
        cadence: When a completed layer makes a new manifest version due.
        max_held_bytes: Payload octets that one publication may hold. `publish_layer` fails
            with BudgetExceeded before it would exceed this; nothing is dropped.
        max_unsent_bytes: Payload octets that the slowest subscriber of a track may be behind
            before `publish_layer` waits.
        send_timeout: Seconds that `publish_layer` waits for a slow subscriber. Afterwards it
            goes on, and the budget of held bytes decides.
        max_fetches: Open FETCHes of one peer; more are refused with EXCESSIVE_LOAD.
        announce_timeout: Seconds for the answer to PUBLISH_NAMESPACE.
        drain_timeout: Seconds that closing a publication waits for deliveries under way.
        settle_time: Seconds after which everything counts as delivered when nobody has asked for
            or taken anything: a relay that has taken all Objects still asks where the tracks end.
            Longer, twice the time of the slowest peer, where that takes longer to say that it has
            taken something.
        hash_threshold_bytes: Layers of at least this size are hashed and sealed in a thread;
            None does so in the event loop.
        write_threshold_bytes: Manifest versions of at least this size are encoded, signed and
            sealed in a thread; None does so in the event loop.
        signing_key: Signs every version of the manifest, which is then on the track
            ``manifest.cose``; None publishes a plain ``manifest``.
        object_key: Key that all Objects are sealed with; None publishes them in clear.
        pad_segment_blocks: Each layer of a segment has as many Objects as if it had the next
            multiple of so many blocks, and manifests have the size that goes with it, so that
            who carries them learns the length of a context only so far. For sealed publications.
        key_id_property: Type of the property that carries the Key ID: even, and of no other
            meaning in MOQT.
        authorization: Tokens sent with every request.
        profile: How identifiers are computed.

    Raises:
        ConfigError: A value that cannot be.
    """

    hold: Hold = Hold.ALL
    push: bool = False
    components: tuple[Component, ...] = (Component.K, Component.V)
    deterministic: bool = False
    max_cache_duration: float | None = 3600.0
    cadence: ManifestCadence = ManifestCadence()  # noqa: RUF009 - a frozen value
    max_held_bytes: int = 8 * 1024 * _MIB
    max_unsent_bytes: int = 256 * _MIB
    send_timeout: float = 30.0
    max_fetches: int = 16
    announce_timeout: float = 10.0
    drain_timeout: float = 5.0
    settle_time: float = 0.5
    hash_threshold_bytes: int | None = _MIB
    write_threshold_bytes: int | None = _MIB // 4
    signing_key: SigningKey | None = None
    object_key: ObjectKey | None = None
    pad_segment_blocks: int | None = None
    key_id_property: int = KEY_ID_PROPERTY
    authorization: tuple[Token, ...] = ()
    profile: IdentityProfile = KVSP_PROVISIONAL

    def __post_init__(self) -> None:
        if self.components not in ((Component.K, Component.V), (Component.KV,)):
            raise ConfigError("components", "(k, v) or (kv,)")
        _check_key_id_property(self.key_id_property)
        if self.pad_segment_blocks is None:
            return
        if self.pad_segment_blocks < 1:
            raise ConfigError("pad_segment_blocks", "1 or more", str(self.pad_segment_blocks))
        if self.object_key is None:
            expected = "an object_key: anybody can tell the padding of Objects in clear"
            raise ConfigError("pad_segment_blocks", expected)

    def objects_of(self, blocks: int) -> int:
        """Return how many Objects each layer of a segment of so many blocks has."""
        multiple = self.pad_segment_blocks or 1
        return -(-blocks // multiple) * multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of a consumer.

    Attributes:
        discovery_wait: Seconds without a NAMESPACE after which a prefix counts as unknown:
            the protocol has no end of list.
        max_probes: SUBSCRIBE_NAMESPACE open at once.
        max_candidates: Publications of one prefix that are noted; more are counted as ignored.
        max_ranked: Publications of one prefix whose manifests are compared. Where none of so many
            can be used, the next ones are asked for.
        manifest_wait: Seconds for the first version of a manifest, at one peer, at most half of
            the time that a retrieval has left; then another publication or peer has its turn. It
            comes at once, also of what is being computed: twelve seconds are more than a relay
            needs to see that the publisher that it asks is gone.
        fill_wait: Seconds for the fill stream of an accepted subscription to begin.
        fill_timeout: Seconds that relays may wait for Objects under way (FILL_TIMEOUT).
        silence_margin: Seconds beyond `fill_timeout` that a fetch stream may be silent before
            what is missing is asked for again: what a large Object takes on a slow link.
        max_attempts: Requests in a row that bring nothing before a track is given up.
        retry_interval: Seconds before the first repetition; doubled each time.
        max_retry_interval: Longest such pause.
        max_fetches: FETCHes open at once for one track.
        max_open_fetches: FETCHes open at once for one retrieval: what a publisher serves.
        fetch_window: Layers of one FETCH when there are more tracks than `max_open_fetches`.
            Smaller windows bring the first layer earlier, and cost a FETCH each.
        done_wait: Seconds that leaving waits for the publisher's PUBLISH_DONE, so that it
            learns of the delivery.
        subscriber_priority: Urgency of the data tracks, 1..255, lower first. The manifest is
            one step more urgent.
        max_memory_bytes: Octets that a retrieval may ask of its memory.
        allow_lossy: Tracks of lossy codecs may be taken.
        trusted_producers: Whose publications may be used: the manifest must be signed by one of
            them, and every Object must stand in a list that they signed. None demands no
            authenticity, and refuses publications that sign their manifest.
        allow_unverified: Publications that sign their manifest may be read although nobody is
            trusted; the signature is then not looked at, and worth nothing.
        max_unlisted_bytes: Octets of Objects that came before a signed manifest lists them, and
            are held until one does. More are dropped, and asked for again when they are listed.
        manifest_limits: Bounds on manifests.
        object_keys: Keys that Objects may be sealed with; every Object must then be sealed with
            one of them. None takes Objects in clear, and no others.
        key_id_property: Type of the property that carries the Key ID.
        open_threshold_bytes: Sealed Objects that come together are opened in a thread when they
            have at least so many octets; None opens everything in the event loop.
        max_sealed_bytes: Octets of sealed Objects that may wait for that thread. What comes
            beyond is opened in the event loop, which slows the peer down.
        parse_threshold_bytes: Manifests of at least this size are verified and parsed in a
            thread; None does all in the event loop.
        max_waiting_manifests: Versions that wait while one is parsed; of more, the oldest goes.
        authorization: Tokens sent with every request.
        profile: How identifiers are computed.
    """

    discovery_wait: float = 0.5
    max_probes: int = 32
    max_candidates: int = 64
    max_ranked: int = 8
    manifest_wait: float = 12.0
    fill_wait: float = 2.0
    fill_timeout: float = 10.0
    silence_margin: float = 5.0
    max_attempts: int = 4
    retry_interval: float = 0.1
    max_retry_interval: float = 2.0
    max_fetches: int = 4
    max_open_fetches: int = 16
    fetch_window: int = 2
    done_wait: float = 1.0
    subscriber_priority: int = 128
    max_memory_bytes: int = 256 * 1024 * _MIB
    allow_lossy: bool = False
    trusted_producers: TrustedProducers | None = None
    allow_unverified: bool = False
    max_unlisted_bytes: int = 4096 * _MIB
    manifest_limits: ManifestLimits = ManifestLimits()  # noqa: RUF009 - a frozen value
    object_keys: ObjectKeys | None = None
    key_id_property: int = KEY_ID_PROPERTY
    open_threshold_bytes: int | None = 256 * 1024
    max_sealed_bytes: int = 64 * _MIB
    parse_threshold_bytes: int | None = _MIB // 4
    max_waiting_manifests: int = 4
    authorization: tuple[Token, ...] = ()
    profile: IdentityProfile = KVSP_PROVISIONAL

    def __post_init__(self) -> None:
        _check_key_id_property(self.key_id_property)
        if not 1 <= self.subscriber_priority <= 255:
            raise ConfigError("subscriber_priority", "1..255", str(self.subscriber_priority))

    @property
    def max_silence(self) -> float:
        """Seconds that a fetch stream may be silent."""
        return self.fill_timeout + self.silence_margin

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after so many fruitless requests in a row."""
        pause = self.retry_interval * 2 ** max(failures - 1, 0)
        return min(pause, self.max_retry_interval)


def _check_key_id_property(number: int) -> None:
    """Refuse what relays would take for something else, or for octets."""
    if number % 2 or number in PropertyType:
        raise ConfigError("key_id_property", "an even Type unknown to MOQT", f"{number:#x}")
