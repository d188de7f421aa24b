"""Typed messages between an agent and the process that it hosts, over a socket pair; nothing is pickled."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from hopyard.core.messages import Down, Up, pack


class Pipe:
    """One end of the socket pair. `send` may be called from any thread, `receive` from one.

    Args:
        end: the socket.
        unpack: decodes a message from the other end.
    """

    def __init__(self, end: Connection, unpack: Callable[[bytes], Any]) -> None:
        self._end, self._unpack = end, unpack
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor, which can be read when a message is there or the other end is gone."""
        return self._end.fileno()

    def send(self, message: Up | Down) -> None:
        """Send a message; OSError when the other end is gone."""
        data = pack(message)
        with self._lock:
            self._end.send_bytes(data)

    def writable(self) -> bool:
        """Whether a message can be sent without blocking: one of little importance may be dropped where it cannot."""
        return bool(select.select([], [self._end], [], 0)[1])

    def hurry(self) -> None:
        """From now on, `receive` returns only messages that are there already."""
        os.set_blocking(self._end.fileno(), False)

    def receive(self) -> Any:
        """Wait for the next message and return it; None when the other end is gone."""
        try:
            data = self._end.recv_bytes()
        except (EOFError, OSError):
            return None
        return self._unpack(data)

    def close(self) -> None:
        """Close this end."""
        self._end.close()
