"""What a file of relay settings means, and everything that can be wrong with one."""

from pathlib import Path

import pytest

from kvcs.cli.relay.reader import WrongSettings, parse, read
from kvcs.cli.relay.schema import Settings
from kvcs.errors import ConfigError
from kvcs.relay import RelayConfig
from kvcs.relay.config import RelayLimits

HERE = Path("/etc/kvcs")


def errors_of(text):
    with pytest.raises(WrongSettings) as caught:
        parse(text, directory=HERE)
    return {error.key: error for error in caught.value.errors}


def test_empty_file_says_nothing():
    assert parse("", directory=HERE) == Settings()


def test_defaults_are_those_of_the_library():
    settings = Settings()
    library = {name: field.default for name, field in RelayConfig.__dataclass_fields__.items()}

    assert settings.limits == RelayLimits()
    assert settings.transport == library["transport"]
    assert settings.cache.memory_bytes == library["cache_bytes"]
    assert (settings.listen.host, settings.listen.port) == (library["host"], library["port"])
    assert settings.max_filter_ranges == library["max_filter_ranges"]
    assert settings.upstream == library["upstream"]


def test_values_with_units_are_read():
    settings = parse(
        """
        [cache]
        memory_bytes = "8GiB"
        [limits]
        fill_timeout = "1m"
        live_wait = 0.25
        subscription_linger = 2
        max_sessions = 9
        [limits.session]
        max_object_bytes = "2MiB"
        [transport]
        idle_timeout = "250ms"
        max_data = "1MiB"
        """,
        directory=HERE,
    )

    assert settings.cache.memory_bytes == 8 * 2**30
    assert settings.limits.fill_timeout == 60.0
    assert settings.limits.live_wait == 0.25
    assert settings.limits.subscription_linger == 2.0
    assert settings.limits.max_sessions == 9
    assert settings.limits.session.max_object_bytes == 2 * 2**20
    assert settings.transport.idle_timeout == 0.25
    assert settings.transport.max_data == 2**20
    # What a table does not say keeps the relay's default, not that of a plain connection.
    assert settings.transport.stream_ring_bytes == Settings().transport.stream_ring_bytes


def test_relative_paths_are_relative_to_the_file(tmp_path):
    file = tmp_path / "relay.toml"
    file.write_text('[tls]\ncertificate = "chain.pem"\nprivate_key = "/keys/key.pem"')

    tls = read(file).tls

    assert tls.certificate == tmp_path / "chain.pem"
    assert tls.private_key == Path("/keys/key.pem")


def test_every_fault_is_named_with_place_expectation_and_finding():
    errors = errors_of(
        """
        upstream = "moqt://parent/"
        transport = 3
        [listen]
        host = 1
        port = 70000
        [cache]
        memory_bytes = "many"
        [admin]
        enabled = "yes"
        [log]
        level = "LOUD"
        [limits]
        max_sessions = -1
        fill_timeout = "soon"
        [limits.session]
        max_requests = true
        """
    )

    assert {key: (error.expected, error.got) for key, error in errors.items()} == {
        "upstream": ("a list of texts", "'moqt://parent/'"),
        "transport": ("a table", "3"),
        "listen.host": ("a text", "1"),
        "listen.port": ("a port, 0..65535", "70000"),
        "cache.memory_bytes": ("a size such as 8GiB, 500MB or 4096", "'many'"),
        "admin.enabled": ("true or false", "'yes'"),
        "log.level": ('"DEBUG" or "INFO" or "WARNING" or "ERROR"', "'LOUD'"),
        "limits.max_sessions": ("a whole number, at least 0", "-1"),
        "limits.fill_timeout": ("a duration such as 30s, 250ms or 2h", "'soon'"),
        "limits.session.max_requests": ("a whole number, at least 0", "True"),
    }


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("lissten = 1", "lissten", "perhaps listen"),
        ("[listen]\nprot = 1", "listen.prot", "perhaps port"),
        ("[limits.session]\nzzz = 1", "limits.session.zzz", "a known key; this one is unknown"),
        ("[transport]\nidle_timeout = 0", "transport.idle_timeout", "more than 0"),
        ("[transport]\nlow_water_bytes = '1GiB'", "transport.low_water_bytes", "high_water_bytes"),
        ("[cache]\nmemory_bytes = 1.5", "cache.memory_bytes", "a size"),
        ("[cache]\nmemory_bytes = true", "cache.memory_bytes", "a size"),
        ("[limits]\nlive_wait = inf", "limits.live_wait", "a duration"),
        ("[limits]\nlive_wait = -1", "limits.live_wait", "a duration"),
        ("[limits]\nlive_wait = 1979-05-27", "limits.live_wait", "a duration"),
        ("[tls]\ncertificate = ''", "tls.certificate", "the path"),
        ('[tls]\ncertificate = "a\\u0000b"', "tls.certificate", "the path"),
        ("upstream = [1]", "upstream", "a list of texts"),
        ("a = ", "the file", "TOML"),
        ("a = 1\na = 2", "the file", "TOML"),
        ("a = " + "[" * 5000, "the file", "TOML"),
    ],
)
def test_fault_is_named(text, key, words):
    errors = errors_of(text)

    assert list(errors) == [key]
    assert words in errors[key].expected


def test_what_may_be_a_secret_is_not_shown():
    errors = errors_of("[tls]\nprivate_key = ['hunter2']\npassword = 'hunter2'")

    assert set(errors) == {"tls.private_key", "tls.password"}
    assert not [error for error in errors.values() if "hunter2" in str(error)]


def test_long_values_are_cut():
    error = errors_of(f"[listen]\nport = '{'9' * 1000}'")["listen.port"]

    assert len(error.got) < 100


def test_first_fault_stands_for_all_of_them():
    with pytest.raises(
        WrongSettings, match=r"listen\.port: .* \(and 1 more: kvcs relay check-config names all\)$"
    ):
        parse("[listen]\nport = -1\nhost = 2", directory=HERE)


@pytest.mark.parametrize(
    ("content", "expected"), [(b"\xff", "UTF-8"), (b"#" * (2**20 + 1), "octets")]
)
def test_file_that_is_no_text_is_refused(tmp_path, content, expected):
    file = tmp_path / "relay.toml"
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=expected):
        read(file)


def test_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match="a readable file"):
        read(tmp_path / "nothing.toml")


def test_the_file_is_named_beside_all_that_is_wrong_in_it(tmp_path):
    file = tmp_path / "relay.toml"
    file.write_text("[listen]\nport = -1\nprot = 2")

    with pytest.raises(WrongSettings) as error:
        read(file)

    assert [each.key for each in error.value.errors] == [
        f"{file}: listen.port",
        f"{file}: listen.prot",
    ]
