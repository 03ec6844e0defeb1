"""The names and addresses of this machine, for a certificate that clients elsewhere check."""

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ("own_addresses",)

# Linux: SIOCGIFADDR takes a struct ifreq, a name of 16 octets and then a sockaddr_in.
_SIOCGIFADDR: Final = 0x8915
_IFREQ: Final = struct.Struct("16s24x")
_IPV6: Final = Path("/proc/net/if_inet6")


def own_addresses() -> tuple[str, ...]:
    """Return the host name and the addresses of all interfaces, as far as they can be had."""
    found = {socket.gethostname(), *_ipv4(), *_ipv6()}
    return tuple(sorted(found))


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
