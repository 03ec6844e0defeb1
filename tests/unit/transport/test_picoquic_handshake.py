"""What the error of a handshake says, by what the QUIC library tells of its end."""

import asyncio

import pytest

from kvcs.errors import CertificateRefused, ConnectFailed, DraftRefused
from kvcs.transport.interface import ClientTls, TransportConfig
from kvcs.transport.picoquic import factory

UNKNOWN_AUTHORITY, NO_APPLICATION_PROTOCOL, INTERNAL_ERROR = 0x130, 0x178, 0x1


class Client:
    """A connection that ended before its handshake did."""

    def __init__(self, code, *, by_application):
        self.handshake = asyncio.get_running_loop().create_future()
        self.handshake.set_result(code)
        self.closed_by_application = by_application
        self.stopped = False

    def stop(self):
        self.stopped = True


@pytest.mark.parametrize(
    ("code", "by_application", "kind", "reason"),
    [
        # The library gives its own refusal of a certificate no code, and a server that stops
        # closes with none either.
        (0, False, CertificateRefused, "certificate is not valid under"),
        (0, True, ConnectFailed, r"the server closed the connection in the handshake \(0x0\)"),
        (2, True, ConnectFailed, r"the server closed the connection in the handshake \(0x2\)"),
        (NO_APPLICATION_PROTOCOL, False, DraftRefused, "no common application protocol"),
        (UNKNOWN_AUTHORITY, False, ConnectFailed, "unknown certificate authority"),
        (INTERNAL_ERROR, False, ConnectFailed, "internal error"),
    ],
)
async def test_end_of_a_handshake_is_told_by_who_ended_it(
    monkeypatch, code, by_application, kind, reason
):
    client = Client(code, by_application=by_application)
    monkeypatch.setattr(factory, "_start_client", lambda *_: client)

    with pytest.raises(ConnectFailed, match=reason) as raised:
        await factory.PicoquicFactory().connect(
            "127.0.0.1", 9, alpn="test", tls=ClientTls(verify=False), config=TransportConfig()
        )

    assert type(raised.value) is kind
    assert client.stopped
