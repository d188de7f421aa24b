"""TLS over a socket, used as a socket is.

Records go through memory, many for each call of the system. `ssl.SSLSocket` calls it twice for each record of 16 KB,
and costs whoever receives a third more of a core (170 ms against 130 for 100 MB).
"""

from __future__ import annotations

import socket
import ssl
from time import monotonic
from typing import Any

_PIECE = 1 << 18
"""Bytes for one call of the system."""


class TlsSocket:
    """One end; the handshake is done when this is made. Owner of the socket.

    Args:
        sock: the connected socket. Its time-out is that of every call here.
        context: the context of this end.
        server_side: whether this end was dialled.
        seconds: for the whole handshake.

    Raises:
        OSError: the other end does not speak TLS, is not trusted, does not trust this one, or takes too long.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool, seconds: float) -> None:
        self._socket = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side)
        self._buffer = memoryview(bytearray(_PIECE))
        deadline = monotonic() + seconds
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                sock.settimeout(max(0.1, deadline - monotonic()))
                if monotonic() >= deadline or not self._receive():
                    raise ConnectionError("the connection ended, or time did, before TLS was agreed on") from None
            except ssl.SSLError:
                self._flush()  # so that the other end learns why
                raise
            else:
                self._flush()
                return

    def certificate(self) -> bytes:
        """Return the certificate of the other end, as DER."""
        return self._tls.getpeercert(binary_form=True) or b""

    def recv_into(self, view: memoryview, *_: int) -> int:
        """Read some bytes, as many as are there; returns how many, 0: the connection ended."""
        at = 0
        while at < len(view):
            try:
                count: Any = self._tls.read(len(view) - at, view[at:])  # with a buffer it returns how many
            except ssl.SSLWantReadError:
                if at or not self._receive():
                    break
            else:
                if not count:
                    break
                at += count
        return at

    def send(self, view: memoryview) -> int:
        """Send some of the bytes; returns how many."""
        count = self._tls.write(view[:_PIECE])
        self._flush()
        return count

    def settimeout(self, seconds: float | None) -> None:
        """Set the time-out of each call, until something moves."""
        self._socket.settimeout(seconds)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        """End the connection, which wakes the threads that wait for it."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _receive(self) -> bool:
        """Receive what has come; returns whether the connection goes on."""
        self._flush()
        count = self._socket.recv_into(self._buffer)
        self._in.write(self._buffer[:count])
        return bool(count)

    def _flush(self) -> None:
        if self._out.pending:
            self._socket.sendall(self._out.read())
