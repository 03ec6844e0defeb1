"""What certificate files lack, in words for people.

The QUIC library takes files that are of no use, and then fails every handshake; so they are looked
at before, by whoever names them.
"""

import ssl
from pathlib import Path

__all__ = ("authorities_fault", "pair_fault")


def authorities_fault(ca_file: str | Path) -> str | None:
    """Return why a file has no certificates to trust; None if it has some."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca_file)
    except ssl.SSLError:
        return "no certificate in it"
    except OSError as error:
        return error.strerror or str(error)
    return None


def pair_fault(certificate_file: str | Path, private_key_file: str | Path) -> str | None:
    """Return why two files are no certificate and its key; None if they are."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password, or the key of a file that has one is asked for on the terminal.
        context.load_cert_chain(certificate_file, private_key_file, password="")
    except OSError as error:
        return getattr(error, "reason", None) or error.strerror or str(error)
    return None
