"""The route of rows into a program, as far as both of its ends share it: endpoints, the handshake, frames.

A program's process has an *endpoint*: a unix socket, and one of TCP where others must reach it from other machines.
Whoever dials shows that it knows the token of the program, which itself never travels, and so does who answers: rows
and answers may be pickles. Then frames go both ways: a head of fixed size, and a body. Knows neither Spark nor what a
feed is.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hopyard.core.programs.messages import Endpoint
from hopyard.system.network import java_above, keep_alive

WORDS, SCHEMA, ARROW, PICKLE, END = b"J", b"S", b"A", b"P", b"E"
"""Kinds of frames: a JSON object, an Arrow schema, a record batch, pickled rows (or answers), a partition's end."""

_HEAD = struct.Struct("<cqqq16s")
_NONCE = 16
_WORDS_BYTES = 1 << 16
"""What a stranger may say before it must have shown the token; also the most that words may take."""
_HANDSHAKE_SECONDS = 10.0
"""For a stranger to show that it knows the token."""
_ANSWER_SECONDS = 60.0
"""For an endpoint to answer: its process may be busy with an import that lets no other thread run."""
_BUFFER = 1 << 20
"""Bytes of a socket's buffers: with the system's 208 KB a block of 4 MB takes 20 switches between two processes."""


class Head(NamedTuple):
    """What stands before a body."""

    kind: bytes
    number: int
    """Which block of its partition; of an end: how many there were."""
    rows: int
    size: int
    """Bytes of the body."""
    digest: bytes
    """BLAKE3 of the body, 16 bytes; zeros where nobody compares."""


def machine() -> str:
    """An identity of this host that others do not have, also where all hosts have one name."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}-{boot}"


def executor() -> str:
    """The Spark executor that this process belongs to, as "host-pid" of the next Java process above it; else ""."""
    process = java_above()
    return f"{socket.gethostname()}-{process}" if process else ""


def near(endpoint: Endpoint) -> bool:
    """Whether its unix socket can be reached from here: same machine, and the same file system."""
    return endpoint.machine == machine() and os.access(endpoint.path, os.W_OK)  # another user's is not


def connect(endpoint: Endpoint, token: str, hello: Mapping[str, Any]) -> tuple[socket.socket, dict[str, Any]]:
    """Dial an endpoint and say what for; gives the connection and the answer to `hello`.

    Raises:
        OSError: nobody answers there, or somebody who does not know the token.
    """
    if near(endpoint):
        connection = socket.socket(socket.AF_UNIX)
        where: Any = endpoint.path
    elif endpoint.port:
        connection = socket.socket(socket.AF_INET)
        where = (endpoint.host, endpoint.port)
    else:
        raise ConnectionError(f"it is on another machine ({endpoint.machine}) and listens on its own machine only")
    try:
        connection.settimeout(_ANSWER_SECONDS)
        tuned(connection)
        connection.connect(where)
        theirs = read(connection, _NONCE)
        mine = os.urandom(_NONCE)
        text = json.dumps(hello).encode()
        _send_words(connection, mine + _mac(token, b"hello", theirs, mine, text) + text)
        said = _read_words(connection)
        if not hmac.compare_digest(said[:32], _mac(token, b"reply", mine, theirs, said[32:])):
            raise ConnectionError("who answers there does not know the token of this program")
        connection.settimeout(None)
        return connection, json.loads(said[32:])
    except BaseException:
        connection.close()
        raise


class Handshake:
    """Somebody at the endpoint, before it was let in. `admit` gives its hello, `reply` opens the connection."""

    def __init__(self, connection: socket.socket, token: str) -> None:
        self._connection, self._token = connection, token
        self._mine = os.urandom(_NONCE)
        self._theirs = b""

    def admit(self) -> dict[str, Any]:
        """What the handshake wants.

        Raises:
            OSError, ValueError: it does not know the token, or took too long to show it.
        """
        self._connection.settimeout(_HANDSHAKE_SECONDS)
        tuned(self._connection)
        self._connection.sendall(self._mine)
        said = _read_words(self._connection)
        self._theirs, mac, text = said[:_NONCE], said[_NONCE : _NONCE + 32], said[_NONCE + 32 :]
        if not hmac.compare_digest(mac, _mac(self._token, b"hello", self._mine, self._theirs, text)):
            raise ConnectionError("the handshake does not know the token")
        hello = json.loads(text)
        if not isinstance(hello, dict):
            raise ValueError(f"hello must be an object, got {type(hello).__name__}")
        return hello

    def reply(self, answer: Mapping[str, Any]) -> None:
        """Let the handshake in, or tell it where to go."""
        text = json.dumps(answer).encode()
        _send_words(self._connection, _mac(self._token, b"reply", self._theirs, self._mine, text) + text)
        self._connection.settimeout(None)


def send(
    connection: socket.socket, kind: bytes, body: Any = b"", number: int = 0, rows: int = 0, digest: bytes = b""
) -> None:
    """Send one frame; waits for as long as the other side does not take it."""
    view = memoryview(body)
    connection.sendall(_HEAD.pack(kind, number, rows, view.nbytes, digest))
    if view.nbytes:
        connection.sendall(view)


def send_message(connection: socket.socket, **words: Any) -> None:
    """Send a frame of words."""
    send(connection, WORDS, json.dumps(words).encode())


def receive_header(connection: socket.socket) -> Head:
    """The head of the next frame; ConnectionError when there is none."""
    return Head._make(_HEAD.unpack(read(connection, _HEAD.size)))


def receive_message(connection: socket.socket, head: Head) -> dict[str, Any]:
    """The words that `head` announces."""
    if head.kind != WORDS or not 0 <= head.size <= _WORDS_BYTES:
        raise ConnectionError(f"words were expected, a frame of kind {head.kind!r} and {head.size} bytes came")
    return dict(json.loads(read(connection, head.size)))


def read(connection: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes; ConnectionError when the connection ends before."""
    data = bytearray(size)
    read_into(connection, memoryview(data))
    return bytes(data)


def read_into(connection: socket.socket, view: memoryview) -> None:
    """Fill `view`; ConnectionError when the connection ends before."""
    at = 0
    while at < len(view):
        got = connection.recv_into(view[at:], 0, socket.MSG_WAITALL)
        if not got:
            raise ConnectionError("the connection ended")
        at += got


def skip(connection: socket.socket, size: int) -> None:
    """Read `size` bytes and drop them."""
    scrap = memoryview(bytearray(min(size, _BUFFER)))
    while size:
        part = scrap[: min(size, len(scrap))]
        read_into(connection, part)
        size -= len(part)


def tuned(connection: socket.socket) -> None:
    """Buffers for blocks; on TCP the kernel finds out when the other host has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    if connection.family == socket.AF_UNIX:
        return
    keep_alive(connection)


def _mac(token: str, what: bytes, *parts: bytes) -> bytes:
    return hmac.new(token.encode(), what + b"".join(parts), hashlib.sha256).digest()


def _send_words(connection: socket.socket, data: bytes) -> None:
    connection.sendall(struct.pack("<i", len(data)) + data)


def _read_words(connection: socket.socket) -> bytes:
    size = struct.unpack("<i", read(connection, 4))[0]
    if not 0 <= size <= _WORDS_BYTES:
        raise ConnectionError(f"{size} bytes were announced; at most {_WORDS_BYTES} are allowed")
    return read(connection, size)
