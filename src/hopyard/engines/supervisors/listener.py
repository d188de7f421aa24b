"""The port that supervisors dial: it lets in whoever shows the token of the ticket, and bounds all other connections.

Where the ticket has a certificate, the token comes in TLS that only holders of the certificate can agree on.
"""

from __future__ import annotations

import hmac
import logging
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hopyard.core.facts import UNREADABLE
from hopyard.engines.supervisors.line import Line, Security, lasting
from hopyard.engines.supervisors.messages import Lines, SupervisorHello, hello_of
from hopyard.errors import ResourceError
from hopyard.system.network import TAKEN, listen

log = logging.getLogger(__name__)

HELLO_BYTES = 1 << 16
"""Bytes that an unauthenticated connection may send."""
HELLO_SECONDS = 10.0
STRANGERS = 512
"""Unauthenticated connections, at least, that there may be at once. One more ends the oldest."""
LOOK_SECONDS = 1.0
"""Time between two looks at unauthenticated connections."""
PAUSE_SECONDS = 0.1
"""How long nobody is let in when no more files may be open."""
WARN_SECONDS = 60.0
"""The least time between two warnings about refused connections."""


@dataclass(slots=True, eq=False)
class Stranger:
    """A connection that has not shown the token."""

    line: Line
    since: float
    lines: Lines = field(default_factory=Lines)


class Listener:
    """Owner of the port, and of connections until they are let in. One thread uses it, that of the selector.

    Args:
        host: the address that supervisors dial; see `network.address_to_bind`.
        port: 0: any that is free.
        token: lets supervisors in.
        certificate: of the ticket; empty: connections are in clear.
        selector: calls what is registered with it.
        admit: takes the connection of a supervisor that was let in, what it said, and what it has said since. The
            connection is not registered with the selector any more.
        expected: how many supervisors there may be, which may all come at once.

    Raises:
        ResourceError: the port is taken.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        certificate: str,
        selector: selectors.BaseSelector,
        admit: Callable[[Line, SupervisorHello, list[bytes], Lines], None],
        expected: int,
    ) -> None:
        self._most = max(STRANGERS, expected)
        self._token, self._select, self._admit = token, selector, admit
        self._security = Security(certificate, server=True) if certificate else None
        self._strangers: list[Stranger] = []
        """The oldest first."""
        self._listens = True
        """Whether connections are accepted now: not while no more files may be open."""
        self._refused_count = 0
        self._warned = -WARN_SECONDS
        self.next_look = time.monotonic() + LOOK_SECONDS
        try:
            self._socket = listen(host, port)
        except OSError as error:
            raise ResourceError(f"port {port} on {host}: {error}; {TAKEN}") from error
        self.port = int(self._socket.getsockname()[1])
        self._socket.setblocking(False)
        self._select.register(self._socket, selectors.EVENT_READ, self._accept)

    def look(self, now: float) -> None:
        """Drop connections that have not shown the token in time, and listen again after a pause."""
        self.next_look = now + LOOK_SECONDS
        for stranger in list(self._strangers):
            if now - stranger.since > HELLO_SECONDS:
                self._drop(stranger)
        if not self._listens:
            self._listens = True
            self._select.register(self._socket, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Let nobody in any more."""
        for stranger in list(self._strangers):
            self._drop(stranger)
        self._socket.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:  # it is gone
            return
        except OSError as error:  # no more files may be open; the kernel keeps the connection until there are
            log.warning("a supervisor cannot be let in: %s", error)
            self._select.unregister(self._socket)
            self._listens, self.next_look = False, time.monotonic() + PAUSE_SECONDS
            return
        try:
            connection.getpeername()  # raises for one that was reset, of which `wrap_socket` would leave a socket open
            lasting(connection)
            connection.setblocking(False)
            stranger = Stranger(Line(connection, self._security), time.monotonic())
        except OSError:  # it is gone; macOS then allows no options any more
            connection.close()
            return
        if len(self._strangers) >= self._most:
            self._drop(self._strangers[0])
        self._strangers.append(stranger)
        self._select.register(stranger.line, selectors.EVENT_READ, lambda: self._receive(stranger))

    def _receive(self, stranger: Stranger) -> None:
        try:
            data = stranger.line.receive()
        except BlockingIOError:
            return
        except OSError:  # it broke, or shows another certificate
            data = b""
        if data is None:
            return
        if not data:
            if not stranger.line.agreed:
                self._refuse(stranger)
            self._drop(stranger)
            return
        texts = list(stranger.lines.add(data))
        if not texts:
            if len(stranger.lines) > HELLO_BYTES:
                self._drop(stranger)
            return
        try:
            hello = hello_of(texts[0])
            token = hello.token.encode()
        except (*UNREADABLE, UnicodeEncodeError):
            self._drop(stranger)
            return
        if not hmac.compare_digest(token, self._token.encode()):
            self._refuse(stranger)
            return
        self._strangers.remove(stranger)
        self._select.unregister(stranger.line)
        self._admit(stranger.line, hello, texts[1:], stranger.lines)

    def _refuse(self, stranger: Stranger) -> None:
        self._drop(stranger)
        self._refused_count += 1
        if (now := time.monotonic()) - self._warned >= WARN_SECONDS:
            self._warned = now
            log.warning(
                "a connection to the port of supervisors did not show the token; it was refused (%d so far)",
                self._refused_count,
            )

    def _drop(self, stranger: Stranger) -> None:
        if stranger in self._strangers:
            self._strangers.remove(stranger)
            self._select.unregister(stranger.line)
            stranger.line.close()
