"""Who connects to the port of messages and has no key: few at once, for a short time, and with few bytes.

ZeroMQ ends a handshake that takes too long. It bounds neither how many there are at once nor what each brings: the
first frame of a stranger may be as large as any of an agent. It tells the descriptors of connections that it accepts,
but not which of them it let in; that is seen by the bytes that Linux counts for each. Elsewhere only time is bounded.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time

import zmq

HANDSHAKE_SECONDS = 10.0
"""How long a connection may take, in all, to show the key of the run."""
HANDSHAKE_BYTES = 1 << 16
"""Bytes that a stranger may bring; a handshake has 600."""
STRANGERS = 512
"""Connections, at least, that may be about to show the key. One more ends the oldest."""
LOOK_SECONDS = 0.05
"""Time between two looks at strangers, while there are any."""
_LET_IN_BYTES = 250
"""Who was sent more was let in: greeting and welcome of CurveZMQ have 234 bytes, then a refusal has 12, READY 67."""
_EVENT = struct.Struct("=hi")
_COUNTS = struct.Struct("=128xQ64xQQ")
"""Of the kernel's `tcp_info`: bytes received, bytes sent, and those of them that were sent again (Linux 4.19)."""


class Strangers:
    """Ends connections of strangers to one socket. A thread of its own watches them.

    ZeroMQ closes a descriptor when it likes, and the number may be another connection's by the time that it is looked
    at. So nothing is ended but connections to this port; an agent's, should it ever be one, connects again.

    Args:
        router: the socket, with `HANDSHAKE_SECONDS` set.
        port: where it is bound.
        expected: how many connections agents make, which may all come at once.
    """

    def __init__(self, router: zmq.Socket[bytes], port: int, expected: int = 0) -> None:
        self._router, self._port = router, port
        self._most = max(STRANGERS, expected)
        self._descriptors: dict[int, None] = {}
        """Connections that may be strangers'; the oldest first."""
        self._thread: threading.Thread | None = None
        if sys.platform != "linux":
            return
        address = f"inproc://strangers-{id(self)}"
        router.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED)
        events = router.context.socket(zmq.PAIR)
        events.setsockopt(zmq.RCVHWM, 0)  # else ZeroMQ's own thread waits for this one when many come
        events.connect(address)
        self._thread = threading.Thread(target=self._watch, args=(events,), name="hopyard-strangers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching; to be called before the socket is closed."""
        if self._thread is not None:
            self._router.disable_monitor()
            self._thread.join()

    def _watch(self, events: zmq.Socket[bytes]) -> None:
        next_look = 0.0
        with events:
            while True:
                if events.poll(int(LOOK_SECONDS * 1000) if self._descriptors else None):
                    event, descriptor = _EVENT.unpack(events.recv_multipart()[0])
                    if event == zmq.EVENT_MONITOR_STOPPED:
                        return
                    self._descriptors.pop(descriptor, None)
                    if event == zmq.EVENT_ACCEPTED:
                        self._descriptors[descriptor] = None
                if len(self._descriptors) > self._most:
                    self._look(next(iter(self._descriptors)), -1)
                if time.monotonic() >= next_look:
                    for descriptor in list(self._descriptors):
                        self._look(descriptor, HANDSHAKE_BYTES)
                    next_look = time.monotonic() + LOOK_SECONDS

    def _look(self, descriptor: int, allowed: int) -> None:
        """Look at a connection; end it where it is a stranger's that has brought more bytes than are allowed."""
        duplicate = -1
        try:
            duplicate = os.dup(descriptor)
            with socket.socket(fileno=duplicate) as connection:
                duplicate = -1
                internet = connection.family in (socket.AF_INET, socket.AF_INET6)
                ours = internet and connection.getsockname()[1] == self._port
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
                received, sent, again = _COUNTS.unpack(info)
                if ours and sent - again <= _LET_IN_BYTES:
                    if received <= allowed:
                        return
                    connection.shutdown(socket.SHUT_RDWR)
        except (OSError, struct.error):  # it was closed, or is something else by now; an older kernel
            if duplicate >= 0:
                os.close(duplicate)
        self._descriptors.pop(descriptor, None)
