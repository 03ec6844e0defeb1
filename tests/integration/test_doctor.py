"""``kvcs doctor`` as a command, against a relay of ours on QUIC and where there is none."""

import json

import pytest
from tests.integration.children import end, first_line, process, wait_for

from kvcs.cli.doctor.finding import ROWS

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def doctor(run, monkeypatch):
    """Run the command; return its exit code, standard output and error."""
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments):
        return run("doctor", *arguments)

    return call


def test_relay_of_kvcs_is_good_for_programs(doctor, relay):
    code, shown, err = doctor(relay["url"], "--ca", relay["ca"], "--json")

    result = json.loads(shown)
    assert {row["name"]: row["finding"] for row in result["rows"] if row["meaning"]} == {}
    assert (code, result["outcome"], result["implementation"]) == (0, "good", "kvcs"), err
    assert [row["name"] for row in result["rows"]] == [*ROWS]
    values = {row["name"]: row["value"] for row in result["rows"]}
    assert 0 < values["round-trip"] < 5
    assert min(values["live-rate"], values["fetch-rate"]) > 100_000
    assert err == ""


@pytest.mark.soak
def test_relay_of_kvcs_is_good_for_people(doctor, relay):
    code, shown, _ = doctor(relay["url"], "--ca", relay["ca"])

    assert code == 0
    lines = shown.splitlines()
    assert lines[-1] == "This relay has all that KVCS uses."
    assert [line for line in lines if line.startswith("ok ") and "honest gaps" in line]
    assert not [line for line in lines if line.startswith(("bad", "limited", "unknown"))]


def test_certificate_that_is_not_trusted_is_told_apart_from_silence(doctor, relay):
    code, shown, _ = doctor(relay["url"], "--json")

    grades = {row["name"]: (row["grade"], row["finding"]) for row in json.loads(shown)["rows"]}
    assert code == 9
    assert grades["connection"] == ("good", "answered")
    assert grades["certificate"][0] == "bad"
    assert grades["publication"] == ("unknown", "needs TLS certificate")


def test_relay_that_refuses_everything_says_so_and_is_not_judged(
    doctor, certificate_directory, tmp_path
):
    settings = tmp_path / "relay.toml"
    settings.write_text('[authorization]\npolicy = "deny"\n[admin]\nenabled = false\n')
    flags = ("--config", settings, "--port", 0, "--dev-cert", certificate_directory, "--json")
    with process("relay", "run", *flags) as refusing:
        listening = first_line(refusing)
        wait_for(refusing.stderr, "every request is refused")
        where = (listening["url"], "--ca", listening["ca"])
        code, shown, _ = doctor(*where)
        same, result, _ = doctor(*where, "--json")
        ended, _, _ = end(refusing)

    assert ended == 0
    assert (code, same, json.loads(result)["outcome"]) == (4, 4, "refused")
    assert "kvcs token mint --scope all" in shown.splitlines()[-1]
    assert "does not work" not in shown
    assert len(shown.splitlines()) < 30
    assert len(json.loads(result)["rows"]) == len(ROWS)


def test_nobody_at_the_address_is_unsuitable(doctor):
    code, shown, _ = doctor("moqt://127.0.0.1:9/", "--insecure-loopback", "--timeout", "2s")

    assert code == 9
    assert shown.splitlines()[-1] == "KVCS does not work through this relay."
    assert "no answer on UDP within 1 s" in shown


@pytest.mark.parametrize(
    "arguments",
    [("http://localhost/",), ("moqt://relay.example/", "--insecure-loopback")],
)
def test_mistake_of_the_caller_is_one_sentence(doctor, arguments):
    code, shown, err = doctor(*arguments)

    assert (code, shown) == (2, "")
    assert err.startswith("kvcs: ")
