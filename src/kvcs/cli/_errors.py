"""Exit codes, and one sentence with one hint for every error a person can meet."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kvcs.errors import (
    CertificateRefused,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DataError,
    DraftRefused,
    FileFailed,
    IntegrityError,
    KeyMismatch,
    KeyMissing,
    KvcsError,
    LayoutMismatch,
    LocalProtocolError,
    MalformedTrack,
    ManifestError,
    NotAuthentic,
    ProtocolError,
    RequestErrorCode,
    RequestFailed,
    RequestTimedOut,
    SessionRefused,
    StreamError,
    TokenRefused,
    TransportError,
    UnsupportedEncoding,
)

__all__ = (
    "EXIT_CODES",
    "HELP_HINT",
    "TIMEOUT_HINT",
    "AdminUnreachable",
    "Complaint",
    "ExitCode",
    "Incomplete",
    "NotFound",
    "OutputFailed",
    "Unwritable",
    "complaint",
    "exit_code",
    "first_cause",
    "hint",
    "sentence",
)

HELP_HINT: Final = "See the command's --help."
"""Advice that is given with the name of the command where that is known."""
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


class OutputFailed(KvcsError):
    """Standard output cannot be written."""


class Unwritable(ConfigError):
    """The file to write cannot be written where it was asked for."""


class AdminUnreachable(KvcsError):
    """The admin listener of a relay does not answer.

    Attributes:
        url: Where it was looked for.
        reason: What went wrong.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"no relay answers at {self.url}: {self.reason}"


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
    OutputFailed: ExitCode.FAILED,
    AdminUnreachable: ExitCode.UNREACHABLE,
    RequestTimedOut: ExitCode.TIMEOUT,
    RequestFailed: ExitCode.FAILED,
    SessionRefused: ExitCode.REFUSED,
    ConnectFailed: ExitCode.UNREACHABLE,
    ConnectionLost: ExitCode.UNREACHABLE,
    TransportError: ExitCode.UNREACHABLE,
    ProtocolError: ExitCode.PROTOCOL,
    StreamError: ExitCode.PROTOCOL,
    MalformedTrack: ExitCode.DATA,
    LayoutMismatch: ExitCode.DATA,
    KeyMismatch: ExitCode.DATA,
    KeyMissing: ExitCode.REFUSED,
    IntegrityError: ExitCode.DATA,
    ManifestError: ExitCode.DATA,
    NotAuthentic: ExitCode.DATA,
    TokenRefused: ExitCode.REFUSED,
    UnsupportedEncoding: ExitCode.DATA,
    FileFailed: ExitCode.USAGE,
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
    ConfigError: HELP_HINT,
    Unwritable: "Make the folder first, or name a file in another one.",
    NotFound: (
        "Check the scope key and the tokens; kvcs fetch --wait waits for a publisher. Only a "
        "prompt that starts with the whole publication finds it: publish a shared prefix as a "
        "publication of its own."
    ),
    AdminUnreachable: (
        "Check that a relay runs on this machine, and that its admin listener is where "
        "--admin-url says: kvcs relay run shows it when it starts."
    ),
    RequestTimedOut: TIMEOUT_HINT,
    CertificateRefused: (
        "Take the ca.pem of that relay for --ca, and dial a name that its certificate has: a "
        "development certificate has localhost, 127.0.0.1 and ::1, and what kvcs relay run "
        "--dev-cert-name adds."
    ),
    SessionRefused: (
        "A relay that listens on a loopback address serves its own machine only; start it with "
        "another --host, or ask its operator."
    ),
    DraftRefused: "The relay must offer MOQT draft 22 (ALPN moqt-22); kvcs speaks no other.",
    ConnectFailed: "Check the address and the port, and that a relay runs there (kvcs relay run).",
    TransportError: "Check the address and the port: another process may have it.",
    ConnectionLost: "Check the other side's log, then try again.",
    ProtocolError: "The other side may speak another draft; kvcs speaks MOQT draft 22.",
    KeyMismatch: "Compare the scope key and the descriptor (kvcs inspect).",
    KeyMissing: (
        "Ask a member of the scope for the object key, and take it in with kvcs keys import; its "
        "relays have none."
    ),
    NotAuthentic: (
        "If you trust its producer, take in its public key (kvcs keys import FILE --as trusted); "
        "--allow-unsigned takes it whoever made it."
    ),
    LayoutMismatch: "Compare the descriptor with the tensors (kvcs inspect FILE).",
    FileFailed: "Check that the file is there, that you may use it, and that the disk has room.",
    UnsupportedEncoding: "Nothing of it was used; a newer kvcs may read it.",
    DataError: "Nothing of it was used; fetch or make it again.",
}

# How errors about key rings name what is wrong: "key ring", "scope key", "object key 7".
_RING_KEYS: Final = ("key ring", "scope key", "producer key", "object key", "token key")
_RING_HINT: Final = (
    "kvcs keys list shows the ring that is used, --keys names another one; kvcs keys --help says "
    "how it is made and changed."
)
_EXPIRED_HINT: Final = (
    "Ask for a new token (kvcs token mint), and write it into the file that --token-file names."
)

# What a code of the protocol means to a person; the code itself follows.
_MEANINGS: Final[dict[int, str]] = {
    RequestErrorCode.INTERNAL_ERROR: "the relay failed to do it",
    RequestErrorCode.UNAUTHORIZED: "the relay does not allow it",
    RequestErrorCode.TIMEOUT: "the answer did not come in time",
    RequestErrorCode.NOT_SUPPORTED: "the relay does not support it",
    RequestErrorCode.MALFORMED_AUTH_TOKEN: "the relay cannot read the authorization token",
    RequestErrorCode.EXPIRED_AUTH_TOKEN: "the authorization token has expired",
    RequestErrorCode.GOING_AWAY: "the relay is about to stop",
    RequestErrorCode.EXCESSIVE_LOAD: "the relay has too much to do",
    RequestErrorCode.DOES_NOT_EXIST: "the relay does not have it, and no publisher offers it",
    RequestErrorCode.INVALID_RANGE: "the relay has nothing of the part that was asked for",
    RequestErrorCode.MALFORMED_TRACK: "the relay found the publication to contradict itself",
}

_REQUEST_HINTS: Final[dict[ExitCode, str]] = {
    ExitCode.NOT_FOUND: _HINTS[NotFound],
    ExitCode.REFUSED: (
        "No token was shown, or one that is for another scope, role or relay, of another key, not "
        "good yet, or for one session and used before: the relay's log says which. Name the file "
        "of a good one with --token-file; kvcs token inspect FILE shows what one allows, kvcs "
        "scope show which scope this is."
    ),
    ExitCode.TIMEOUT: _HINTS[RequestTimedOut],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """What a person is told, or a program with ``--json``.

    Attributes:
        message: What went wrong, one sentence.
        hint: What can be done, or empty.
        code: The exit code.
    """

    message: str
    hint: str
    code: ExitCode

    def to_json(self) -> dict[str, dict[str, str | int]]:
        """Return the error object of docs/reference/cli.md."""
        return {
            "error": {
                "code": self.code.name.lower(),
                "message": self.message,
                "hint": self.hint,
                "exit_code": int(self.code),
            }
        }


def complaint(error: Exception) -> Complaint:
    """Say what went wrong and what to do."""
    match error:
        case KvcsError():
            return Complaint(message=sentence(error), hint=hint(error), code=exit_code(error))
        case TimeoutError():
            return Complaint(message="it took too long", hint=TIMEOUT_HINT, code=ExitCode.TIMEOUT)
        case _:
            return Complaint(
                message=f"unexpected {type(error).__name__}: {error}",
                hint="This is a bug in kvcs; KVCS_DEBUG=1 shows where.",
                code=ExitCode.FAILED,
            )


def sentence(error: KvcsError) -> str:
    """Say what `error` means; what the protocol says comes behind it in brackets."""
    match error:
        case RequestFailed(code=code):
            return f"{_MEANINGS.get(code, 'the relay refused')} [{error}]"
        case ProtocolError() if not isinstance(error, LocalProtocolError):
            return f"a rule of the protocol was broken [{error}]"
        case NotAuthentic(reason="key" | "signature"):
            return f"nobody who is trusted here signed it: {error.text}"
        case NotAuthentic():
            return error.text
        case StreamError():
            return f"a stream was broken off [{error}]"
        case _:
            return str(error)


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
        if error.code == RequestErrorCode.EXPIRED_AUTH_TOKEN:
            return _EXPIRED_HINT
        return _REQUEST_HINTS.get(exit_code(error), "")
    if isinstance(error, ConfigError) and error.key.endswith(_RING_KEYS):
        return _RING_HINT
    return next((_HINTS[cls] for cls in type(error).__mro__ if cls in _HINTS), "")
