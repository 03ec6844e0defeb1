"""The exception tree of kvcs and the error-code registries of MOQT.

An exception class says who is to blame and how far the damage reaches: a session
(`ProtocolError`), one request (`RequestFailed`), one stream (`StreamError`), the
transport, the data, or the configuration. The three wire registries reuse names with
different numbers, so they are three enums and never one.

Source: MOQT draft 22, Section 12 (error codes).
"""

from enum import IntEnum

__all__ = (
    "CertificateRefused",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "DataError",
    "DraftRefused",
    "FileFailed",
    "IntegrityError",
    "KeyMismatch",
    "KeyMissing",
    "KvcsError",
    "LayoutMismatch",
    "LocalProtocolError",
    "MalformedTrack",
    "ManifestError",
    "NotAuthentic",
    "ProtocolError",
    "PublishDoneCode",
    "RefusedData",
    "RemoteProtocolError",
    "RequestErrorCode",
    "RequestFailed",
    "RequestRejected",
    "RequestTimedOut",
    "SessionRefused",
    "StreamError",
    "StreamResetCode",
    "TerminationCode",
    "TokenRefused",
    "TransportError",
    "UnsupportedEncoding",
)


class TerminationCode(IntEnum):
    """Why a session was closed (MOQT draft 22, Section 12.2)."""

    NO_ERROR = 0x0
    INTERNAL_ERROR = 0x1
    UNAUTHORIZED = 0x2
    PROTOCOL_VIOLATION = 0x3
    INVALID_REQUEST_ID = 0x4
    DUPLICATE_TRACK_ALIAS = 0x5
    KEY_VALUE_FORMATTING_ERROR = 0x6
    INVALID_PATH = 0x8
    MALFORMED_PATH = 0x9
    GOAWAY_TIMEOUT = 0x10
    CONTROL_MESSAGE_TIMEOUT = 0x11
    DATA_STREAM_TIMEOUT = 0x12
    AUTH_TOKEN_CACHE_OVERFLOW = 0x13
    DUPLICATE_AUTH_TOKEN_ALIAS = 0x14
    MALFORMED_AUTH_TOKEN = 0x16
    UNKNOWN_AUTH_TOKEN_ALIAS = 0x17
    EXPIRED_AUTH_TOKEN = 0x18
    INVALID_AUTHORITY = 0x19
    MALFORMED_AUTHORITY = 0x1A
    TOO_MANY_REQUEST_UPDATES = 0x1B


class RequestErrorCode(IntEnum):
    """Why a request was refused (MOQT draft 22, Section 12.3)."""

    INTERNAL_ERROR = 0x0
    UNAUTHORIZED = 0x1
    TIMEOUT = 0x2
    NOT_SUPPORTED = 0x3
    MALFORMED_AUTH_TOKEN = 0x4
    EXPIRED_AUTH_TOKEN = 0x5
    GOING_AWAY = 0x6
    EXCESSIVE_LOAD = 0x9
    DOES_NOT_EXIST = 0x10
    INVALID_RANGE = 0x11
    MALFORMED_TRACK = 0x12
    UNINTERESTED = 0x20
    PREFIX_OVERLAP = 0x30
    NAMESPACE_TOO_LARGE = 0x31
    UNSUPPORTED_EXTENSION = 0x33
    REDIRECT = 0x34
    CONFLICTING_FILTERS = 0x35
    INVALID_FILTER = 0x36


class PublishDoneCode(IntEnum):
    """Why a publisher ended a subscription (MOQT draft 22, Section 12.4)."""

    INTERNAL_ERROR = 0x0
    UNAUTHORIZED = 0x1
    TRACK_ENDED = 0x2
    GOING_AWAY = 0x4
    TOO_FAR_BEHIND = 0x5
    EXPIRED = 0x6
    UPDATE_FAILED = 0x8
    EXCESSIVE_LOAD = 0x9
    MALFORMED_TRACK = 0x12


class StreamResetCode(IntEnum):
    """Why a stream was reset or refused (MOQT draft 22, Section 12.5)."""

    INTERNAL_ERROR = 0x0
    CANCELLED = 0x1
    DELIVERY_TIMEOUT = 0x2
    SESSION_CLOSED = 0x3
    GOING_AWAY = 0x4
    TOO_FAR_BEHIND = 0x5
    UNKNOWN_OBJECT_STATUS = 0x6
    EXPIRED_AUTH_TOKEN = 0x7
    EXCESSIVE_LOAD = 0x9
    MALFORMED_TRACK = 0x12


def _code_text(code: int, registry: type[IntEnum]) -> str:
    try:
        return f"{registry(code).name} ({code:#x})"
    except ValueError:
        return f"unknown code {code:#x}"


class KvcsError(Exception):
    """Base of every error that kvcs raises on purpose."""


class ProtocolError(KvcsError):
    """A rule of the protocol was broken; the session is over.

    Attributes:
        code: Code with which the session is closed.
        reason: What was broken, where, and which limit applies. Never a payload or token.
    """

    def __init__(self, code: TerminationCode, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"{_code_text(self.code, TerminationCode)}: {self.reason}"


class LocalProtocolError(ProtocolError):
    """We were asked for something the protocol forbids: a bug in the caller."""

    def __init__(self, reason: str) -> None:
        super().__init__(TerminationCode.INTERNAL_ERROR, reason)

    def __str__(self) -> str:
        return self.reason  # The code is for the peer; the caller is told what was wrong.


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule; the session closes with `code`."""


class RequestFailed(KvcsError):
    """One request failed; its session lives on.

    Attributes:
        code: The peer's code, kept as sent; unknown codes mean INTERNAL_ERROR.
        reason: The peer's reason, or ours.
        retry_after: Seconds to wait before trying again, or None when retrying is futile.
    """

    def __init__(self, code: int, reason: str, *, retry_after: float | None = None) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after

    def __str__(self) -> str:
        text = _code_text(self.code, RequestErrorCode)
        return f"{text}: {self.reason}" if self.reason else text


class RequestRejected(RequestFailed):
    """The peer answered REQUEST_ERROR.

    Attributes:
        target: Where the peer says to ask instead, for people; None unless it redirects.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        *,
        retry_after: float | None = None,
        target: str | None = None,
    ) -> None:
        super().__init__(code, reason, retry_after=retry_after)
        self.target = target

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.target is None else f"{text}; it names {self.target}"


class RequestTimedOut(RequestFailed, TimeoutError):
    """The peer did not answer in time."""

    def __init__(self, reason: str) -> None:
        super().__init__(RequestErrorCode.TIMEOUT, reason)


class StreamError(KvcsError):
    """One stream was reset.

    Attributes:
        code: The code of the reset, kept as sent.
        stream_id: QUIC stream id.
    """

    def __init__(self, code: int, stream_id: int) -> None:
        super().__init__(code, stream_id)
        self.code = code
        self.stream_id = stream_id

    def __str__(self) -> str:
        return f"stream {self.stream_id}: {_code_text(self.code, StreamResetCode)}"


class MalformedTrack(KvcsError):
    """A track contradicts itself (MOQT draft 22, Section 12.1); the session lives on."""


class TransportError(KvcsError):
    """The connection under a session failed."""


class ConnectFailed(TransportError):
    """No connection could be made.

    Attributes:
        address: The peer that was tried, ``host:port``.
        reason: What went wrong.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot connect to {self.address}: {self.reason}"


class CertificateRefused(ConnectFailed):
    """The server answered, and its certificate is not to be trusted."""


class DraftRefused(ConnectFailed):
    """The server answered, and does not speak this draft: it offers no such ALPN."""


class SessionRefused(ConnectFailed):
    """The server answered, and closed the connection as UNAUTHORIZED before its SETUP."""


class ConnectionLost(TransportError):
    """A connection ended.

    Attributes:
        code: Application code of the close; 0 also when the peer just vanished.
        reason: Text of the close, may be empty.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        text = f"connection lost: {_code_text(self.code, TerminationCode)}"
        return f"{text}: {self.reason}" if self.reason else text


class DataError(KvcsError):
    """Bytes were delivered, and they are not what they should be."""


class FileFailed(DataError):
    """A file cannot be read or written; nothing is known about what is in it."""


class LayoutMismatch(DataError):
    """A tensor's shape, dtype or length differs from the descriptor's."""


class KeyMismatch(DataError):
    """Identifiers disagree: another model, another scope, or other tokens."""


class RefusedData(DataError):
    """Data that a check refuses, with the check's name.

    Attributes:
        reason: Short fixed word for counters, for example ``"digest"``.
        text: What is wrong, in words; never a secret.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text

    def __str__(self) -> str:
        return f"{self.text} ({self.reason})"


class KeyMissing(DataError):
    """Objects are sealed with an object key that is not held.

    Attributes:
        key_id: Its Key ID.
    """

    def __init__(self, key_id: int) -> None:
        super().__init__(key_id)
        self.key_id = key_id

    def __str__(self) -> str:
        return f"the publication is sealed: the object key with Key ID {self.key_id} is needed"


class IntegrityError(RefusedData):
    """A digest or a header does not match the bytes."""


class ManifestError(DataError):
    """A manifest cannot be parsed, breaks a limit, or contradicts what is known."""


class NotAuthentic(RefusedData):
    """Nobody who is trusted made these bytes: no signature or tag of a known key is on them."""


class TokenRefused(RefusedData):
    """An authorization token cannot be used here, or not now."""


class UnsupportedEncoding(DataError):
    """A codec, dtype or manifest form that this build does not read."""


class ConfigError(KvcsError):
    """A setting is wrong.

    Attributes:
        key: Name of the setting.
        expected: What would be accepted.
        got: What was found; never a secret.
    """

    def __init__(self, key: str, expected: str, got: str = "") -> None:
        super().__init__(key, expected, got)
        self.key = key
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        text = f"{self.key}: expected {self.expected}"
        return f"{text}, got {self.got}" if self.got else text
