"""Looking at settings without running anything, and what a relay is made of."""

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from kvcs.cli.relay._reference import BEGIN, END, reference, replaced
from kvcs.cli.relay.addresses import own_addresses, public_name
from kvcs.cli.relay.assembly import is_open_to_anyone, relay_config, server_tls
from kvcs.cli.relay.faults import check, faults_of_file, is_host
from kvcs.cli.relay.reader import WrongSettings, parse
from kvcs.cli.relay.schema import Settings, keys
from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.relay import RelayConfig, allow_all, deny_all
from kvcs.relay.disk.config import DiskConfig

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return create_dev_certificate(tmp_path_factory.mktemp("dev"))


@pytest.fixture
def settings_of(tmp_path):
    return lambda text: parse(text, directory=tmp_path)


def faults_of(settings):
    with pytest.raises(WrongSettings) as caught:
        check(settings)
    errors = {error.key: str(error) for error in caught.value.errors}
    assert len(errors) == len(caught.value.errors)
    return errors


def tls_of(files):
    return (
        f'[tls]\ncertificate = "{files.certificate_file}"\n'
        f'private_key = "{files.private_key_file}"\n'
    )


def test_good_file_is_valid(kvcs_json, tmp_path, certificate):
    file = tmp_path / "relay.toml"
    file.write_text(tls_of(certificate))

    assert kvcs_json("relay", "check-config", file) == {
        "file": str(file),
        "valid": True,
        "errors": [],
    }


def test_every_fault_has_a_line_and_the_exit_code_is_that_of_wrong_settings(kvcs_run, tmp_path):
    file = tmp_path / "relay.toml"
    file.write_text("[listen]\nport = -1\nprot = 2\n[log]\nlevel = 'x'")

    code, out, err = kvcs_run("relay", "check-config", file)

    assert code == 2
    assert out == ""
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        "listen.port",
        "listen.prot",
        "log.level",
        "tls",
    ]


def test_faults_are_json_too(kvcs_run, tmp_path):
    file = tmp_path / "relay.toml"
    file.write_text('[listen]\nport = -1\n[tls]\ndevelopment_directory = "dev"')

    code, out, _ = kvcs_run("relay", "check-config", file, "--json")

    assert code == 2
    assert json.loads(out)["errors"] == [
        {"key": "listen.port", "expected": "a port, 0..65535", "got": "-1"}
    ]


def test_file_that_is_not_there_is_one_sentence_and_a_hint(kvcs_run, tmp_path):
    code, _, err = kvcs_run("relay", "check-config", tmp_path / "nothing.toml")

    assert code == 2
    assert len(err.splitlines()) == 2


def test_checking_writes_nothing(kvcs_json, tmp_path):
    file = tmp_path / "relay.toml"
    file.write_text('[tls]\ndevelopment_directory = "dev"')

    assert kvcs_json("relay", "check-config", file)["valid"]
    assert [path.name for path in tmp_path.iterdir()] == ["relay.toml"]


def test_example_is_valid(kvcs_json):
    assert kvcs_json("relay", "check-config", ROOT / "examples" / "relay.toml")["valid"]


def test_public_address_needs_a_policy(settings_of):
    text = '[listen]\nhost = "0.0.0.0"\n[tls]\ndevelopment_directory = "dev"\n'

    assert list(faults_of(settings_of(text))) == ["authorization.policy"]
    for policy in ("deny", "allow-anyone"):
        check(settings_of(f'{text}[authorization]\npolicy = "{policy}"'))


@pytest.mark.parametrize(
    ("host", "policy", "expected"),
    [
        ("127.0.0.1", "this-machine", False),
        ("127.0.0.1", "allow-anyone", False),
        ("0.0.0.0", "deny", False),
        ("0.0.0.0", "allow-anyone", True),
    ],
)
def test_open_relays_are_known(settings_of, host, policy, expected):
    settings = settings_of(f'[listen]\nhost="{host}"\n[authorization]\npolicy="{policy}"')

    assert is_open_to_anyone(settings) is expected


@pytest.mark.parametrize(
    ("policy", "authorize"),
    [("this-machine", allow_all), ("allow-anyone", allow_all), ("deny", deny_all)],
)
def test_policy_decides(settings_of, certificate, policy, authorize):
    settings = settings_of(f'[authorization]\npolicy = "{policy}"')

    assert relay_config(settings, certificate.tls).authorize is authorize


@pytest.mark.parametrize("text", ["", "[tls]\ncertificate = 'c.pem'", "[tls]\nprivate_key = 'k'"])
def test_certificate_is_needed_whole(settings_of, text):
    assert list(faults_of(settings_of(text))) == ["tls"]


def test_certificate_and_key_must_belong_together(settings_of, certificate, tmp_path):
    other = create_dev_certificate(tmp_path / "other")
    text = (
        f'[tls]\ncertificate = "{certificate.certificate_file}"\n'
        f'private_key = "{other.private_key_file}"'
    )

    assert (
        "the unencrypted key that belongs to it" in faults_of(settings_of(text))["tls.certificate"]
    )


def test_certificate_that_is_not_there_is_named(settings_of):
    faults = faults_of(settings_of("[tls]\ncertificate = 'no.pem'\nprivate_key = 'no.key'"))

    assert {"tls.certificate", "tls.private_key"} == set(faults)
    assert "a file that can be read" in faults["tls.certificate"]
    assert "no.pem: No such file" in faults["tls.certificate"]


def test_two_certificates_are_refused(settings_of, certificate):
    text = tls_of(certificate) + 'development_directory = "dev"'

    assert "beside it" in faults_of(settings_of(text))["tls.development_directory"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('upstream = ["http://parent/"]', "upstream"),
        ('upstream = ["moqt://a/", "moqt://a/"]', "upstream"),
        ('upstream_ca = "no.pem"', "upstream_ca"),
        ('[cache]\nmemory_bytes = "1KiB"', "cache.memory_bytes"),
        ('[disk]\ndirectory = "d"\ncapacity_bytes = 1', "disk.capacity_bytes"),
    ],
)
def test_value_that_no_relay_can_have_is_named(settings_of, certificate, text, key):
    text += "\n" + tls_of(certificate)

    assert list(faults_of(settings_of(text))) == [key]


def test_everything_is_found_at_once(kvcs_run, tmp_path):
    (tmp_path / "plain").write_text("no certificate")
    file = tmp_path / "relay.toml"
    file.write_text(
        """
        upstream = ["http://parent/"]
        upstream_ca = "plain"
        upstream_token_file = "no-token"
        drain_timeout = "soon"
        [listen]
        host = "not a host"
        [tls]
        certificate = "no.pem"
        private_key = "no.key"
        [cache]
        memory_bytes = "4096TiB"
        [disk]
        directory = "plain/objects"
        capacity_bytes = 1
        [admin]
        host = "192.0.2.1"
        [transport]
        congestion_control = "fastest"
        idle_timeout = -1
        [limits]
        max_sessions = "many"
        """
    )

    code, out, _ = kvcs_run("relay", "check-config", file, "--json")

    faults = {fault["key"]: fault for fault in json.loads(out)["errors"]}
    assert code == 2
    assert set(faults) == {
        *("upstream", "upstream_ca", "upstream_token_file", "drain_timeout", "listen.host"),
        *("tls.certificate", "tls.private_key", "cache.memory_bytes", "disk.directory"),
        *("disk.capacity_bytes", "admin.host", "transport.congestion_control"),
        *("limits.max_sessions", "transport.idle_timeout"),
    }
    assert faults["listen.host"]["expected"] == "an IP address or a host name"
    assert "the memory of this machine" in faults["cache.memory_bytes"]["expected"]
    assert "newreno" in faults["transport.congestion_control"]["expected"]
    assert "no certificate in it" in faults["upstream_ca"]["got"]
    assert "not a directory" in faults["disk.directory"]["got"]


def test_bounds_that_do_not_fit_each_other_are_named_once(settings_of, certificate):
    text = '[limits]\nmax_partial_bytes = "1MiB"\n' + tls_of(certificate)

    faults = faults_of(settings_of(text))

    assert faults == {"limits.max_partial_bytes": faults["limits.max_partial_bytes"]}
    assert "at least 16777216" in faults["limits.max_partial_bytes"]


def test_table_that_is_misread_has_no_faults_that_follow_from_it(tmp_path):
    file = tmp_path / "relay.toml"
    file.write_text("[tls]\ncertificate = 5\nprivate_key = 'no.key'")

    assert [fault.key for fault in faults_of_file(file)] == ["tls.certificate"]


def test_directory_that_cannot_be_written_is_named(settings_of, certificate, tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir()
    # Whatever its mode says: root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != closed)
    text = '[disk]\ndirectory = "closed/objects"\n' + tls_of(certificate)

    assert "not writable" in faults_of(settings_of(text))["disk.directory"]


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        *((text, True) for text in ("0.0.0.0", "::1", "localhost", "relay-1.example", "a.b.")),
        *(
            (text, False)
            for text in ("", "not a host", "[::1]", "a..b", "-a", "ä", "a\0", "a" * 254)
        ),
    ],
)
def test_hosts_are_told_from_other_texts(text, is_valid):
    assert is_host(text) is is_valid


@pytest.mark.parametrize("content", [b"", b" \n", b"x" * 20_000])
def test_token_file_holds_a_token(settings_of, certificate, tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    text = 'upstream_token_file = "token"\n' + tls_of(certificate)

    faults = faults_of(settings_of(text))

    assert list(faults) == ["upstream_token_file"]
    assert "xx" not in faults["upstream_token_file"]


def test_relay_gets_what_the_file_says(settings_of, certificate, tmp_path):
    (tmp_path / "token").write_bytes(b"let me in\n")
    settings = settings_of(
        """
        upstream = ["moqt://parent/"]
        upstream_token_file = "token"
        max_filter_ranges = 3
        [listen]
        port = 7
        [cache]
        memory_bytes = "64MiB"
        [disk]
        directory = "objects"
        capacity_bytes = "1GiB"
        max_tracks = 1
        queue_bytes = 2
        read_ahead_bytes = 3
        retry_interval = 4
        [limits]
        max_sessions = 5
        [transport]
        idle_timeout = "3s"
        """
    )

    config = relay_config(settings, certificate.tls)

    assert (config.port, config.cache_bytes, config.max_filter_ranges) == (7, 2**26, 3)
    assert config.disk == DiskConfig(
        directory=tmp_path / "objects",
        capacity_bytes=2**30,
        max_tracks=1,
        queue_bytes=2,
        read_ahead_bytes=3,
        retry_interval=4.0,
    )
    assert config.upstream == ("moqt://parent/",)
    assert [token.value for token in config.upstream_tokens] == [b"let me in"]
    assert config.limits.max_sessions == 5
    assert config.transport.idle_timeout == 3.0


def test_every_setting_of_the_library_has_a_key():
    own = {name.name for name in fields(DiskConfig)}
    elsewhere = {  # key of the file for what has another name there
        "tls": "tls",
        "host": "listen",
        "port": "listen",
        "cache_bytes": "cache",
        "authorize": "authorization",
        "upstream_tls": "upstream_ca",
        "upstream_tokens": "upstream_token_file",
    }

    assert {key.name for key in keys(Settings().disk)} == own
    for field in fields(RelayConfig):
        assert hasattr(Settings(), elsewhere.get(field.name, field.name)), field.name


def test_public_development_certificate_is_for_this_machines_addresses(settings_of, tmp_path):
    from cryptography import x509  # noqa: PLC0415

    settings = settings_of(
        '[listen]\nhost = "0.0.0.0"\n[tls]\ndevelopment_directory = "dev"\n'
        'development_names = ["relay.example"]'
    )

    _, ca = server_tls(settings)

    cert = x509.load_pem_x509_certificate((tmp_path / "dev" / "cert.pem").read_bytes())
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert ca == tmp_path / "dev" / "ca.pem"
    assert "relay.example" in names.get_values_for_type(x509.DNSName)
    assert "127.0.0.1" in addresses & set(own_addresses())


@pytest.mark.parametrize(
    ("host", "names", "expected"),
    [
        ("127.0.0.1", ["relay.example"], "127.0.0.1"),
        ("relay.example", [], "relay.example"),
        ("0.0.0.0", ["*.example", "relay.example"], "relay.example"),
        ("::", ["192.0.2.7", "relay.example"], "relay.example"),
        ("0.0.0.0", ["192.0.2.7"], "localhost"),
    ],
)
def test_shown_host_is_one_that_clients_can_reach(tmp_path, host, names, expected):
    files = create_dev_certificate(tmp_path, names)

    assert public_name(host, Path(files.certificate_file)) == expected


def test_shown_host_is_this_machines_when_the_certificate_says_nothing(tmp_path):
    assert public_name("0.0.0.0", tmp_path / "no.pem") in own_addresses()


def test_printed_settings_are_those_of_file_and_flags(kvcs_run, tmp_path):
    file = tmp_path / "relay.toml"
    file.write_text('[listen]\nport = 5\n[tls]\nprivate_key = "k.pem"')
    (tmp_path / "k.pem").write_text("hunter2")

    code, out, err = kvcs_run("relay", "print-config", "--config", file, "--cache-bytes", "2GiB")

    printed = parse(out, directory=Path("/"))
    assert (code, err) == (0, "")
    assert printed.listen.port == 5
    assert printed.cache.memory_bytes == 2**31
    assert printed.tls.private_key == tmp_path / "k.pem"
    assert "hunter2" not in out


def test_run_prints_its_settings_too(kvcs_run):
    code, out, _ = kvcs_run("relay", "run", "--print-config")

    assert code == 0
    assert parse(out, directory=Path("/")) == Settings()


def test_page_has_every_key_as_it_is():
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")

    command = "python -m kvcs.cli.relay._reference docs/reference/configuration.md"
    assert replaced(page) == page, command


def test_only_the_part_between_the_marks_is_replaced():
    assert replaced(f"a\n{BEGIN}\nold\n{END}\nz") == f"a\n{BEGIN}\n\n{reference()}\n{END}\nz"
