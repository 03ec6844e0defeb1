import pytest

from kvcs.errors import LocalProtocolError, RequestErrorCode
from kvcs.moqt.wire import MAX_REASON_BYTES, MAX_URI_BYTES, Goaway, PublishDone, RequestError
from kvcs.moqt.wire.request import Redirect
from kvcs.names import FullTrackName, TrackNamespace

ELSEWHERE = Redirect("moqt://b/", FullTrackName(TrackNamespace(), b""))


@pytest.mark.parametrize(
    ("code", "redirect"),
    [(RequestErrorCode.REDIRECT, None), (RequestErrorCode.TIMEOUT, ELSEWHERE)],
)
def test_redirect_goes_with_its_code_only(code, redirect):
    with pytest.raises(ValueError, match="REDIRECT"):
        RequestError(code=code, redirect=redirect)


@pytest.mark.parametrize(
    "message",
    [
        RequestError(code=0, reason="x" * (MAX_REASON_BYTES + 1)),
        PublishDone(status_code=0, stream_count=0, reason="x" * (MAX_REASON_BYTES + 1)),
        Goaway(uri="x" * (MAX_URI_BYTES + 1)),
    ],
)
def test_text_above_its_limit_is_not_encoded(message):
    with pytest.raises(LocalProtocolError, match="at most"):
        message.encode()
