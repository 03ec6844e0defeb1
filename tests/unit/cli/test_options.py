"""Where a setting comes from: flag, then environment, then file, then default."""

import click
import pytest

import kvcs.cli
from kvcs.cli._options import Command, connection_options, option, pass_output
from kvcs.cli._units import DURATION, SIZE
from kvcs.cli.demo import demo
from kvcs.cli.fetch import fetch
from kvcs.cli.inspect import inspect
from kvcs.cli.keys import keys
from kvcs.cli.publish import publish
from kvcs.cli.relay import check_config, print_config, relay_run, relay_status
from kvcs.cli.scope import new, show
from kvcs.cli.top import top
from kvcs.cli.version import version
from kvcs.errors import ConfigError

COMMANDS = [
    *(demo, relay_run, relay_status, check_config, print_config),
    *(publish, fetch, inspect, top, new, show, version),
    *(keys.commands[name] for name in keys.commands),
]

# Of each kind of setting: flag with value, variable with value, line of TOML, default, and what
# the command then gets from each.
SETTINGS = {
    "size": (["--size", "1KiB"], "2KiB", 'size = "3KiB"', 4096, (1024, 2048, 3072)),
    "wait": (["--wait", "1s"], "2s", "wait = 3", 4.0, (1.0, 2.0, 3.0)),
    "name": (["--name", "flag"], "env", 'name = "file"', "default", ("flag", "env", "file")),
    "count": (["--count", "1"], "2", "count = 3", 4, (1, 2, 3)),
    "is_on": (["--is-on"], "1", "is-on = true", False, (True, True, True)),
}


@pytest.fixture
def received():
    return {}


@pytest.fixture
def probe(received):
    @click.command(cls=Command)
    @option("--size", type=SIZE, default="4KiB")
    @option("--wait", type=DURATION, default="4s")
    @option("--name", default="default")
    @option("--count", type=int, default=4)
    @option("--is-on", is_flag=True)
    @pass_output
    def command(output, **settings):
        received.update(settings, output=output)

    return command


@pytest.fixture
def config_file(tmp_path):
    def write(text):
        path = tmp_path / "kvcs.toml"
        path.write_text(text)
        return str(path)

    return write


def call(command, *arguments):
    command.main(list(arguments), standalone_mode=False)


@pytest.mark.parametrize("name", SETTINGS)
def test_absent_setting_has_its_default(probe, received, name):
    call(probe)

    assert received[name] == SETTINGS[name][3]


@pytest.mark.parametrize("name", SETTINGS)
def test_file_replaces_the_default(probe, received, config_file, name):
    call(probe, "--config", config_file(SETTINGS[name][2]))

    assert received[name] == SETTINGS[name][4][2]


@pytest.mark.parametrize("name", SETTINGS)
def test_environment_replaces_the_file(probe, received, config_file, monkeypatch, name):
    _, variable, line, _, (_, expected, _) = SETTINGS[name]
    monkeypatch.setenv(f"KVCS_{name.upper()}", variable)

    call(probe, "--config", config_file(line))

    assert received[name] == expected


@pytest.mark.parametrize("name", SETTINGS)
def test_flag_replaces_environment_and_file(probe, received, config_file, monkeypatch, name):
    flag, variable, line, _, (expected, _, _) = SETTINGS[name]
    monkeypatch.setenv(f"KVCS_{name.upper()}", variable)

    call(probe, "--config", config_file(line), *flag)

    assert received[name] == expected


@pytest.mark.parametrize("name", SETTINGS)
def test_absent_flag_leaves_what_the_file_says_about_the_others(probe, received, config_file, name):
    others = {other: SETTINGS[other] for other in SETTINGS if other != name}
    text = "\n".join(line for _, _, line, _, _ in others.values())

    call(probe, "--config", config_file(text), *SETTINGS[name][0])

    assert {other: received[other] for other in others} == {
        other: values[2] for other, (_, _, _, _, values) in others.items()
    }


def test_shared_settings_come_from_the_file_too(probe, received, config_file):
    call(probe, "--config", config_file("json = true\nquiet = true"))

    assert received["output"].as_json
    assert received["output"].quiet


def test_config_file_itself_comes_from_the_environment(probe, received, config_file, monkeypatch):
    monkeypatch.setenv("KVCS_CONFIG", config_file("count = 9"))

    call(probe)

    assert received["count"] == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cuont = 1", "perhaps 'count'"),
        ("config = 'x'", "a setting of this command"),
        ("count = [1]", "a text or a number"),
        ("name = true", "a text or a number"),
        ("is-on = 'yes'", "true or false"),
        ("count = ", "a TOML file"),
    ],
)
def test_wrong_line_of_the_file_is_named(probe, config_file, text, words):
    with pytest.raises(ConfigError, match=words):
        call(probe, "--config", config_file(text))


def test_missing_config_file_is_named(probe, tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.toml"):
        call(probe, "--config", str(tmp_path / "nothing.toml"))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_flag_has_its_variable(command):
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            flag = next(flag for flag in parameter.opts if flag.startswith("--"))
            assert parameter.envvar == f"KVCS_{flag[2:].upper().replace('-', '_')}"
            assert parameter.help


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_only_flags_of_one_kind_have_short_forms(command):
    short = {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
        if not name.startswith("--")
    }

    assert short <= {"-v", "-q", "-o"}


def test_connection_options_are_the_same_everywhere():
    @click.command(cls=Command)
    @connection_options
    def command(**_):
        pass

    shared = {parameter.name for parameter in command.params}
    for user in (publish, fetch, inspect):
        assert shared <= {parameter.name for parameter in user.params}


def test_all_commands_are_listed():
    context = click.Context(kvcs.cli.root)

    names = kvcs.cli.root.list_commands(context)

    assert names == [
        "demo",
        "relay",
        "publish",
        "fetch",
        "inspect",
        "doctor",
        "top",
        "scope",
        "keys",
        "token",
        "version",
    ]
    assert "demo-node" not in names
