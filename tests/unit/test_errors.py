import inspect

import pytest

from kvcs import errors

# MOQT draft 22, Section 12: pinned, since peers read the numbers and not our names.
TERMINATION = {
    "NO_ERROR": 0x0, "INTERNAL_ERROR": 0x1, "UNAUTHORIZED": 0x2, "PROTOCOL_VIOLATION": 0x3,
    "INVALID_REQUEST_ID": 0x4, "DUPLICATE_TRACK_ALIAS": 0x5, "KEY_VALUE_FORMATTING_ERROR": 0x6,
    "INVALID_PATH": 0x8, "MALFORMED_PATH": 0x9, "GOAWAY_TIMEOUT": 0x10,
    "CONTROL_MESSAGE_TIMEOUT": 0x11, "DATA_STREAM_TIMEOUT": 0x12,
    "AUTH_TOKEN_CACHE_OVERFLOW": 0x13, "DUPLICATE_AUTH_TOKEN_ALIAS": 0x14,
    "MALFORMED_AUTH_TOKEN": 0x16, "UNKNOWN_AUTH_TOKEN_ALIAS": 0x17, "EXPIRED_AUTH_TOKEN": 0x18,
    "INVALID_AUTHORITY": 0x19, "MALFORMED_AUTHORITY": 0x1A, "TOO_MANY_REQUEST_UPDATES": 0x1B,
}  # fmt: skip
REQUEST = {
    "INTERNAL_ERROR": 0x0, "UNAUTHORIZED": 0x1, "TIMEOUT": 0x2, "NOT_SUPPORTED": 0x3,
    "MALFORMED_AUTH_TOKEN": 0x4, "EXPIRED_AUTH_TOKEN": 0x5, "GOING_AWAY": 0x6,
    "EXCESSIVE_LOAD": 0x9, "DOES_NOT_EXIST": 0x10, "INVALID_RANGE": 0x11, "MALFORMED_TRACK": 0x12,
    "UNINTERESTED": 0x20, "PREFIX_OVERLAP": 0x30, "NAMESPACE_TOO_LARGE": 0x31,
    "UNSUPPORTED_EXTENSION": 0x33, "REDIRECT": 0x34, "CONFLICTING_FILTERS": 0x35,
    "INVALID_FILTER": 0x36,
}  # fmt: skip
DONE = {
    "INTERNAL_ERROR": 0x0, "UNAUTHORIZED": 0x1, "TRACK_ENDED": 0x2, "GOING_AWAY": 0x4,
    "TOO_FAR_BEHIND": 0x5, "EXPIRED": 0x6, "UPDATE_FAILED": 0x8, "EXCESSIVE_LOAD": 0x9,
    "MALFORMED_TRACK": 0x12,
}  # fmt: skip
RESET = {
    "INTERNAL_ERROR": 0x0, "CANCELLED": 0x1, "DELIVERY_TIMEOUT": 0x2, "SESSION_CLOSED": 0x3,
    "GOING_AWAY": 0x4, "TOO_FAR_BEHIND": 0x5, "UNKNOWN_OBJECT_STATUS": 0x6,
    "EXPIRED_AUTH_TOKEN": 0x7, "EXCESSIVE_LOAD": 0x9, "MALFORMED_TRACK": 0x12,
}  # fmt: skip


@pytest.mark.parametrize(
    ("registry", "numbers"),
    [
        (errors.TerminationCode, TERMINATION),
        (errors.RequestErrorCode, REQUEST),
        (errors.PublishDoneCode, DONE),
        (errors.StreamResetCode, RESET),
    ],
)
def test_codes_are_stable(registry, numbers):
    assert {code.name: code.value for code in registry} == numbers


def test_every_public_error_is_a_kvcs_error():
    classes = [getattr(errors, name) for name in errors.__all__]
    exceptions = [cls for cls in classes if inspect.isclass(cls) and issubclass(cls, Exception)]

    assert len(exceptions) > 15
    assert all(issubclass(cls, errors.KvcsError) for cls in exceptions)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            errors.RemoteProtocolError(errors.TerminationCode.PROTOCOL_VIOLATION, "no"),
            "PROTOCOL_VIOLATION (0x3): no",
        ),
        (errors.LocalProtocolError("no"), "no"),
        (errors.RequestRejected(0x10, "gone"), "DOES_NOT_EXIST (0x10): gone"),
        (errors.RequestRejected(0x77, ""), "unknown code 0x77"),
        (errors.RequestTimedOut("5 s"), "TIMEOUT (0x2): 5 s"),
        (errors.StreamError(0x1, 7), "stream 7: CANCELLED (0x1)"),
        (errors.ConnectFailed("h:1", "refused"), "cannot connect to h:1: refused"),
        (errors.ConnectionLost(0, ""), "connection lost: NO_ERROR (0x0)"),
        (errors.ConnectionLost(0, "idle"), "connection lost: NO_ERROR (0x0): idle"),
        (errors.IntegrityError("digest", "Object {0, 1}"), "Object {0, 1} (digest)"),
        (
            errors.KeyMissing(7),
            "the publication is sealed: the object key with Key ID 7 is needed",
        ),
        (errors.NotAuthentic("key", "no trusted key"), "no trusted key (key)"),
        (errors.TokenRefused("expired", "it is over"), "it is over (expired)"),
        (errors.ConfigError("port", "0..65535", "x"), "port: expected 0..65535, got x"),
        (errors.ConfigError("port", "0..65535"), "port: expected 0..65535"),
    ],
)
def test_error_text_says_what_and_where(error, text):
    assert str(error) == text


def test_a_timed_out_request_is_a_timeout():
    assert issubclass(errors.RequestTimedOut, TimeoutError)
