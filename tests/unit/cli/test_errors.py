import inspect

import pytest

import kvcs.errors
from kvcs.cli._errors import (
    EXIT_CODES,
    TIMEOUT_HINT,
    ExitCode,
    Incomplete,
    NotFound,
    Unwritable,
    exit_code,
    first_cause,
    hint,
)
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
    LocalProtocolError,
    MalformedTrack,
    ManifestError,
    RemoteProtocolError,
    RequestErrorCode,
    RequestRejected,
    RequestTimedOut,
    StreamError,
    TerminationCode,
    UnsupportedEncoding,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KvcsError("x"), ExitCode.FAILED),
        (ConfigError("key", "a value"), ExitCode.USAGE),
        (Unwritable("--output", "a file"), ExitCode.USAGE),
        (NotFound("x"), ExitCode.NOT_FOUND),
        (Incomplete("x", ExitCode.TIMEOUT, "y"), ExitCode.TIMEOUT),
        (RequestRejected(RequestErrorCode.DOES_NOT_EXIST, ""), ExitCode.NOT_FOUND),
        (RequestRejected(RequestErrorCode.INVALID_RANGE, ""), ExitCode.NOT_FOUND),
        (RequestRejected(RequestErrorCode.UNAUTHORIZED, ""), ExitCode.REFUSED),
        (RequestRejected(RequestErrorCode.MALFORMED_AUTH_TOKEN, ""), ExitCode.REFUSED),
        (RequestRejected(RequestErrorCode.EXPIRED_AUTH_TOKEN, ""), ExitCode.REFUSED),
        (RequestRejected(RequestErrorCode.TIMEOUT, ""), ExitCode.TIMEOUT),
        (RequestRejected(RequestErrorCode.EXCESSIVE_LOAD, ""), ExitCode.FAILED),
        (RequestRejected(0x7777, ""), ExitCode.FAILED),
        (RequestTimedOut("x"), ExitCode.TIMEOUT),
        (ConnectFailed("localhost:1", "no"), ExitCode.UNREACHABLE),
        (CertificateRefused("localhost:1", "no"), ExitCode.UNREACHABLE),
        (DraftRefused("localhost:1", "no"), ExitCode.UNREACHABLE),
        (ConnectionLost(0, ""), ExitCode.UNREACHABLE),
        (LocalProtocolError("x"), ExitCode.PROTOCOL),
        (RemoteProtocolError(TerminationCode.PROTOCOL_VIOLATION, "x"), ExitCode.PROTOCOL),
        (StreamError(0, 4), ExitCode.PROTOCOL),
        (MalformedTrack("x"), ExitCode.DATA),
        (DataError("x"), ExitCode.DATA),
        (LayoutMismatch("x"), ExitCode.DATA),
        (KeyMismatch("x"), ExitCode.DATA),
        (IntegrityError("digest", "x"), ExitCode.DATA),
        (ManifestError("x"), ExitCode.DATA),
        (UnsupportedEncoding("x"), ExitCode.DATA),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.name,
)
def test_error_has_its_exit_code(error, code):
    assert exit_code(error) is code


def test_every_error_class_finds_a_code():
    classes = [
        cls
        for _, cls in inspect.getmembers(kvcs.errors, inspect.isclass)
        if issubclass(cls, KvcsError)
    ]

    assert all(any(base in EXIT_CODES for base in cls.__mro__) for cls in classes)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError("key", "a value"), "--help"),
        (NotFound("x"), "scope key"),
        (NotFound("x"), "starts with the whole publication"),
        (Unwritable("--output", "a file"), "Make the folder first"),
        (Incomplete("x", ExitCode.TIMEOUT, "wait"), "wait"),
        (RequestRejected(RequestErrorCode.UNAUTHORIZED, ""), "operator"),
        (RequestTimedOut("x"), TIMEOUT_HINT),
        (ConnectFailed("localhost:1", "no"), "kvcs relay run"),
        (CertificateRefused("localhost:1", "no"), "--ca"),
        (DraftRefused("localhost:1", "no"), "draft 22"),
        (KeyMismatch("x"), "kvcs inspect"),
        (IntegrityError("digest", "x"), "Nothing of it was used"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_error_has_a_hint_that_names_the_next_step(error, words):
    assert words in hint(error)


def test_first_cause_is_found_inside_nested_groups():
    cause = NotFound("x")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [cause, ValueError()]), KeyError()])

    assert first_cause(group) is cause


def test_exit_codes_are_those_of_the_documentation():
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "NOT_FOUND": 3,
        "REFUSED": 4,
        "UNREACHABLE": 5,
        "PROTOCOL": 6,
        "DATA": 7,
        "LIMITED": 8,
        "UNSUITABLE": 9,
        "TIMEOUT": 124,
        "INTERRUPTED": 130,
    }
