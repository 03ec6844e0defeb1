"""What the TOML file of a relay may say: one class per table, one attribute per key.

The tables of limits are the library's own classes, so that a limit is a setting as soon as it
exists. What the keys mean is said once, in the docstrings; comments of a printed
configuration and docs/reference/configuration.md are made of them.
"""

import inspect
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_type_hints

import msgspec

from kvcs.admin.config import AdminConfig, AdminLimits
from kvcs.c4m import ClaimNumbers, TokenConfig
from kvcs.endpoint.reconnect import Backoff
from kvcs.relay.config import RelayConfig, RelayLimits
from kvcs.relay.disk.config import DiskConfig
from kvcs.transport.interface import TransportConfig

__all__ = (
    "Admin",
    "Authorization",
    "Cache",
    "Count",
    "Disk",
    "Duration",
    "Key",
    "Listen",
    "Log",
    "Port",
    "Rate",
    "Settings",
    "Size",
    "Tls",
    "changed",
    "is_table",
    "keys",
)

_DEFAULT: Final[dict[str, Any]] = {key.name: key.default for key in fields(RelayConfig)}

_ADMIN: Final[dict[str, Any]] = {key.name: key.default for key in fields(AdminConfig)}
_TOKENS: Final[dict[str, Any]] = {key.name: key.default for key in fields(TokenConfig)}
_DISK: Final[dict[str, Any]] = {key.name: key.default for key in fields(DiskConfig)}

# Sizes whose names do not end in _bytes; the last one is one a second.
_SIZES: Final = frozenset({"max_data", "max_stream_data", "max_receive_rate"})


# Octets, in a file also "8GiB"; and seconds, also "30s".
Size = Annotated[int, "octets"]
Duration = Annotated[float, "seconds"]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=2**53)]


class Listen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where clients connect.

    Attributes:
        host: Address to listen on. A loopback address serves this machine only; any other
            one serves all interfaces.
        port: UDP port; 0 takes a free one.
    """

    host: str = _DEFAULT["host"]
    port: Port = _DEFAULT["port"]


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients check: a certificate of yours, or one for development.

    Attributes:
        certificate: PEM file with the certificate chain.
        private_key: PEM file with its private key.
        development_directory: Directory with a development certificate, made if it is not
            there; clients trust its ca.pem. In place of certificate and private_key.
        development_names: Host names and addresses that the development certificate is for,
            besides this machine's own.
    """

    certificate: Path | None = None
    private_key: Path | None = None
    development_directory: Path | None = None
    development_names: tuple[str, ...] = ()


class Authorization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may do what.

    Attributes:
        policy: "this-machine" allows everything, and refuses to listen on another address
            than a loopback one; "c4m" allows what authorization tokens allow; "allow-anyone"
            lets everybody who can reach the relay publish, find and take everything; "deny"
            refuses every request.
        keys: Key ring, or file with a JWK or a JWK Set, with the keys that verify tokens, for
            policy "c4m". They are read again when they change, and on SIGHUP.
        issuer: Who must have made a token (claim iss), besides having the key.
        audience: What this relay is called in tokens that are for somebody (claim aud); without
            it such tokens are refused.
        require_audience: Whether tokens that are for no relay in particular are refused too. A
            token that was stolen at one relay is then good at no other one.
        leeway: How far the clock of who makes tokens may be off.
        max_token_bytes: Octets of a token.
        reload_interval: How often it is looked whether keys have changed.
        moqt_claim: Number of the claim with what a token allows.
        revalidation_claim: Number of the claim moqt-reval.
    """

    policy: Literal["this-machine", "c4m", "allow-anyone", "deny"] = "this-machine"
    keys: Path | None = None
    issuer: str | None = None
    audience: str | None = None
    require_audience: bool = False
    leeway: Duration = _TOKENS["leeway"]
    max_token_bytes: Size = _TOKENS["max_token_bytes"]
    reload_interval: Duration = 5.0
    moqt_claim: Count = ClaimNumbers().moqt
    revalidation_claim: Count = ClaimNumbers().revalidation


class Cache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept.

    Attributes:
        memory_bytes: Memory for Objects; sensible sizes are what the machine can spare.
    """

    memory_bytes: Size = _DEFAULT["cache_bytes"]


class Disk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept on disk as well.

    Attributes:
        directory: Directory of this relay alone, made if it is not there. Without one, Objects
            are kept in memory only, and are gone when the relay ends.
        capacity_bytes: Octets of the files, each counted in whole blocks of 4 KiB.
        max_tracks: Tracks on disk. Their names stay in memory.
        queue_bytes: Octets of Objects that may wait to be written. What comes while it is
            full stays in memory only: a slow disk never holds a subscriber up.
        read_ahead_bytes: Octets that are read at a time for one subscriber.
        retry_interval: How long nothing is written after the disk was full or failed.
    """

    directory: Path | None = None
    capacity_bytes: Size = _DISK["capacity_bytes"]
    max_tracks: Count = _DISK["max_tracks"]
    queue_bytes: Size = _DISK["queue_bytes"]
    read_ahead_bytes: Size = _DISK["read_ahead_bytes"]
    retry_interval: Duration = _DISK["retry_interval"]


class Admin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The inner listener for operators: status page, metrics and health, over HTTP.

    Attributes:
        enabled: Whether there is one.
        host: Address to listen on. Whoever reaches it sees the names of everything that the
            relay carries, so it is for this machine, or for a network of operators.
        port: TCP port; 0 takes a free one. Without it, 4434, and where another process has
            that, the relay runs without this listener and says so.
        slow_after: Time behind after which a subscriber counts as slow.
        ready_without_upstream: Whether the relay counts as ready while no parent can be
            reached; it goes on serving what it holds.
        limits: Bounds on what clients of this listener can make it hold or do.
    """

    enabled: bool = True
    host: str = _ADMIN["host"]
    port: Port | None = None
    slow_after: Duration = _ADMIN["slow_after"]
    ready_without_upstream: bool = _ADMIN["ready_without_upstream"]
    limits: AdminLimits = AdminLimits()


class Log(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log on standard error.

    Attributes:
        level: Log from this level on.
        format: Form of its lines; "json" is one object per line.
    """

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    format: Literal["text", "json"] = "text"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a relay.

    Attributes:
        upstream: Parents in order of preference, each moqt://host[:port]/path; one is used
            at a time. Empty for a relay without parents.
        upstream_ca: PEM file with the certificate authority of the parents, instead of the
            public ones.
        upstream_token_file: File with the authorization token that the parents ask for.
        max_filter_ranges: Ranges of range filters that a subscriber may send per request.
        drain_timeout: Time that everybody gets to leave, and to finish what is running, after
            SIGTERM or SIGINT. A second signal does not wait.
        listen: Where clients connect.
        tls: What clients check.
        authorization: Who may do what.
        cache: What is kept.
        disk: What is kept on disk as well.
        admin: The inner listener for operators.
        log: The log.
        limits: Bounds on what peers can make the relay hold, and on how long it waits.
        upstream_backoff: Waits between attempts to reach a parent.
        transport: Settings of the QUIC connections.
    """

    upstream: tuple[str, ...] = ()
    upstream_ca: Path | None = None
    upstream_token_file: Path | None = None
    max_filter_ranges: Count = _DEFAULT["max_filter_ranges"]
    drain_timeout: Duration = 30.0
    listen: Listen = Listen()
    tls: Tls = Tls()
    authorization: Authorization = Authorization()
    cache: Cache = Cache()
    disk: Disk = Disk()
    admin: Admin = Admin()
    log: Log = Log()
    limits: RelayLimits = RelayLimits()
    upstream_backoff: Backoff = Backoff()
    transport: TransportConfig = _DEFAULT["transport"]


class Key(NamedTuple):
    """One key of a table.

    Attributes:
        name: Its name.
        type: A table, or the type of its value.
        is_optional: Whether it may be absent altogether.
        text: What it means.
    """

    name: str
    type: Any
    is_optional: bool
    text: str


def is_table(kind: Any) -> bool:
    """Tell whether a type is a table."""
    return isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, msgspec.Struct))


def keys(table: object) -> tuple[Key, ...]:
    """Return the keys of a table, in order.

    Args:
        table: The table, or its class.
    """
    kind = table if isinstance(table, type) else type(table)
    texts = _texts(kind)
    return tuple(
        Key(name, *_value_type(name, value), texts[name])
        for name, value in get_type_hints(kind, include_extras=True).items()
    )


def changed(table: Any, **values: Any) -> Any:
    """Return a table with some values replaced.

    Raises:
        ConfigError: The table does not take them.
    """
    is_struct = isinstance(table, msgspec.Struct)
    return msgspec.structs.replace(table, **values) if is_struct else replace(table, **values)


def _value_type(name: str, kind: Any) -> tuple[Any, bool]:
    """Return what a key takes, and whether it may be absent."""
    parts = get_args(kind)
    if NoneType in parts:
        return next(part for part in parts if part is not NoneType), True
    if kind is int:
        return (Size if name.endswith("_bytes") or name in _SIZES else Count), False
    if kind is float:
        return (Rate if name.endswith("_rate") or name == "factor" else Duration), False
    return kind, False


def _texts(table: type) -> dict[str, str]:
    """Return what the docstring of a class says about each of its attributes."""
    section = (inspect.getdoc(table) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return {
        name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)
    }
