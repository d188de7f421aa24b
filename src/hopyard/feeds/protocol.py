"""What both ends of a feed connection share: endpoints, the handshake, frames.

A program's process has an *endpoint*: a unix socket, and one of TCP where others must reach it from other machines.
Both the client and the server prove that they know the token of the program, which itself is never sent, as rows and
answers may be pickles. Then frames go both ways: a head of fixed size, and a body. Knows neither Spark nor what a
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
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hopyard.core.programs.messages import Endpoint
from hopyard.system.network import java_above, keep_alive, read, read_into

MESSAGE, SCHEMA, ARROW, PICKLE, END = b"J", b"S", b"A", b"P", b"E"
"""Kinds of frames: a JSON object, an Arrow schema, a record batch, pickled rows (or answers), a partition's end."""

_HEAD = struct.Struct("<cqqq16s")
_NONCE = 16
_MAX_MESSAGE_BYTES = 1 << 16
"""Limit on the bytes of a message, also of a hello, which comes before the client has shown that it knows the token."""
_HANDSHAKE_SECONDS = 10.0
"""Time for a client to show that it knows the token."""
_ANSWER_SECONDS = 60.0
"""Time for an endpoint to answer: its process may be busy with an import that lets no other thread run."""
_BUFFER = 1 << 20
"""Bytes of a socket's buffers: with the system's 208 KB a block of 4 MB takes 20 switches between two processes."""


class FrameHeader(NamedTuple):
    """The header of a frame."""

    kind: bytes
    number: int
    """Number of the block within its partition; in an END frame, how many blocks there were."""
    rows: int
    size: int
    """Bytes of the body."""
    digest: bytes
    """BLAKE3 of the body, 16 bytes; zeros where nobody compares."""


def machine() -> str:
    """Return an identity that only this host has, even where all hosts have the same name."""
    boot = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}-{boot}"


def executor() -> str:
    """Return the Spark executor of this process, as "host-pid" of the nearest Java process above it; else ""."""
    process = java_above()
    return f"{socket.gethostname()}-{process}" if process else ""


def near(endpoint: Endpoint) -> bool:
    """Whether the unix socket of an endpoint can be reached from here: same machine, and the same file system."""
    return endpoint.machine == machine() and os.access(endpoint.path, os.W_OK)  # another user's socket is not writable


def connect(endpoint: Endpoint, token: str, hello: Mapping[str, Any]) -> tuple[socket.socket, dict[str, Any]]:
    """Connect to an endpoint and send `hello`; return the connection and the reply.

    Raises:
        OSError: nothing answers there, or something that does not know the token.
    """
    if near(endpoint):
        connection = socket.socket(socket.AF_UNIX)
        address: Any = endpoint.path
    elif endpoint.port:
        connection = socket.socket(socket.AF_INET)
        address = (endpoint.host, endpoint.port)
    else:
        raise ConnectionError(f"it is on another machine ({endpoint.machine}) and listens on its own machine only")
    try:
        connection.settimeout(_ANSWER_SECONDS)
        tune(connection)
        connection.connect(address)
        peer_nonce = read(connection, _NONCE)
        own_nonce = os.urandom(_NONCE)
        text = json.dumps(hello).encode()
        _send_prefixed(connection, own_nonce + _mac(token, b"hello", peer_nonce, own_nonce, text) + text)
        reply = _read_prefixed(connection, time.monotonic() + _ANSWER_SECONDS)
        if not hmac.compare_digest(reply[:32], _mac(token, b"reply", own_nonce, peer_nonce, reply[32:])):
            raise ConnectionError("who answers there does not know the token of this program")
        connection.settimeout(None)
        return connection, json.loads(reply[32:])
    except BaseException:
        connection.close()
        raise


class Handshake:
    """The server's side of a handshake. `admit` returns the client's hello, `reply` opens the connection."""

    def __init__(self, connection: socket.socket, token: str) -> None:
        self._connection, self._token = connection, token
        self._own_nonce = os.urandom(_NONCE)
        self._peer_nonce = b""

    def admit(self) -> dict[str, Any]:
        """Return the client's hello.

        Raises:
            OSError, ValueError: the client does not know the token, or took too long to show it.
        """
        deadline = time.monotonic() + _HANDSHAKE_SECONDS
        self._connection.settimeout(_HANDSHAKE_SECONDS)
        tune(self._connection)
        self._connection.sendall(self._own_nonce)
        data = _read_prefixed(self._connection, deadline)
        self._peer_nonce, mac, text = data[:_NONCE], data[_NONCE : _NONCE + 32], data[_NONCE + 32 :]
        if not hmac.compare_digest(mac, _mac(self._token, b"hello", self._own_nonce, self._peer_nonce, text)):
            raise ConnectionError("the client does not know the token")
        hello = json.loads(text)
        if not isinstance(hello, dict):
            raise ValueError(f"hello must be an object, got {type(hello).__name__}")
        return hello

    def reply(self, answer: Mapping[str, Any]) -> None:
        """Admit the client, or tell it to which worker it must connect."""
        text = json.dumps(answer).encode()
        _send_prefixed(self._connection, _mac(self._token, b"reply", self._peer_nonce, self._own_nonce, text) + text)
        self._connection.settimeout(None)


def send(
    connection: socket.socket, kind: bytes, body: Any = b"", number: int = 0, rows: int = 0, digest: bytes = b""
) -> None:
    """Send one frame; waits for as long as the other end does not receive it."""
    view = memoryview(body)
    connection.sendall(_HEAD.pack(kind, number, rows, view.nbytes, digest))
    if view.nbytes:
        connection.sendall(view)


def send_message(connection: socket.socket, **message: Any) -> None:
    """Send a JSON object as a frame."""
    send(connection, MESSAGE, json.dumps(message).encode())


def receive_header(connection: socket.socket) -> FrameHeader:
    """Return the head of the next frame; ConnectionError when there is none."""
    return FrameHeader._make(_HEAD.unpack(read(connection, _HEAD.size)))


def receive_message(connection: socket.socket, head: FrameHeader) -> dict[str, Any]:
    """Return the JSON object that `head` announces."""
    if head.kind != MESSAGE or not 0 <= head.size <= _MAX_MESSAGE_BYTES:
        raise ConnectionError(f"expected a message, got a frame of kind {head.kind!r} and {head.size} bytes")
    return dict(json.loads(read(connection, head.size)))


def skip(connection: socket.socket, size: int) -> None:
    """Read `size` bytes and drop them."""
    scrap = memoryview(bytearray(min(size, _BUFFER)))
    while size:
        part = scrap[: min(size, len(scrap))]
        read_into(connection, part)
        size -= len(part)


def tune(connection: socket.socket) -> None:
    """Set buffers that fit blocks; on TCP, let the kernel find out when the other host has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    if connection.family != socket.AF_UNIX:
        keep_alive(connection)


def _mac(token: str, purpose: bytes, *parts: bytes) -> bytes:
    return hmac.new(token.encode(), purpose + b"".join(parts), hashlib.sha256).digest()


def _send_prefixed(connection: socket.socket, data: bytes) -> None:
    connection.sendall(struct.pack("<i", len(data)) + data)


def _read_prefixed(connection: socket.socket, deadline: float) -> bytes:
    size = struct.unpack("<i", read(connection, 4, deadline))[0]
    if not 0 <= size <= _MAX_MESSAGE_BYTES:
        raise ConnectionError(f"{size} bytes were announced; at most {_MAX_MESSAGE_BYTES} are allowed")
    return read(connection, size, deadline)
