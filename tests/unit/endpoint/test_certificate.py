import datetime as dt
import ipaddress
import ssl

import pytest
from cryptography import x509

from kvcs.endpoint import certificate
from kvcs.endpoint.certificate import create_dev_certificate


def _names(files):
    shown = x509.load_pem_x509_certificate(files.certificate_file.read_bytes())
    found = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(found.get_values_for_type(x509.DNSName)), set(
        found.get_values_for_type(x509.IPAddress)
    )


def test_certificate_covers_this_machine_and_the_names_asked_for(tmp_path):
    files = create_dev_certificate(tmp_path / "new" / "dir", ["relay.test", "10.0.0.7"])

    assert _names(files) == (
        {"localhost", "relay.test"},
        {ipaddress.ip_address(text) for text in ("127.0.0.1", "::1", "10.0.0.7")},
    )


def test_certificate_is_signed_by_the_authority_and_fits_its_key(tmp_path):
    files = create_dev_certificate(tmp_path)

    authority = x509.load_pem_x509_certificate(files.ca_file.read_bytes())
    shown = x509.load_pem_x509_certificate(files.certificate_file.read_bytes())
    shown.verify_directly_issued_by(authority)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
        files.tls.certificate_file, files.tls.private_key_file
    )


def test_key_is_readable_by_its_owner_only(tmp_path):
    files = create_dev_certificate(tmp_path / "dir")

    assert files.private_key_file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "dir").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in (tmp_path / "dir").iterdir()) == [
        "ca.pem",
        "cert.pem",
        "key.pem",
    ]


def test_files_that_serve_are_kept(tmp_path):
    first = create_dev_certificate(tmp_path, ["relay.test"]).ca_file.read_bytes()
    again = create_dev_certificate(tmp_path).ca_file.read_bytes()

    assert again == first


@pytest.mark.parametrize("damage", ["missing", "garbage", "foreign", "names", "expired"])
def test_files_that_do_not_serve_are_replaced(tmp_path, monkeypatch, damage):
    files = create_dev_certificate(tmp_path)
    before = files.certificate_file.read_bytes()
    names = []
    match damage:
        case "missing":
            files.private_key_file.unlink()
        case "garbage":
            files.ca_file.write_text("not a certificate")
        case "foreign":
            other = create_dev_certificate(tmp_path / "other")
            files.private_key_file.write_bytes(other.private_key_file.read_bytes())
        case "names":
            names = ["another.test"]
        case _:
            later = dt.datetime.now(dt.UTC) + dt.timedelta(days=85)
            monkeypatch.setattr(certificate, "_now", lambda: later)

    create_dev_certificate(tmp_path, names)

    assert files.certificate_file.read_bytes() != before
