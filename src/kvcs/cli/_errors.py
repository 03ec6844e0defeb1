"""Exit codes, and one sentence with one hint for every error a person can meet."""

from enum import IntEnum
from typing import Final

from kvcs.errors import (
    CertificateRefused,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DataError,
    DraftRefused,
    IntegrityError,
    KeyMismatch,
    KvcsError,
    LayoutMismatch,
    MalformedTrack,
    ManifestError,
    ProtocolError,
    RequestErrorCode,
    RequestFailed,
    RequestTimedOut,
    StreamError,
    TransportError,
    UnsupportedEncoding,
)

__all__ = (
    "EXIT_CODES",
    "TIMEOUT_HINT",
    "ExitCode",
    "Incomplete",
    "NotFound",
    "Unwritable",
    "exit_code",
    "first_cause",
    "hint",
)

TIMEOUT_HINT: Final = "Try again, or give it longer with --timeout."


class ExitCode(IntEnum):
    """What `kvcs` returns to the shell; documented in docs/reference/cli.md."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    PROTOCOL = 6
    DATA = 7
    LIMITED = 8
    UNSUITABLE = 9
    TIMEOUT = 124
    INTERRUPTED = 130


class NotFound(KvcsError):
    """What was asked for is not there."""


class Unwritable(ConfigError):
    """The file to write cannot be written where it was asked for."""


class Incomplete(KvcsError):
    """Not all that was asked for could be had.

    Attributes:
        reason: What is missing, and why.
        code: Exit code of that reason.
        advice: What a person can do.
    """

    def __init__(self, reason: str, code: ExitCode, advice: str) -> None:
        super().__init__(reason, code, advice)
        self.reason = reason
        self.code = code
        self.advice = advice

    def __str__(self) -> str:
        return self.reason


EXIT_CODES: Final[dict[type[KvcsError], ExitCode]] = {
    ConfigError: ExitCode.USAGE,
    NotFound: ExitCode.NOT_FOUND,
    Incomplete: ExitCode.FAILED,
    RequestTimedOut: ExitCode.TIMEOUT,
    RequestFailed: ExitCode.FAILED,
    ConnectFailed: ExitCode.UNREACHABLE,
    ConnectionLost: ExitCode.UNREACHABLE,
    TransportError: ExitCode.UNREACHABLE,
    ProtocolError: ExitCode.PROTOCOL,
    StreamError: ExitCode.PROTOCOL,
    MalformedTrack: ExitCode.DATA,
    LayoutMismatch: ExitCode.DATA,
    KeyMismatch: ExitCode.DATA,
    IntegrityError: ExitCode.DATA,
    ManifestError: ExitCode.DATA,
    UnsupportedEncoding: ExitCode.DATA,
    DataError: ExitCode.DATA,
    KvcsError: ExitCode.FAILED,
}

_REQUEST_CODES: Final[dict[int, ExitCode]] = {
    RequestErrorCode.DOES_NOT_EXIST: ExitCode.NOT_FOUND,
    RequestErrorCode.INVALID_RANGE: ExitCode.NOT_FOUND,
    RequestErrorCode.UNAUTHORIZED: ExitCode.REFUSED,
    RequestErrorCode.MALFORMED_AUTH_TOKEN: ExitCode.REFUSED,
    RequestErrorCode.EXPIRED_AUTH_TOKEN: ExitCode.REFUSED,
    RequestErrorCode.TIMEOUT: ExitCode.TIMEOUT,
}

_HINTS: Final[dict[type[KvcsError], str]] = {
    ConfigError: "See the command's --help.",
    Unwritable: "Make the folder first, or name a file in another one.",
    NotFound: (
        "Check the scope key and the tokens, or wait until the publisher has started. Only a "
        "prompt that starts with the whole publication finds it: publish a shared prefix as a "
        "publication of its own."
    ),
    RequestTimedOut: TIMEOUT_HINT,
    CertificateRefused: "Name the authority that signed the relay's certificate with --ca.",
    DraftRefused: "The relay must offer MOQT draft 22 (ALPN moqt-22); kvcs speaks no other.",
    ConnectFailed: "Check that a relay runs there (kvcs relay run), and its certificate (--ca).",
    TransportError: "Check the address, the port and the certificate.",
    ConnectionLost: "Check the other side's log, then try again.",
    ProtocolError: "The other side may speak another draft; kvcs speaks MOQT draft 22.",
    KeyMismatch: "Compare the scope key and the descriptor (kvcs inspect).",
    LayoutMismatch: "Compare the descriptor with the tensors (kvcs inspect FILE).",
    DataError: "Nothing of it was used; fetch or make it again.",
}

_REQUEST_HINTS: Final[dict[ExitCode, str]] = {
    ExitCode.NOT_FOUND: _HINTS[NotFound],
    ExitCode.REFUSED: "Ask the relay's operator for access to this scope.",
    ExitCode.TIMEOUT: _HINTS[RequestTimedOut],
}


def first_cause(error: Exception) -> Exception:
    """Return the first error of a group: one sentence is what a person can act on."""
    match error:
        case ExceptionGroup(exceptions=(Exception() as first, *_)):
            return first_cause(first)
        case _:
            return error


def exit_code(error: KvcsError) -> ExitCode:
    """Return the exit code of `error`: the most specific class in the table decides."""
    if isinstance(error, Incomplete):
        return error.code
    if isinstance(error, RequestFailed) and error.code in _REQUEST_CODES:
        return _REQUEST_CODES[error.code]
    return next(EXIT_CODES[cls] for cls in type(error).__mro__ if cls in EXIT_CODES)


def hint(error: KvcsError) -> str:
    """Return what a person can do about `error`, or an empty text."""
    if isinstance(error, Incomplete):
        return error.advice
    if isinstance(error, RequestFailed):
        return _REQUEST_HINTS.get(exit_code(error), "")
    return next((_HINTS[cls] for cls in type(error).__mro__ if cls in _HINTS), "")
