import pytest

from kvcs.errors import ConfigError
from kvcs.transport.interface import Address, TransportConfig, is_loopback, is_unidirectional


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (Address("relay.test", 4433), "relay.test:4433"),
        (Address("127.0.0.1", 1), "127.0.0.1:1"),
        (Address("::1", 443), "[::1]:443"),
    ],
)
def test_address_is_written_as_in_a_url(address, text):
    assert str(address) == text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "::1"])
def test_loopback_is_this_machine(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "localhost.test", "relay", ""])
def test_everything_else_is_not_loopback(host):
    assert not is_loopback(host)


def test_streams_are_numbered_as_in_quic():
    assert [is_unidirectional(stream_id) for stream_id in range(8)] == [
        False, False, True, True, False, False, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"idle_timeout": 0},
        {"connect_timeout": -1},
        {"close_timeout": 0},
        {"stream_ring_bytes": 0},
        {"low_water_bytes": 0},
        {"low_water_bytes": 5, "high_water_bytes": 4},
        {"default_priority": 256},
        {"congestion_control": "fastest"},
    ],
)
def test_settings_that_would_stall_every_connection_are_refused(settings):
    with pytest.raises(ConfigError, match=r"transport\."):
        TransportConfig(**settings)
