import pytest

from kvcs.endpoint.url import Url, parse_url
from kvcs.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("moqt://relay.test", Url(host="relay.test", port=443, authority="relay.test")),
        (
            "moqt://relay.test:4433/",
            Url(host="relay.test", port=4433, authority="relay.test:4433", path="/"),
        ),
        (
            "moqt://[::1]:1/a/b?c=d#kvcs:x--y",
            Url(host="::1", port=1, authority="[::1]:1", path="/a/b?c=d", fragment="kvcs:x--y"),
        ),
        (
            "MOQT://Relay.Test/p",
            Url(host="relay.test", port=443, authority="Relay.Test", path="/p"),
        ),
    ],
)
def test_url_is_taken_apart(text, url):
    assert parse_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "relay.test:4433",
        "https://relay.test/",
        "moqt://",
        "moqt:///path",
        "moqt://:4433/",
        "moqt://relay.test:0/",
        "moqt://relay.test:99999/",
        "moqt://relay.test:port/",
        "moqt://user:secret@relay.test/",
        "moqt://relay.test/a b",
        "moqt://relay.test/a\nb",
        "moqt://r\u00e9lay.test/",
        "moqt://[::1/",
        "moqt://relay.test/" + "x" * 9000,
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(ConfigError, match="url: expected"):
        parse_url(text)


def test_refusal_does_not_repeat_a_long_text():
    with pytest.raises(ConfigError) as caught:
        parse_url("moqt://relay.test/" + "x" * 9000)

    assert len(str(caught.value)) < 100
