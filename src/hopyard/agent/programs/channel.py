"""Typed messages between an agent and the process that it hosts, over a socket pair: length, then MessagePack."""

from __future__ import annotations

import select
import socket
import struct
import threading
from typing import Any

from hopyard.core.messages import Down, Up, pack, unpack_down, unpack_up

_LENGTH = struct.Struct("<Q")


class Pipe:
    """One end. `send` may be called from any thread, `receive` from one."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """For those who wait for it."""
        return self._end.fileno()

    def send(self, message: Up | Down) -> None:
        """Raises OSError when the other end is gone."""
        data = pack(message)
        with self._lock:
            self._end.sendall(_LENGTH.pack(len(data)) + data)

    def writable(self) -> bool:
        """Whether the other end reads what is sent: a word of little weight may be left out where it does not."""
        return bool(select.select([], [self._end], [], 0)[1])

    def hurry(self) -> None:
        """Only what is there already is received from now on."""
        self._end.setblocking(False)

    def receive(self) -> bytes | None:
        """The next message's bytes, waiting for it; None when the other end is gone."""
        head = self._take(_LENGTH.size)
        return None if head is None else self._take(_LENGTH.unpack(head)[0])

    def _take(self, size: int) -> bytes | None:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            try:
                more = self._end.recv_into(view[got:])
            except OSError:
                return None
            if not more:
                return None
            got += more
        return bytes(data)

    def close(self) -> None:
        """Hang up."""
        self._end.close()


def down(pipe: Pipe) -> Any:
    """The next message for the hosted process; None: the agent is gone."""
    data = pipe.receive()
    return None if data is None else unpack_down(data)


def up(pipe: Pipe) -> Any:
    """The next message from the hosted process; None: it is gone."""
    data = pipe.receive()
    return None if data is None else unpack_up(data)
