"""Bytes by network, for processes that share neither memory nor disk: States from peer to peer, and to the driver's
store.

A request is one small frame; where it brings bytes, the server says when they may come, so that they wait for a slow
disk in the client's memory and not in the server's. While the request waits or is worked on, the server sends a pulse
now and then, so the client need not guess how long a disk may take: a server that sends no pulse is not there. A
request says how long it may wait for its turn, and is dropped after that, or when its client hung up. The connection
for messages (`driver.router`) carries nothing large, so that no answer waits behind a State.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from hopyard.errors import ResourceError
from hopyard.spec import Ref
from hopyard.store.bulk.connection import ASK, GO, REPLY, Connection, Credentials, dial
from hopyard.store.guard import StateConflict
from hopyard.store.room import Room

TURN_SECONDS = 3600.0
"""How long a request waits for its turn, unless it says otherwise. Pulses make a shorter time needless."""
IDLE = 32
"""Connections that a client keeps for its next request."""


class Ask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request: what is to be done, and with which State."""

    what: str
    ref: Ref | None = None
    where: str = ""
    size: int = -1
    """Bytes that come with it; −1: none do."""
    seconds: float = TURN_SECONDS
    """How long it may wait for its turn."""


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Its answer. `fault`: "", "missing", "room", "conflict", or "other"."""

    fault: str = ""
    text: str = ""
    size: int = 0
    """Bytes that follow."""


encode = msgspec.msgpack.Encoder().encode
_reply = msgspec.msgpack.Decoder(Reply)


def always() -> bool:
    """Return True, as `intact` of bytes that nobody writes to."""
    return True


class Client:
    """Asks servers. Keeps connections for the next request; several threads may ask at once, each by one of its own.

    Args:
        credentials: the credentials of the run.
        moved: called with the bytes of each piece that went or came; with 0 when the server says that it is at work.
    """

    def __init__(self, credentials: Credentials, moved: Callable[[int], None] | None = None) -> None:
        self._credentials = credentials
        self._moved = moved
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Connection]] = []
        """(address, connection); the one that was used last is last."""
        self._busy: set[Connection] = set()
        self._open = True
        self._room = Room()

    def ask(self, address: str, ask: Ask, data: memoryview | bytes | None = None) -> memoryview:
        """Send a request, and return the bytes of the answer.

        Raises:
            FileNotFoundError: the server has no such thing.
            ResourceError: it has no room for it.
            StateConflict: it has another State under that address.
            ConnectionError: it is not there, does not answer, answered with another error, or with bytes that were
                damaged on the way. The same may work the next time.
        """
        try:
            connection = self._acquire(address)
        except (OSError, ValueError) as error:
            raise ConnectionError(f"{address} does not answer: {error}") from error
        complete = False
        try:
            try:
                reply, body = _exchange(connection, ask, data)
                complete = True
            except FileNotFoundError as error:
                complete = True
                raise FileNotFoundError(f"State {ask.ref} at {address}: {error}") from None
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                raise ConnectionError(f"{address} does not answer: State {ask.ref}: {error}") from error
        finally:
            self._release(address, connection, complete)
        if reply.fault == "missing":
            raise FileNotFoundError(reply.text)
        if reply.fault == "room":
            raise ResourceError(reply.text)
        if reply.fault == "conflict":
            raise StateConflict(reply.text)
        if reply.fault:
            raise ConnectionError(f"{address}: {reply.text}")
        return body

    def close(self) -> None:
        """Hang up; requests that are under way get a ConnectionError."""
        with self._lock:
            self._open = False
            idle, self._idle = self._idle, []
            for connection in self._busy:
                connection.shut()
        for _, connection in idle:
            connection.close()

    def _acquire(self, address: str) -> Connection:
        """Return an idle connection that is still open, else a new one."""
        while True:
            with self._lock:
                idle = next((pair for pair in reversed(self._idle) if pair[0] == address), None)
                if idle is not None:
                    self._idle.remove(idle)
            connection = dial(address, self._credentials) if idle is None else idle[1]
            if idle is not None and connection.gone():
                connection.close()
                continue
            with self._lock:
                self._busy.add(connection)
                if not self._open:
                    connection.shut()
            connection.room = self._room
            if self._moved is not None:
                connection.moved = self._moved
            return connection

    def _release(self, address: str, connection: Connection, complete: bool) -> None:
        """Keep a connection for the next request, or close it: none can follow an answer that was not complete."""
        surplus: Connection | None = connection
        with self._lock:
            self._busy.discard(connection)
            if complete and self._open:
                self._idle.append((address, connection))
                surplus = self._idle.pop(0)[1] if len(self._idle) > IDLE else None
        if surplus is not None:
            surplus.close()


def _exchange(connection: Connection, ask: Ask, data: memoryview | bytes | None) -> tuple[Reply, memoryview]:
    view = None if data is None else memoryview(data).cast("B")
    if view is not None:
        ask = msgspec.structs.replace(ask, size=len(view))
    connection.send(ASK, encode(ask))
    kind, body = connection.receive(GO, REPLY)
    if kind == GO:
        if view is None:
            raise ConnectionError("bytes were asked for that this request does not have")
        connection.send_body(view, always)
        kind, body = connection.receive(REPLY)
    reply = _reply.decode(body)
    return reply, connection.receive_body(reply.size) if reply.size else memoryview(b"")
