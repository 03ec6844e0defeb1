"""A certificate for development: a throw-away authority and a server certificate it signed.

Made only on request, never by default. The authority's key is not kept, so nobody can sign
anything else with it: a client that trusts ``ca.pem`` trusts exactly one server key.
"""

import contextlib
import datetime as dt
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kvcs.transport.interface import ServerTls

__all__ = ("DevCertificate", "create_dev_certificate")

_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_VALIDITY: Final = dt.timedelta(days=90)
_CLOCK_SKEW: Final = dt.timedelta(hours=1)
_RENEW_BEFORE: Final = dt.timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class DevCertificate:
    """The files of a development certificate.

    Attributes:
        ca_file: What clients trust.
        certificate_file: What the server shows.
        private_key_file: Its key, readable by its owner only.
    """

    ca_file: Path
    certificate_file: Path
    private_key_file: Path

    @property
    def tls(self) -> ServerTls:
        """The server's settings."""
        return ServerTls(
            certificate_file=str(self.certificate_file),
            private_key_file=str(self.private_key_file),
        )


def create_dev_certificate(directory: Path, names: Iterable[str] = ()) -> DevCertificate:
    """Write ``ca.pem``, ``cert.pem`` and ``key.pem``, or keep those that still serve.

    Args:
        directory: Made if it does not exist.
        names: Host names and addresses besides localhost, 127.0.0.1 and ::1.

    Raises:
        OSError: A file cannot be written.
    """
    files = DevCertificate(
        ca_file=directory / "ca.pem",
        certificate_file=directory / "cert.pem",
        private_key_file=directory / "key.pem",
    )
    wanted = tuple(dict.fromkeys((*_LOCAL_NAMES, *names)))
    if not _serves(files, wanted):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create(files, wanted)
    return files


def _serves(files: DevCertificate, names: tuple[str, ...]) -> bool:
    """Tell whether the files are there, belong together, cover the names and last a while."""
    with contextlib.suppress(OSError, ValueError, x509.ExtensionNotFound):
        ca = x509.load_pem_x509_certificate(files.ca_file.read_bytes())
        certificate = x509.load_pem_x509_certificate(files.certificate_file.read_bytes())
        key = serialization.load_pem_private_key(files.private_key_file.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            return False
        certificate.verify_directly_issued_by(ca)
        covered = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        lasts = certificate.not_valid_after_utc - _RENEW_BEFORE > _now()
        same_key = key.public_key() == certificate.public_key()
        return lasts and same_key and {_general_name(name) for name in names} <= set(covered)
    return False


def _create(files: DevCertificate, names: tuple[str, ...]) -> None:
    ca_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("kvcs development CA")
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    certificate = (
        _builder(_name("kvcs development server"), ca_name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(map(_general_name, names)), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    private_bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(files.private_key_file, private_bytes, mode=0o600)
    _write(files.certificate_file, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
    _write(files.ca_file, ca.public_bytes(serialization.Encoding.PEM), mode=0o644)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _CLOCK_SKEW)
        .not_valid_after(_now() + _VALIDITY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _write(path: Path, data: bytes, *, mode: int) -> None:
    """Write beside and rename, so that nobody reads half a file."""
    beside = path.with_suffix(".new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    beside.replace(path)
