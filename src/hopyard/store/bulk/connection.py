"""A connection for bytes between two processes of one run: who may be there, and frames.

First comes TLS 1.3 with the run's certificate, where the address says "tls://". Then each end shows that it knows the
run's token, which itself never travels: 96 bytes in all, so that no length which a stranger tells is believed. Then
frames go both ways, a head of 5 bytes (kind, length) and at most `CHUNK` bytes. What takes longer goes on for as long
as bytes move: every time-out is for one step without progress, never for the whole.
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

from blake3 import blake3

from hopyard.store.bulk.certificate import prove_same, tls
from hopyard.store.bulk.tls import TlsLine
from hopyard.store.room import room
from hopyard.system.network import keep_alive, parted

ASK, GO, WAIT, DATA, END, REPLY = b"A", b"G", b"W", b"D", b"E", b"R"
"""Kinds of frames: a request; send its bytes; it waits for its turn or is worked at; a chunk of bytes; the seal of the
chunks, a digest where TLS has none; the answer."""

CHUNK = 4 << 20
"""Bytes of the largest frame. (A thread that computes takes the interpreter back for up to 5 ms after each call.)"""
STALL_SECONDS = 60.0
"""An end that takes or gives no byte for so long is not there."""
DIAL_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0
"""For a stranger to show that it belongs to the run, all in all."""

_HEAD = struct.Struct("<cI")
_PIECE = 1 << 20
"""Bytes of one call to send: what must go within one time-out."""
_NONCE = 16
Line = socket.socket | TlsLine
_MAC = 32
_POLL_GONE = select.POLLIN | select.POLLHUP | select.POLLERR


class Credentials:
    """What every process of a run has, and nobody else.

    Args:
        token: of the run.
        certificate: of `make_certificate`; empty: nothing goes by TLS.
    """

    def __init__(self, token: str, certificate: str = "") -> None:
        self.token = token.encode()
        self.certificate = certificate

    @functools.cached_property
    def for_server(self) -> ssl.SSLContext:
        """Of the end that is dialled."""
        return tls(self.certificate, server=True)

    @functools.cached_property
    def for_client(self) -> ssl.SSLContext:
        """Of the end that dials."""
        return tls(self.certificate, server=False)

    def mac(self, what: bytes, *nonces: bytes) -> bytes:
        """Proof that one knows the token."""
        return hmac.digest(self.token, b"hopyard bulk 1 " + what + b"".join(nonces), "sha256")


def dial(address: str, credentials: Credentials) -> Connection:
    """Connect to "tls://host:port" or "tcp://host:port", and show each other that both belong to the run.

    Raises:
        OSError: nobody answers there, or somebody who does not belong to the run.
    """
    plain = socket.create_connection(parted(address), DIAL_SECONDS)
    line: Line = plain
    try:
        keep_alive(plain)
        # its process may be busy with an import that lets no other thread run
        if address.startswith("tls://"):
            line = _secure(line, credentials, server_side=False, seconds=STALL_SECONDS)
        line.settimeout(STALL_SECONDS)
        theirs, mine = _read(line, _NONCE), os.urandom(_NONCE)
        _send(line, mine + credentials.mac(b"client", theirs, mine))
        if not hmac.compare_digest(_read(line, _MAC), credentials.mac(b"server", mine, theirs)):
            raise ConnectionError("who answers there does not know the token of this run")
    except BaseException:
        line.close()
        raise
    return Connection(line)


def admit(line: Line, credentials: Credentials, *, secure: bool) -> Connection:
    """The other end of `dial`, within `HANDSHAKE_SECONDS`. Owns `line` from now on.

    Raises:
        OSError: who dialled does not belong to the run, or took too long to show it.
    """
    until = monotonic() + HANDSHAKE_SECONDS
    try:
        line.settimeout(HANDSHAKE_SECONDS)
        if isinstance(line, socket.socket):
            keep_alive(line)
        if secure:
            line = _secure(line, credentials, server_side=True, seconds=HANDSHAKE_SECONDS)
        mine = os.urandom(_NONCE)
        _send(line, mine)
        said = _read(line, _NONCE + _MAC, until)
        theirs, mac = said[:_NONCE], said[_NONCE:]
        if not hmac.compare_digest(mac, credentials.mac(b"client", mine, theirs)):
            raise ConnectionError("who dialled does not know the token of this run")
        _send(line, credentials.mac(b"server", theirs, mine))
    except BaseException:
        line.close()
        raise
    return Connection(line)


def _secure(line: Line, credentials: Credentials, *, server_side: bool, seconds: float) -> TlsLine:
    assert isinstance(line, socket.socket)
    context = credentials.for_server if server_side else credentials.for_client
    made = TlsLine(line, context, server_side=server_side, seconds=seconds)
    prove_same(made.certificate(), credentials.certificate)
    return made


class Connection:
    """One end, let in. Used by one thread at a time; `pulse`, `still`, `gone` and `shut` may be called from any."""

    def __init__(self, line: Line) -> None:
        line.settimeout(STALL_SECONDS)
        self._line = line
        self._lock = threading.Lock()
        self._working = False
        self._body_at: float | None = None
        """When bytes of the body last moved that is on its way."""
        self.moved: Callable[[int], None] = lambda count: None
        """Called with the bytes of each piece that went or came; 0: a pulse of the other end, which is at work."""

    def wait(self) -> None:
        """Until something comes, however long that takes."""
        self._poll(_POLL_GONE, None)

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """One frame."""
        _send(self._line, _HEAD.pack(kind, len(body)) + body)

    def receive(self, *kinds: bytes) -> tuple[bytes, bytes]:
        """The next frame, of one of these kinds; `WAIT` is taken for what it is.

        Raises:
            ConnectionError: the line ended, or something else came.
            TimeoutError: nothing came for `STALL_SECONDS`.
        """
        while True:
            kind, size = self._head()
            if kind in kinds:
                return kind, _read(self._line, size)
            if kind != WAIT or size:
                raise ConnectionError(f"a frame {kind!r} of {size} bytes came in place of {b' or '.join(kinds)!r}")
            self.moved(0)

    def send_body(self, data: memoryview, intact: Callable[[], bool]) -> None:
        """Chunks and their seal. `data` may change meanwhile, as memory that is used again: `intact` says so after the
        last chunk, and the other end is told."""
        seal = self._seal()
        with self._body():
            for at in range(0, len(data), CHUNK):
                part = data[at : at + CHUNK]
                seal.update(part)
                _send(self._line, _HEAD.pack(DATA, len(part)))
                for start in range(0, len(part), _PIECE):
                    piece = part[start : start + _PIECE]
                    _send(self._line, piece)
                    self._body_at = monotonic()
                    self.moved(len(piece))
            self.send(END, seal.digest() if intact() else b"")

    def receive_body(self, size: int) -> memoryview:
        """So many bytes, compared with their seal.

        Raises:
            FileNotFoundError: they changed while they were sent.
            ConnectionError: the line ended, or the bytes are not those that were sent.
        """
        view, seal, at = room(size), self._seal(), 0
        with self._body():
            while at < size:
                kind, count = self._head()
                if kind != DATA or not 0 < count <= size - at:
                    raise ConnectionError(f"a frame {kind!r} of {count} bytes came at byte {at} of {size}")
                part = view[at : at + count]
                for start in range(0, count, _PIECE):
                    _read_into(self._line, part[start : start + _PIECE])
                    self._body_at = monotonic()
                seal.update(part)
                at += count
                self.moved(count)
            _, theirs = self.receive(END)
        if not theirs:
            raise FileNotFoundError("its memory was used again")
        if not hmac.compare_digest(theirs, seal.digest()):
            raise ConnectionError(f"{size} bytes were damaged on their way")
        return view

    def still(self) -> float:
        """For how many seconds the other end has neither given nor taken what is on its way; 0.0 while nothing is."""
        at = self._body_at
        return 0.0 if at is None else monotonic() - at

    @contextlib.contextmanager
    def _body(self) -> Iterator[None]:
        self._body_at = monotonic()
        try:
            yield
        finally:
            self._body_at = None

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """While this end works and sends nothing, `pulse` may."""
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
                _send(self._line, _HEAD.pack(WAIT, 0))

    def gone(self) -> bool:
        """Whether the other end hung up; to be asked only while it has nothing to say."""
        return self._poll(_POLL_GONE, 0)

    def shut(self) -> None:
        """Wake the thread that uses it with an error."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def _poll(self, events: int, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._line, events)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def _head(self) -> tuple[bytes, int]:
        kind, size = _HEAD.unpack(_read(self._line, _HEAD.size))
        if size > CHUNK:
            raise ConnectionError(f"a frame of {size} bytes was announced; at most {CHUNK} are allowed")
        return kind, size

    def _seal(self) -> Any:
        return Sealed() if isinstance(self._line, TlsLine) else blake3()


class Sealed:
    """In the place of a hash: TLS has one for each record."""

    def update(self, part: memoryview) -> None:
        """Nothing to do."""

    def digest(self) -> bytes:
        """What both ends have."""
        return b"whole"


def _send(line: Line, data: bytes | memoryview) -> None:
    view, at = memoryview(data), 0
    while at < len(view):  # not sendall, whose time-out is for all of it
        at += line.send(view[at : at + _PIECE])


def _read(line: Line, size: int, until: float | None = None) -> bytes:
    data = bytearray(size)
    _read_into(line, memoryview(data), until)
    return bytes(data)


def _read_into(line: Line, view: memoryview, until: float | None = None) -> None:
    at = 0
    while at < len(view):
        if until is not None:
            line.settimeout(max(0.1, until - monotonic()))
        count = line.recv_into(view[at:])
        if not count:
            raise ConnectionError("the line ended")
        at += count
