"""``kvcs doctor`` as a command, against a relay of ours on QUIC and where there is none."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

import kvcs.cli
from kvcs.cli.doctor.finding import ROWS

pytestmark = pytest.mark.timeout(120)


@contextmanager
def running(directory, *flags):
    """A relay in a process of its own: its URL and its certificate authority."""
    command = [sys.executable, "-m", "kvcs", "relay", "run", "--port", "0", "--json"]
    environment = {name: value for name, value in os.environ.items() if name[:5] != "KVCS_"}
    with subprocess.Popen(
        [*command, "--dev-cert", str(directory), *flags],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        try:
            listening = json.loads(child.stdout.readline())
            yield listening["url"], listening["ca"]
        finally:
            child.kill()


@pytest.fixture(scope="module")
def relay(tmp_path_factory):
    with running(tmp_path_factory.mktemp("certificate")) as found:
        yield found


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command; return its exit code, standard output and error."""
    for name in os.environ:
        if name.startswith("KVCS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments):
        code = kvcs.cli._run(["doctor", *map(str, arguments)])
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return call


def test_relay_of_kvcs_is_good_for_programs(run, relay):
    code, shown, err = run(relay[0], "--ca", relay[1], "--json")

    result = json.loads(shown)
    assert {row["name"]: row["finding"] for row in result["rows"] if row["meaning"]} == {}
    assert (code, result["outcome"], result["implementation"]) == (0, "good", "kvcs"), err
    assert [row["name"] for row in result["rows"]] == [*ROWS]
    values = {row["name"]: row["value"] for row in result["rows"]}
    assert 0 < values["round-trip"] < 5
    assert min(values["live-rate"], values["fetch-rate"]) > 100_000
    assert err == ""


def test_relay_of_kvcs_is_good_for_people(run, relay):
    code, shown, _ = run(relay[0], "--ca", relay[1])

    assert code == 0
    lines = shown.splitlines()
    assert lines[-1] == "This relay has all that KVCS uses."
    assert [line for line in lines if line.startswith("ok ") and "honest gaps" in line]
    assert not [line for line in lines if line.startswith(("bad", "limited", "unknown"))]


def test_certificate_that_is_not_trusted_is_told_apart_from_silence(run, relay):
    code, shown, _ = run(relay[0], "--json")

    grades = {row["name"]: (row["grade"], row["finding"]) for row in json.loads(shown)["rows"]}
    assert code == 9
    assert grades["connection"] == ("good", "answered")
    assert grades["certificate"][0] == "bad"
    assert grades["publication"] == ("unknown", "needs TLS certificate")


def test_relay_that_asks_for_a_token_is_not_judged(run, tmp_path):
    settings = tmp_path / "relay.toml"
    settings.write_text('[authorization]\npolicy = "deny"\n[admin]\nenabled = false\n')
    with running(tmp_path / "certificate", "--config", str(settings)) as (url, ca):
        code, shown, _ = run(url, "--ca", ca)
        same, result, _ = run(url, "--ca", ca, "--json")

    assert (code, same, json.loads(result)["outcome"]) == (4, 4, "refused")
    assert "kvcs token mint --scope all" in shown.splitlines()[-1]
    assert "does not work" not in shown
    assert len(shown.splitlines()) < 30
    assert len(json.loads(result)["rows"]) == len(ROWS)


def test_nobody_at_the_address_is_unsuitable(run):
    code, shown, err = run("moqt://127.0.0.1:9/", "--insecure-loopback", "--timeout", "2s")

    assert code == 9
    assert shown.splitlines()[-1] == "KVCS does not work through this relay."
    assert "no answer on UDP within 1 s" in shown
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [("http://localhost/",), ("moqt://relay.example/", "--insecure-loopback")],
)
def test_mistake_of_the_caller_is_one_sentence(run, arguments):
    code, shown, err = run(*arguments)

    assert (code, shown) == (2, "")
    assert err.startswith("kvcs: ")
