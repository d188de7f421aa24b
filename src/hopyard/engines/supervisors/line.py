"""One end of the connection between the driver and a supervisor: a socket, in TLS 1.3 where both have a certificate.

It is used with a selector: `receive` returns the bytes that have arrived, `send` is for short messages. Both ends show
the one certificate: so the dialling end knows the driver, and the driver knows that the other end has a ticket.
"""

from __future__ import annotations

import socket
import ssl

from hopyard.certificate import prove_same, tls
from hopyard.system.network import keep_alive

BLOCK = 1 << 16
"""Bytes that are received at once."""
_SILENT = 20
"""Seconds after which a connection to a host that vanished counts as cut."""


class Security:
    """What TLS needs of one end, made once.

    Args:
        certificate: what `make_certificate` returned.
        server: whether it is for the end that is dialled.
    """

    def __init__(self, certificate: str, *, server: bool) -> None:
        self.certificate, self.server = certificate, server
        self.context = tls(certificate, server=server)


class Line:
    """Owner of the socket.

    Args:
        connection: a connected socket, blocking or not.
        security: None: in clear.

    Raises:
        OSError: the connection is gone.
    """

    def __init__(self, connection: socket.socket, security: Security | None = None) -> None:
        self._security = security
        self.agreed = security is None
        """Whether both ends have shown what they must; before that nothing can be sent."""
        self.socket = connection
        if security is not None:
            self.socket = security.context.wrap_socket(
                connection, server_side=security.server, do_handshake_on_connect=False
            )

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self.socket.fileno()

    def agree(self, seconds: float) -> None:
        """Be the end that dials: agree on TLS within so many seconds.

        Raises:
            OSError: the other end has not this certificate, or takes too long.
        """
        self.socket.settimeout(seconds)
        self._handshake()
        self.socket.settimeout(None)

    def receive(self) -> bytes | None:
        """Return what has come; empty: the connection ended; None: nothing that is whole.

        Raises:
            BlockingIOError: nothing has come.
            OSError: the connection broke, or the other end has not this certificate.
        """
        try:
            if self.agreed:
                return self.socket.recv(BLOCK)
            self._handshake()
        except ssl.SSLWantReadError:
            pass
        return None

    def send(self, data: bytes) -> None:
        """Send all of this. Raises OSError when it cannot be sent at once, or the connection is gone."""
        self.socket.sendall(data)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def _handshake(self) -> None:
        assert isinstance(self.socket, ssl.SSLSocket) and self._security is not None
        self.socket.do_handshake()
        prove_same(self.socket.getpeercert(binary_form=True) or b"", self._security.certificate)
        self.agreed = True


def lasting(connection: socket.socket) -> None:
    """Let the kernel notice when the host of the other end has vanished."""
    connection.settimeout(None)
    keep_alive(connection)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT * 1000)
