"""The names and addresses of this machine, for a certificate that clients elsewhere check."""

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cryptography import x509

from kvcs.transport.interface import is_loopback

__all__ = ("own_addresses", "public_name")

# Linux: SIOCGIFADDR takes a struct ifreq, a name of 16 octets and then a sockaddr_in.
_SIOCGIFADDR: Final = 0x8915
_IFREQ: Final = struct.Struct("16s24x")
_IPV6: Final = Path("/proc/net/if_inet6")
# Listening on these is listening on all interfaces; nobody can connect to them.
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104


def own_addresses() -> tuple[str, ...]:
    """Return the host name and the addresses of all interfaces, as far as they can be had."""
    found = {socket.gethostname(), *_ipv4(), *_ipv6()}
    return tuple(sorted(found))


def public_name(host: str, certificate: Path) -> str:
    """Return where clients connect: `host`, or for a wildcard a name of the certificate.

    A host name comes before an address, and what leads to other machines before what does not.

    Args:
        host: Address that is listened on.
        certificate: PEM file with the chain that clients see.
    """
    if host not in _WILDCARDS:
        return host
    named = _names(certificate)
    own = own_addresses()
    hosts = [name for name in named if not _is_ip(name) and "*" not in name]
    addresses = [name for name in named if _is_ip(name) and name in own]
    # A development certificate has the name of this machine too, which others may not know.
    best = [name for name in hosts if name not in own and name != "localhost"]
    best += sorted((a for a in addresses if not is_loopback(a)), key=lambda a: ":" in a)
    return next(iter([*best, *hosts, *addresses]), socket.gethostname())


def _names(certificate: Path) -> list[str]:
    """Return the names and addresses that a certificate is for; none if it says nothing."""
    try:
        leaf = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _ipv4() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            # An interface without an address has none to tell.
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, _IFREQ.pack(name.encode()))
                yield socket.inet_ntoa(answer[20:24])


def _ipv6() -> Iterator[str]:
    # Each line: address in hex, index, prefix length, scope, flags, name.
    with contextlib.suppress(OSError):
        for line in _IPV6.read_text().splitlines():
            address = ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))
            if not address.is_link_local:
                yield str(address)
