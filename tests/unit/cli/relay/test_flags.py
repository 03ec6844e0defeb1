"""Flags and variables replace what the file of a relay says, and nothing else."""

import logging
from pathlib import Path

import click
import pytest

from kvcs.cli._options import pass_output
from kvcs.cli.relay.flags import SettingsCommand, pass_settings, settings_options
from kvcs.cli.relay.reader import parse
from kvcs.cli.relay.schema import Settings
from kvcs.errors import ConfigError

# Of each flag: its key, then what flag, variable and file say and what that means.
FLAGS = {
    "--host": ("listen.host", ("h1", "h2", '"h3"'), ("h1", "h2", "h3")),
    "--port": ("listen.port", ("1", "2", "3"), (1, 2, 3)),
    "--cache-bytes": (
        "cache.memory_bytes",
        ("1GiB", "2GiB", '"3GiB"'),
        (2**30, 2**31, 3 * 2**30),
    ),
    "--disk-bytes": (
        "disk.capacity_bytes",
        ("1GiB", "2GiB", '"3GiB"'),
        (2**30, 2**31, 3 * 2**30),
    ),
    "--upstream": (
        "upstream",
        ("moqt://a/", "moqt://b/", '["moqt://c/"]'),
        (("moqt://a/",), ("moqt://b/",), ("moqt://c/",)),
    ),
    "--idle-timeout": ("transport.idle_timeout", ("1s", "2s", "3"), (1.0, 2.0, 3.0)),
    "--drain-timeout": ("drain_timeout", ("1s", "2s", "3"), (1.0, 2.0, 3.0)),
    "--admin-host": ("admin.host", ("h1", "h2", '"h3"'), ("h1", "h2", "h3")),
    "--admin-port": ("admin.port", ("1", "2", "3"), (1, 2, 3)),
    "--token-audience": ("authorization.audience", ("a", "b", '"c"'), ("a", "b", "c")),
    "--dev-cert-name": (
        "tls.development_names",
        ("a", "b", '["c"]'),
        (("a",), ("b",), ("c",)),
    ),
}
PATHS = {
    "--cert": "tls.certificate",
    "--token-keys": "authorization.keys",
    "--key": "tls.private_key",
    "--disk-directory": "disk.directory",
    "--dev-cert": "tls.development_directory",
    "--upstream-ca": "upstream_ca",
    "--upstream-token-file": "upstream_token_file",
}


@pytest.fixture
def received():
    return {}


@pytest.fixture
def probe(received):
    @click.command(cls=SettingsCommand)
    @settings_options
    @pass_output
    @pass_settings
    def command(output, settings):
        received.update(output=output, settings=settings)

    def call(*arguments):
        command.main(list(arguments), standalone_mode=False)
        return received["settings"]

    return call


@pytest.fixture
def file_with(tmp_path):
    def write(text):
        path = tmp_path / "relay.toml"
        path.write_text(text)
        return str(path)

    return write


def value_of(settings, key):
    for name in key.split("."):
        settings = getattr(settings, name)
    return settings


def toml(key, value):
    table, _, name = key.rpartition(".")
    return f"[{table}]\n{name} = {value}" if table else f"{name} = {value}"


def variable_of(flag):
    return f"KVCS_{flag[2:].upper().replace('-', '_')}"


def test_all_flags_are_tested_here():
    names = {
        name
        for parameter in settings_options(lambda: None).__click_params__
        for name in parameter.opts + parameter.secondary_opts
    }

    switches = {"--allow-anyone", "--admin", "--no-admin", "--require-audience"}
    assert names == {*FLAGS, *PATHS, *switches}


def test_nothing_given_means_the_defaults(probe):
    assert probe() == Settings()


@pytest.mark.parametrize("flag", FLAGS)
def test_file_replaces_the_default(probe, file_with, flag):
    key, (_, _, line), (_, _, expected) = FLAGS[flag]

    assert value_of(probe("--config", file_with(toml(key, line))), key) == expected


@pytest.mark.parametrize("flag", FLAGS)
def test_environment_replaces_the_file(probe, file_with, monkeypatch, flag):
    key, (_, variable, line), (_, expected, _) = FLAGS[flag]
    monkeypatch.setenv(variable_of(flag), variable)

    assert value_of(probe("--config", file_with(toml(key, line))), key) == expected


@pytest.mark.parametrize("flag", FLAGS)
def test_flag_replaces_environment_and_file(probe, file_with, monkeypatch, flag):
    key, (argument, variable, line), (expected, _, _) = FLAGS[flag]
    monkeypatch.setenv(variable_of(flag), variable)

    settings = probe("--config", file_with(toml(key, line)), flag, argument)

    assert value_of(settings, key) == expected


@pytest.mark.parametrize("flag", FLAGS)
def test_absent_flag_leaves_what_the_file_says(probe, file_with, flag):
    lines = [toml(key, line) for key, (_, _, line), _ in FLAGS.values()]
    # Keys without a table come first in TOML, and a table is named once.
    text = "\n".join(sorted(lines, key=lambda line: line.startswith("[")))
    text = text.replace("[listen]\nport", "port").replace("[admin]\nport", "port")
    given = parse(text, directory=Path("/"))

    settings = probe("--config", file_with(text), flag, FLAGS[flag][1][0])

    for other, (key, _, _) in FLAGS.items():
        if other != flag:
            assert value_of(settings, key) == value_of(given, key)


@pytest.mark.parametrize("flag", PATHS)
def test_path_of_a_flag_is_relative_to_the_working_directory(probe, tmp_path, monkeypatch, flag):
    monkeypatch.chdir(tmp_path)
    is_directory = flag in {"--dev-cert", "--disk-directory"}
    (tmp_path / "there").mkdir() if is_directory else (tmp_path / "there").write_text("x")

    assert value_of(probe(flag, "there"), PATHS[flag]) == tmp_path / "there"


@pytest.mark.parametrize("flag", PATHS)
def test_path_of_the_file_stays_without_the_flag(probe, file_with, tmp_path, flag):
    settings = probe("--config", file_with(toml(PATHS[flag], '"there"')), "--port", "1")

    assert value_of(settings, PATHS[flag]) == tmp_path / "there"


def test_certificate_of_a_flag_takes_the_place_of_the_files_development_certificate(
    probe, file_with, tmp_path
):
    file = file_with('[tls]\ndevelopment_directory = "dev"')
    (tmp_path / "c.pem").write_text("x")

    tls = probe("--config", file, "--cert", str(tmp_path / "c.pem")).tls

    assert (tls.certificate, tls.development_directory) == (tmp_path / "c.pem", None)


def test_development_certificate_of_a_flag_takes_the_place_of_the_files_certificate(
    probe, file_with, tmp_path
):
    file = file_with('[tls]\ncertificate = "c.pem"\nprivate_key = "k.pem"')

    tls = probe("--config", file, "--dev-cert", str(tmp_path / "dev")).tls

    assert (tls.certificate, tls.private_key) == (None, None)
    assert tls.development_directory == tmp_path / "dev"


def test_two_certificates_of_flags_are_refused(probe, tmp_path):
    (tmp_path / "c.pem").write_text("x")

    with pytest.raises(ConfigError, match="beside it"):
        probe("--dev-cert", str(tmp_path), "--cert", str(tmp_path / "c.pem"))


@pytest.mark.parametrize("policy", ["deny", "this-machine"])
def test_allow_anyone_replaces_the_policy(probe, file_with, monkeypatch, policy):
    file = file_with(f'[authorization]\npolicy = "{policy}"')

    assert probe("--config", file).authorization.policy == policy
    assert probe("--config", file, "--allow-anyone").authorization.policy == "allow-anyone"
    monkeypatch.setenv("KVCS_ALLOW_ANYONE", "1")
    assert probe("--config", file).authorization.policy == "allow-anyone"


def test_an_audience_is_required_on_demand(probe, file_with, monkeypatch):
    file = file_with("[authorization]\nrequire_audience = true")

    assert not probe().authorization.require_audience
    assert probe("--require-audience").authorization.require_audience
    assert probe("--config", file).authorization.require_audience
    monkeypatch.setenv("KVCS_REQUIRE_AUDIENCE", "1")
    assert probe().authorization.require_audience


def test_admin_listener_is_switched_on_and_off(probe, file_with, monkeypatch):
    off = file_with("[admin]\nenabled = false")

    assert probe().admin.enabled
    assert not probe("--no-admin").admin.enabled
    assert not probe("--config", off).admin.enabled
    assert probe("--config", off, "--admin").admin.enabled
    monkeypatch.setenv("KVCS_ADMIN", "0")
    assert not probe().admin.enabled


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ((), "WARNING"),
        (("-q",), "ERROR"),
        (("-vv",), "DEBUG"),
        (("--log-level", "INFO"), "INFO"),
        (("-vv", "--log-level", "ERROR"), "ERROR"),
    ],
)
def test_log_level_of_the_file_gives_way_to_flags(probe, file_with, arguments, level):
    probe("--config", file_with('[log]\nlevel = "WARNING"'), *arguments)

    assert logging.getLevelName(logging.getLogger("kvcs").level) == level


def test_log_format_comes_from_the_file(probe, file_with):
    probe("--config", file_with('[log]\nformat = "json"'))

    formatter = logging.getLogger("kvcs").handlers[0].formatter
    assert type(formatter).__name__ == "JsonFormatter"


def test_token_keys_of_a_flag_choose_the_policy(probe, file_with, tmp_path):
    file = file_with('[authorization]\npolicy = "deny"')

    settings = probe("--config", file, "--token-keys", str(tmp_path / "keys"))

    assert settings.authorization.policy == "c4m"
    with pytest.raises(ConfigError, match="no --token-keys beside it"):
        probe("--allow-anyone", "--token-keys", "keys")


def test_letting_anyone_in_forgets_the_token_keys_of_the_file(probe, file_with):
    file = file_with('[authorization]\npolicy = "c4m"\nkeys = "keys"')

    settings = probe("--config", file, "--allow-anyone")

    assert (settings.authorization.policy, settings.authorization.keys) == ("allow-anyone", None)
