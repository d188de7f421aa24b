"""The other members as one of them sees them: a socket to each, for averages, which go both ways at once.

gloo's thread and the caller's take turns for each operation; here one thread sends to all others, and receives from
them, as much as the system takes. A member listens on the one address by which the others reach it, while they connect;
they prove by a token, which went through the group, that they are members.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from hopyard.exchange.board import GangBroken
from hopyard.system.network import keep_alive

CONNECT_SECONDS = 30.0
"""Time for the members to connect, once all of them are there."""
HELLO_SECONDS = 1.0
"""Time for who dials to say the token."""
LOOK_SECONDS = 0.2
"""Time between two looks at whether the other members are still there, while they dial."""
SENT_BYTES = 1 << 19
"""Bytes that are sent before what has come is looked at."""
UNSENT_BYTES = 1 << 16
"""Bytes for one peer that the system takes before they are on their way: what is first comes first at all peers."""
_TOKEN = 16
_HELLO = struct.Struct(f"!{_TOKEN}sI")
"""Who dials says: the token of whom it dials, its own rank."""
_Part = tuple[memoryview, Callable[[], None]]
"""Bytes that are still to go or to come, and what is called then."""


class _Address(msgspec.Struct, frozen=True):
    """Where a member listens, and what it wants to hear."""

    host: str
    port: int
    token: bytes


class Peer:
    """Another member, at the end of a connection.

    Args:
        connection: to it.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        keep_alive(connection)
        with suppress(AttributeError, OSError):  # then it is only slower
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        self._connection = connection
        self.sent = 0
        """Bytes that the system has taken."""
        self._outward: deque[_Part] = deque()
        self._inward: deque[_Part] = deque()

    def send(self, data: memoryview, then: Callable[[], None]) -> None:
        """Let bytes follow what is still to be sent; `then` is called when the system has all of them."""
        self._outward.append((data, then)) if data else then()

    def receive(self, into: memoryview, then: Callable[[], None]) -> None:
        """Let bytes come after what is still to come; `then` is called when all of them are there."""
        self._inward.append((into, then)) if into else then()

    @property
    def done(self) -> bool:
        """Whether all has been sent, and has come."""
        return not self._outward and not self._inward

    def waits(self) -> int:
        """Return what this end waits for, as `select.poll` names it; 0: nothing."""
        return (select.POLLOUT if self._outward else 0) | (select.POLLIN if self._inward else 0)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._connection.fileno()

    def go_on(self) -> bool:
        """Send and receive a part, as far as nothing has to be waited for. Returns whether that was anything.

        Raises:
            OSError: the other one is gone.
        """
        return bool(self._receive()) | bool(self._send())

    def _receive(self) -> int:
        if not self._inward:
            return 0
        into, _ = self._inward[0]
        try:
            count = self._connection.recv_into(into)
        except BlockingIOError:
            return 0
        if not count:
            raise ConnectionError("it has hung up")
        _advance(self._inward, count)
        return count

    def _send(self) -> int:
        if not self._outward:
            return 0
        data, _ = self._outward[0]
        try:
            count = self._connection.send(data[:SENT_BYTES])
        except BlockingIOError:
            return 0
        self.sent += count
        _advance(self._outward, count)
        return count

    def gone(self) -> bool:
        """Whether the other one has hung up, and nothing has come from it before."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def hang_up(self) -> None:
        """End the connection, from any thread: processes that the user's code has forked hold it too."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        self.hang_up()
        self._connection.close()


def _advance(parts: deque[_Part], count: int) -> None:
    data, then = parts[0]
    if count < len(data):
        parts[0] = data[count:], then
    else:
        parts.popleft()
        then()


def wait(peers: Iterable[Peer]) -> list[Peer]:
    """Wait until some peers can go on. Returns these."""
    poll, waiting = select.poll(), {}
    for peer in peers:
        if events := peer.waits():
            waiting[peer.fileno()] = peer
            poll.register(peer, events)
    return [waiting[descriptor] for descriptor, _ in poll.poll()]


def connect(
    rank: int, size: int, host: str, gather: Callable[[bytes], list[bytes]], given_up: Callable[[], bool]
) -> dict[int, Peer]:
    """Connect this member with all others.

    Args:
        rank, size: which member this is, of how many.
        host: the address of this host by which the others reach it.
        gather: returns the data of all members, by rank.
        given_up: whether nobody waits for it any longer.

    Returns:
        Rank → peer.

    Raises:
        GangBroken: they could not be connected.
    """
    own = _Address(host, 0, secrets.token_bytes(_TOKEN))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    peers: dict[int, Peer] = {}
    try:
        with socket.create_server((host, 0), family=family, backlog=size) as listener:
            own = msgspec.structs.replace(own, port=listener.getsockname()[1])
            addresses = [msgspec.msgpack.decode(each, type=_Address) for each in gather(msgspec.msgpack.encode(own))]
            for other, address in enumerate(addresses[:rank]):
                connection = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
                peers[other] = Peer(connection)
                connection.sendall(_HELLO.pack(address.token, rank))  # a new connection takes so few bytes at once
            end = time.monotonic() + CONNECT_SECONDS
            while len(peers) < size - 1:
                if given_up():
                    raise ConnectionError("the unit was given up")
                if gone := [other for other, peer in peers.items() if peer.gone()]:
                    raise ConnectionError(f"members {gone} have hung up")
                if time.monotonic() > end:
                    missing = sorted({*range(size)} - {*peers, rank})
                    raise TimeoutError(f"members {missing} did not dial within {CONNECT_SECONDS:.0f} seconds")
                if (dialed := _accept(listener, own.token)) is not None:
                    peers[dialed[0]] = Peer(dialed[1])
    except OSError as error:
        for peer in peers.values():
            peer.close()
        raise GangBroken(f"the members of the gang could not be connected: {error}") from None
    return peers


def _accept(listener: socket.socket, token: bytes) -> tuple[int, socket.socket] | None:
    """Return the rank of who dials, and the connection; None: nobody does just now, or it does not know the token."""
    listener.settimeout(LOOK_SECONDS)
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        return None
    hello, end = b"", time.monotonic() + HELLO_SECONDS
    with suppress(OSError):
        while len(hello) < _HELLO.size and (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (more := connection.recv(_HELLO.size - len(hello))):
                break
            hello += more
    if len(hello) == _HELLO.size:
        said, rank = _HELLO.unpack(hello)
        if hmac.compare_digest(said, token):
            return rank, connection
    connection.close()
    return None
