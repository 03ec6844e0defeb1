import inspect

import pytest

import kvcs.errors
from kvcs.cli._errors import (
    EXIT_CODES,
    TIMEOUT_HINT,
    Complaint,
    ExitCode,
    Incomplete,
    NotFound,
    Unwritable,
    complaint,
    exit_code,
    first_cause,
    hint,
    sentence,
)
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
    RemoteProtocolError,
    RequestErrorCode,
    RequestRejected,
    RequestTimedOut,
    SessionRefused,
    StreamError,
    TerminationCode,
    TokenRefused,
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
        (SessionRefused("localhost:1", "no"), ExitCode.REFUSED),
        (ConnectionLost(0, ""), ExitCode.UNREACHABLE),
        (LocalProtocolError("x"), ExitCode.PROTOCOL),
        (RemoteProtocolError(TerminationCode.PROTOCOL_VIOLATION, "x"), ExitCode.PROTOCOL),
        (StreamError(0, 4), ExitCode.PROTOCOL),
        (MalformedTrack("x"), ExitCode.DATA),
        (DataError("x"), ExitCode.DATA),
        (FileFailed("x"), ExitCode.USAGE),
        (LayoutMismatch("x"), ExitCode.DATA),
        (KeyMismatch("x"), ExitCode.DATA),
        (KeyMissing(7), ExitCode.REFUSED),
        (IntegrityError("digest", "x"), ExitCode.DATA),
        (NotAuthentic("signature", "x"), ExitCode.DATA),
        (TokenRefused("expired", "x"), ExitCode.REFUSED),
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
        (ConfigError("key ring", "a scope key"), "kvcs keys list"),
        (ConfigError("--keys", "a directory"), "--help"),
        (NotFound("x"), "scope key"),
        (NotFound("x"), "starts with the whole publication"),
        (NotFound("x"), "--wait"),
        (Unwritable("--output", "a file"), "Make the folder first"),
        (Incomplete("x", ExitCode.TIMEOUT, "wait"), "wait"),
        (RequestRejected(RequestErrorCode.UNAUTHORIZED, ""), "kvcs token inspect FILE"),
        (RequestRejected(RequestErrorCode.UNAUTHORIZED, ""), "for one session and used before"),
        (RequestRejected(RequestErrorCode.UNAUTHORIZED, ""), "the relay's log says which"),
        (RequestRejected(RequestErrorCode.EXPIRED_AUTH_TOKEN, ""), "a new token"),
        (NotAuthentic("key", "x"), "--as trusted"),
        (RequestTimedOut("x"), TIMEOUT_HINT),
        (ConnectFailed("localhost:1", "no"), "kvcs relay run"),
        (CertificateRefused("localhost:1", "no"), "--ca"),
        (CertificateRefused("localhost:1", "no"), "dial a name that its certificate has"),
        (DraftRefused("localhost:1", "no"), "draft 22"),
        (SessionRefused("192.0.2.1:1", "no"), "its own machine only"),
        (FileFailed("x"), "the disk has room"),
        (UnsupportedEncoding("x"), "a newer kvcs"),
        (KeyMismatch("x"), "kvcs inspect"),
        (KeyMissing(7), "object key"),
        (IntegrityError("digest", "x"), "Nothing of it was used"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_error_has_a_hint_that_names_the_next_step(error, words):
    assert words in hint(error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            RequestRejected(RequestErrorCode.DOES_NOT_EXIST, "no"),
            "the relay does not have it, and no publisher offers it [DOES_NOT_EXIST (0x10): no]",
        ),
        (RequestRejected(0x7777, ""), "the relay refused [unknown code 0x7777]"),
        (RequestTimedOut("5 s"), "the answer did not come in time [TIMEOUT (0x2): 5 s]"),
        (
            RemoteProtocolError(TerminationCode.PROTOCOL_VIOLATION, "x"),
            "a rule of the protocol was broken [PROTOCOL_VIOLATION (0x3): x]",
        ),
        (LocalProtocolError("x"), "x"),
        (StreamError(0, 4), "a stream was broken off [stream 4: INTERNAL_ERROR (0x0)]"),
        (NotFound("x"), "x"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_the_protocol_says_stands_behind_a_sentence(error, text):
    assert sentence(error) == text


def test_files_that_cannot_be_used_get_no_hint_about_what_is_in_them():
    assert "Nothing of it was used" not in hint(FileFailed("x"))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (NotFound("gone"), ExitCode.NOT_FOUND, "gone"),
        (TimeoutError(), ExitCode.TIMEOUT, "it took too long"),
        (ZeroDivisionError("no"), ExitCode.FAILED, "unexpected ZeroDivisionError: no"),
    ],
    ids=["ours", "time", "bug"],
)
def test_every_exception_becomes_a_complaint(error, code, words):
    made = complaint(error)

    assert (made.code, made.message) == (code, words)
    assert made.hint


def test_complaint_as_json_has_code_message_hint_and_exit_code():
    made = Complaint(message="m", hint="h", code=ExitCode.NOT_FOUND)

    assert made.to_json() == {
        "error": {"code": "not_found", "message": "m", "hint": "h", "exit_code": 3}
    }


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
