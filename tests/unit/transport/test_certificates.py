"""Files of certificates, before the QUIC library takes them."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kvcs.endpoint.certificate import create_dev_certificate
from kvcs.transport.certificates import authorities_fault, pair_fault


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return create_dev_certificate(tmp_path_factory.mktemp("certificate"))


def test_files_that_are_good_have_no_fault(files):
    assert authorities_fault(files.ca_file) is None
    assert pair_fault(files.certificate_file, files.private_key_file) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [(b"", "no certificate in it"), (b"no PEM", "no certificate in it"), (None, "No such file")],
)
def test_authorities_that_are_none_are_told(tmp_path, text, fault):
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_bytes(text)

    assert fault in authorities_fault(path)


def test_key_of_another_certificate_is_told(files, tmp_path):
    other = create_dev_certificate(tmp_path)

    assert "KEY_VALUES_MISMATCH" in pair_fault(files.certificate_file, other.private_key_file)


def test_key_with_a_password_is_told_and_nobody_is_asked_for_it(files, tmp_path):
    key = tmp_path / "key.pem"
    key.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )

    assert pair_fault(files.certificate_file, key) is not None
