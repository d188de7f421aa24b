"""Ports for a program's tasks, without races.

A port is *held* by a socket that is bound with SO_REUSEPORT and never listens: nobody else gets it, the program's own
server binds it too (gRPC does so by default, TensorFlow when TF_GRPC_REUSE_PORT=1), and no client is ever answered by
the wrong process. torch's store would not bind such a port, but takes one that listens already: the agent listens, and
starts the store when the first client connects.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

BACKLOG = 512


def reserved() -> socket.socket:
    """A port of all interfaces that a server with SO_REUSEPORT can bind, and nobody else."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    port.bind(("", 0))
    return port


class Ports:
    """The three ports of one slot. Owner of their sockets, and of torch's store once there is one."""

    def __init__(self, address: str) -> None:
        self._task = reserved()
        self._coordinator = reserved()
        self._address = address
        self.store_listener = socket.create_server((address, 0), backlog=BACKLOG)
        """Readable when somebody wants torch's store."""
        self._store: subprocess.Popen[bytes] | None = None

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Ports of the task, of torch's store, of JAX's coordinator."""
        task, coordinator = (int(held.getsockname()[1]) for held in (self._task, self._coordinator))
        return task, int(self.store_listener.getsockname()[1]), coordinator

    def open_store(self) -> None:
        """Start torch's store; it takes over the socket, and who waits there."""
        file = self.store_listener.fileno()
        self._store = subprocess.Popen(
            [sys.executable, "-P", "-m", "hopyard.agent.programs.torch_store", str(file), self._address],
            stdin=subprocess.DEVNULL,
            pass_fds=(file,),
        )

    def close_store(self) -> None:
        """End it; the next client gets a new one."""
        if self._store is not None:
            self._store.kill()
            self._store.wait()
            self._store = None

    def store_ended(self) -> bool:
        """Whether it was there, and is not any more."""
        if self._store is None or self._store.poll() is None:
            return False
        self._store = None
        return True

    @property
    def store_pid(self) -> int:
        """Its process; 0: it is not there."""
        return 0 if self._store is None else self._store.pid

    @property
    def has_store(self) -> bool:
        """Whether it was started."""
        return self._store is not None

    def close(self) -> None:
        """Give all back."""
        with contextlib.suppress(OSError):
            self.close_store()
        for held in (self._task, self._coordinator, self.store_listener):
            held.close()
