"""Ports for a program's tasks, without races.

A port is *reserved* by a socket that is bound with SO_REUSEPORT and never listens: nobody else gets it, the program's
own server binds it too (gRPC does so by default, TensorFlow when TF_GRPC_REUSE_PORT=1), and no client is ever answered
by the wrong process. torch's store would not bind such a port, but takes one that listens already: the agent listens,
and starts the store when the first client connects, as `python -m hopyard.agent.programs.ports FD HOST`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from hopyard.agent.parent import end_with

BACKLOG = 512


def reserve_port() -> socket.socket:
    """Reserve a port of all interfaces, which only a server with SO_REUSEPORT can bind; return its socket."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    port.bind(("", 0))
    return port


class Ports:
    """The three ports of one slot. Owner of their sockets, and of torch's store once it runs."""

    def __init__(self, address: str) -> None:
        self._task = reserve_port()
        self._coordinator = reserve_port()
        self._address = address
        self.store_listener = socket.create_server((address, 0), backlog=BACKLOG)
        """Can be read when a client connects to torch's store."""
        self._store: subprocess.Popen[bytes] | None = None

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Ports of the task, of torch's store, of JAX's coordinator."""
        task, coordinator = (int(port.getsockname()[1]) for port in (self._task, self._coordinator))
        return task, int(self.store_listener.getsockname()[1]), coordinator

    def open_store(self) -> None:
        """Start torch's store; it takes over the socket and the clients that wait there."""
        file = self.store_listener.fileno()
        self._store = subprocess.Popen(
            [sys.executable, "-P", "-m", "hopyard.agent.programs.ports", str(file), self._address],
            stdin=subprocess.DEVNULL,
            pass_fds=(file,),
        )

    def close_store(self) -> None:
        """End torch's store; the next client gets a new one."""
        if self._store is not None:
            self._store.kill()
            self._store.wait()
            self._store = None

    def store_ended(self) -> bool:
        """Whether torch's store has ended by itself; True once for each end."""
        if self._store is None or self._store.poll() is None:
            return False
        self._store = None
        return True

    @property
    def store_pid(self) -> int:
        """Process id of torch's store; 0: it does not run."""
        return 0 if self._store is None else self._store.pid

    @property
    def has_store(self) -> bool:
        """Whether torch's store was started."""
        return self._store is not None

    def close(self) -> None:
        """End torch's store and free all ports."""
        with contextlib.suppress(OSError):
            self.close_store()
        for port in (self._task, self._coordinator, self.store_listener):
            port.close()


def serve_store() -> None:
    """Serve torch's store on a socket that listens already, until killed."""
    end_with(os.getppid())
    file, host = int(sys.argv[1]), sys.argv[2]
    port = socket.socket(fileno=os.dup(file)).getsockname()[1]
    import torch.distributed as dist

    store: Any = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, None, True, wait_for_workers=False, master_listen_fd=file
    )
    signal.pause()
    del store


if __name__ == "__main__":
    serve_store()
