"""A connection for bytes between two processes of one run: the proof that both belong to it, and frames.

First comes TLS 1.3 with the run's certificate, where the address says "tls://". Then each end shows that it knows the
run's token, which itself never travels: 96 bytes in all, so that no length from an unauthenticated peer is believed.
Then frames go both ways, a head of 5 bytes (kind, length) and at most `CHUNK` bytes. A body is many frames and its
seal. Transfers of any length go on while bytes move: every time-out is for one step without progress, never for the
whole.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from hopyard.certificate import prove_same, tls
from hopyard.store.room import room
from hopyard.system.network import keep_alive, parted, read, read_into

ASK, GO, WAIT, DATA, END, REPLY = b"A", b"G", b"W", b"D", b"E", b"R"
"""Kinds of frames: a request; send its bytes; it waits for its turn or is worked on; a chunk of bytes; the seal of the
chunks; the answer."""

CHUNK = 4 << 20
"""Bytes of the largest frame. (A thread that computes takes the interpreter back for up to 5 ms after each call.)"""
STALL_SECONDS = 60.0
"""An end that receives and sends no byte for so long counts as gone."""
DIAL_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0
"""How long an unauthenticated connection may take in all to show that it belongs to the run."""

_HEAD = struct.Struct("<cI")
_PIECE = 1 << 20
"""Bytes of one call to send, which must go within one time-out."""
_NONCE = 16
_SEAL_NONCE = 12
_UNDER_TLS = b"whole"
_MAC = 32
_POLL_GONE = select.POLLIN | select.POLLHUP | select.POLLERR


class Credentials:
    """What every process of a run has, and nobody else.

    Args:
        token: the token of the run.
        certificate: what `make_certificate` returned; empty: nothing goes by TLS.
    """

    def __init__(self, token: str, certificate: str = "") -> None:
        self.token = token.encode()
        self.certificate = certificate

    @functools.cached_property
    def for_client(self) -> ssl.SSLContext:
        """The context of the end that dials."""
        return tls(self.certificate, server=False)

    def handshake(self, sock: socket.socket) -> None:
        """Agree on TLS, where the socket is one of TLS, within its time-out. Raises OSError."""
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
            prove_same(sock.getpeercert(binary_form=True) or b"", self.certificate)

    def mac(self, side: bytes, *nonces: bytes) -> bytes:
        """Return the proof that this side knows the token."""
        return hmac.digest(self.token, b"hopyard bulk 1 " + side + b"".join(nonces), "sha256")

    def seals(self, side: bytes, *nonces: bytes) -> Seals:
        """Return the seals of what this side sends over a connection in clear."""
        return Seals(self.mac(b"seals of the " + side, *nonces))


class Seals:
    """The seals of all bodies that go one way over a connection; both ends make them in the same order.

    A seal shows damage, and whether somebody without the run's token changed bytes. Over TLS, whose records have codes
    of their own, it is constant. In clear it is GMAC: 100 MB take 14 ms, where BLAKE3 takes 29.

    Source: NIST SP 800-38D, §6.4 and §8.2.1: AES-256 in Galois/counter mode with all bytes as additional data and none
    encrypted; the nonce of 96 bits is the number of the body.

    Args:
        key: 32 bytes, of one connection and one direction; empty: the connection is in TLS.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self._count = 0
        self._gmac: Any = None

    def begin(self) -> None:
        """Begin with the next body."""
        if self._key:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # 30 ms, and not always needed

            self._count += 1
            nonce = self._count.to_bytes(_SEAL_NONCE, "big")
            self._gmac = Cipher(algorithms.AES(self._key), modes.GCM(nonce)).encryptor()

    def update(self, part: memoryview) -> None:
        """Take the next bytes of the body."""
        if self._key:
            self._gmac.authenticate_additional_data(part)

    def end(self) -> bytes:
        """Return the seal of all bytes of the body."""
        if not self._key:
            return _UNDER_TLS
        self._gmac.finalize()
        return bytes(self._gmac.tag)


def dial(address: str, credentials: Credentials) -> Connection:
    """Connect to "tls://host:port" or "tcp://host:port", and show each other that both belong to the run.

    Raises:
        OSError: nobody answers there, or somebody who does not belong to the run.
    """
    sock = socket.create_connection(parted(address), DIAL_SECONDS)
    try:
        keep_alive(sock)
        if address.startswith("tls://"):
            sock = credentials.for_client.wrap_socket(sock, do_handshake_on_connect=False)
        sock.settimeout(STALL_SECONDS)  # the other process may be busy with an import that lets no other thread run
        credentials.handshake(sock)
        theirs, mine = read(sock, _NONCE), os.urandom(_NONCE)
        _send(sock, mine + credentials.mac(b"client", theirs, mine))
        if not hmac.compare_digest(read(sock, _MAC), credentials.mac(b"server", mine, theirs)):
            raise ConnectionError("who answers there does not know the token of this run")
    except BaseException:
        sock.close()
        raise
    if isinstance(sock, ssl.SSLSocket):
        return Connection(sock)
    return Connection(sock, *[credentials.seals(side, theirs, mine) for side in (b"client", b"server")])


def admit(sock: socket.socket, credentials: Credentials) -> Connection:
    """Be the other end of `dial`, within `HANDSHAKE_SECONDS`. Owns `sock`, plain or of TLS, from now on.

    Raises:
        OSError: who dialled does not belong to the run, or took too long to show it.
    """
    deadline = monotonic() + HANDSHAKE_SECONDS
    try:
        sock.settimeout(HANDSHAKE_SECONDS)
        keep_alive(sock)
        credentials.handshake(sock)
        mine = os.urandom(_NONCE)
        _send(sock, mine)
        answer = read(sock, _NONCE + _MAC, deadline)
        theirs, mac = answer[:_NONCE], answer[_NONCE:]
        if not hmac.compare_digest(mac, credentials.mac(b"client", mine, theirs)):
            raise ConnectionError("who dialled does not know the token of this run")
        _send(sock, credentials.mac(b"server", theirs, mine))
    except BaseException:
        sock.close()
        raise
    if isinstance(sock, ssl.SSLSocket):
        return Connection(sock)
    return Connection(sock, *[credentials.seals(side, mine, theirs) for side in (b"server", b"client")])


class Connection:
    """One admitted end. One thread at a time uses it; `pulse`, `gone` and `shut` may be called from any.

    Args:
        sock: the connected socket.
        sent: seals of the bodies that it sends.
        received: seals of those that the other end sends.
    """

    def __init__(self, sock: socket.socket, sent: Seals | None = None, received: Seals | None = None) -> None:
        sock.settimeout(STALL_SECONDS)
        self._socket = sock
        self._sent, self._received = sent or Seals(), received or Seals()
        self._lock = threading.Lock()
        self._working = False
        self.moved: Callable[[int], None] = lambda count: None
        """Called with the bytes of each piece that went or came; 0: a pulse of the other end, which is at work."""
        self.room: Callable[[int], memoryview] = room
        """Gives memory for a body that comes."""

    def wait(self) -> None:
        """Wait until something comes, however long that takes."""
        self._poll(_POLL_GONE, None)

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Send one frame."""
        _send(self._socket, _HEAD.pack(kind, len(body)) + body)

    def receive(self, *kinds: bytes) -> tuple[bytes, bytes]:
        """Return the next frame, of one of these kinds; a `WAIT` before it only shows that the other end is at work.

        Raises:
            ConnectionError: the connection ended, or something else came.
            TimeoutError: nothing came for `STALL_SECONDS`.
        """
        while True:
            kind, size = self._head()
            if kind in kinds:
                return kind, read(self._socket, size)
            if kind != WAIT or size:
                raise ConnectionError(f"a frame {kind!r} of {size} bytes came in place of {b' or '.join(kinds)!r}")
            self.moved(0)

    def send_body(self, data: memoryview, intact: Callable[[], bool]) -> None:
        """Send chunks and their seal. `data` may change meanwhile, as memory that is used again: after the last chunk
        `intact` tells whether it did, and the other end learns it from an empty seal."""
        self._sent.begin()
        for at in range(0, len(data), CHUNK):
            part = data[at : at + CHUNK]
            _send(self._socket, _HEAD.pack(DATA, len(part)))
            for start in range(0, len(part), _PIECE):
                piece = part[start : start + _PIECE]
                self._sent.update(piece)
                _send(self._socket, piece)
                self.moved(len(piece))
        self.send(END, self._sent.end() if intact() else b"")

    def receive_body(self, size: int) -> memoryview:
        """Receive `size` bytes, and compare them with their seal.

        Raises:
            FileNotFoundError: they changed while they were sent.
            ConnectionError: the connection ended, or the bytes are not those that were sent.
        """
        view, at = self.room(size), 0
        self._received.begin()
        while at < size:
            kind, count = self._head()
            if kind != DATA or not 0 < count <= size - at:
                raise ConnectionError(f"a frame {kind!r} of {count} bytes came at byte {at} of {size}")
            part = view[at : at + count]
            for start in range(0, count, _PIECE):
                piece = part[start : start + _PIECE]
                read_into(self._socket, piece)
                self._received.update(piece)  # while the processor's cache has it
            at += count
            self.moved(count)
        _, theirs = self.receive(END)
        if not theirs:
            raise FileNotFoundError("its memory was used again")
        if not hmac.compare_digest(theirs, self._received.end()):
            raise ConnectionError(f"{size} bytes were damaged on their way")
        return view

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Let `pulse` send in the block, while this end works and sends nothing itself."""
        with self._lock:
            self._working = True
        try:
            yield
        finally:
            with self._lock:
                self._working = False

    def pulse(self) -> None:
        """Tell the other end that this one is at work, where it waits for that."""
        with self._lock, contextlib.suppress(OSError):
            if self._working and self._poll(select.POLLOUT, 0):
                _send(self._socket, _HEAD.pack(WAIT, 0))

    def gone(self) -> bool:
        """Whether the other end hung up; to be called only while it has nothing to send."""
        return self._poll(_POLL_GONE, 0)

    def shut(self) -> None:
        """Wake the thread that uses it with an error."""
        shut(self._socket)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _poll(self, events: int, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, events)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def _head(self) -> tuple[bytes, int]:
        kind, size = _HEAD.unpack(read(self._socket, _HEAD.size))
        if size > CHUNK:
            raise ConnectionError(f"a frame of {size} bytes was announced; at most {CHUNK} are allowed")
        return kind, size


def shut(sock: socket.socket) -> None:
    """End a connection that another thread uses. (`SSLSocket.shutdown` would let that thread send in clear first.)"""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _send(sock: socket.socket, data: bytes | memoryview) -> None:
    view, at = memoryview(data), 0
    while at < len(view):  # not sendall, whose time-out is for all of it
        at += sock.send(view[at : at + _PIECE])
