import pytest

from kvcs.errors import ConfigError
from kvcs.relay import DiskConfig, RelayConfig, RelayLimits
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


def test_reading_ahead_by_more_than_an_eighth_of_the_memory_is_refused(tmp_path):
    disk = DiskConfig(directory=tmp_path, read_ahead_bytes=2**23)

    with pytest.raises(ConfigError, match="at most 4194304") as refused:
        RelayConfig(tls=TLS, cache_bytes=2**25, disk=disk)

    assert refused.value.key == "disk.read_ahead_bytes"
    assert RelayConfig(tls=TLS, cache_bytes=2**26, disk=disk).disk is disk


def test_less_for_unfinished_objects_than_one_may_have_is_refused():
    with pytest.raises(ConfigError, match="at least 16777216") as refused:
        RelayConfig(tls=TLS, limits=RelayLimits(max_partial_bytes=2**24 - 1))

    assert refused.value.key == "limits.max_partial_bytes"
