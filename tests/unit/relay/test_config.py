import pytest

from kvcs.errors import ConfigError
from kvcs.relay import RelayConfig
from kvcs.transport.interface import ServerTls

TLS = ServerTls(certificate_file="", private_key_file="")
A, B = "moqt://a.example:4433/kv", "moqt://b.example/"


def test_parents_are_kept_in_order_of_preference():
    assert RelayConfig(tls=TLS, upstream=(B, A)).upstream == (B, A)


@pytest.mark.parametrize(
    ("upstream", "message"),
    [
        ((A, B, A), "every parent once"),
        (("https://a.example/",), "moqt://host"),
        (tuple(f"moqt://{number}.example/" for number in range(9)), "at most 8"),
    ],
)
def test_parents_that_cannot_be_used_are_refused(upstream, message):
    with pytest.raises(ConfigError, match=message) as refused:
        RelayConfig(tls=TLS, upstream=upstream)

    assert refused.value.key == "upstream"
