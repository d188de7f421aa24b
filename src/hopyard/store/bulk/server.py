"""The end of `store.bulk` that answers: it lets connections in, has a thread for each, and gives requests turns."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from hopyard.certificate import tls
from hopyard.errors import ResourceError
from hopyard.spec import Encrypt
from hopyard.store.arena import Taken
from hopyard.store.bulk.client import Ask, Reply, always, encode
from hopyard.store.bulk.connection import ASK, GO, REPLY, Connection, Credentials, admit, shut
from hopyard.store.guard import StateConflict
from hopyard.system.network import TAKEN, is_loopback, joined, listen

log = logging.getLogger(__name__)

PULSE_SECONDS = 5.0
STRANGERS = 64
"""How many unauthenticated connections there may be at once; one more ends the oldest."""
LARGEST = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Bytes that a request may bring: what it brings is in memory here."""
CLOSE_SECONDS = 10.0
"""How long the requests may take that are being answered when a server closes."""
WARN_SECONDS = 60.0
"""The least time between two warnings about refused connections."""
LOOK_SECONDS = 1.0
"""How often a request that waits for its turn looks whether its client is still there."""

_ask = msgspec.msgpack.Decoder(Ask)


@dataclass(frozen=True, slots=True)
class Service:
    """How a server answers one kind of request."""

    answer: Callable[[Ask, memoryview], bytes | bytearray | memoryview | Taken]
    """(request, its bytes) → bytes of the answer; FileNotFoundError, ResourceError and StateConflict reach the client
    as such."""
    turns: threading.Semaphore | None = None
    """Counts those that may be answered now; None: all that come."""
    largest: int = LARGEST
    """Bytes that a request may bring."""


def secured(encrypt: Encrypt, host: str) -> bool:
    """Whether a server that is dialled by `host` encrypts what it sends and receives. "between hosts": unless its
    clients are on its own host, where nobody else can listen."""
    return encrypt is True or (encrypt == "between hosts" and not is_loopback(host))


class Server:
    """Answers requests, each connection in a thread of its own. One thread more lets connections in.

    Args:
        host: name under which clients reach this one; see `network.address_to_bind`.
        credentials: the credentials of the run.
        services: what is asked → how it is answered.
        port: 0: any.
        encrypt: whether connections are encrypted, see `secured`.

    Raises:
        ResourceError: the port is taken.
    """

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        services: Mapping[str, Service],
        *,
        port: int = 0,
        encrypt: Encrypt = False,
    ) -> None:
        self._credentials = credentials
        self._services = dict(services)
        self._tls = tls(credentials.certificate, server=True) if secured(encrypt, host) else None
        try:
            self._listener = listen(host, port)
        except OSError as error:
            raise ResourceError(f"port {port} on {host}: {error}; {TAKEN}") from error
        self._listener.setblocking(False)
        port = int(self._listener.getsockname()[1])
        self.address = f"{'tls' if self._tls else 'tcp'}://{joined(host, port)}"
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}
        """Connections that were not let in yet; the oldest first."""
        self._connections: dict[Connection, bool] = {}
        """Connections that were let in → whether a request is being answered."""
        self._threads: set[threading.Thread] = set()
        self._open = True
        self._refused = 0
        self._warned = -WARN_SECONDS
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._accept, name="hopyard-bulk", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, after the requests that are being answered."""
        self._open = False
        os.write(self._waker, b"x")
        self._thread.join()
        with self._lock:
            for stranger in self._strangers:
                shut(stranger)
            for connection, answering in self._connections.items():
                if not answering:
                    connection.shut()
            threads = list(self._threads)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            for connection in self._connections:
                connection.shut()
        os.close(self._wake)
        os.close(self._waker)

    # ---------------------------------------------------------------- the thread that lets connections in

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            pulse = time.monotonic() + PULSE_SECONDS
            while self._open:
                selector.select(max(0.0, pulse - time.monotonic()))
                if self._open:
                    self._let_in()
                if time.monotonic() >= pulse:
                    pulse = time.monotonic() + PULSE_SECONDS
                    with self._lock:
                        connections = list(self._connections)
                    for connection in connections:
                        connection.pulse()

    def _let_in(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no more files may be open; the kernel keeps the connection until there are
            log.warning("a connection cannot be let in: %s", error)
            time.sleep(0.1)
            return
        if self._tls is not None:
            try:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError:  # it is gone
                return
        with self._lock:
            if len(self._strangers) >= STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                shut(oldest)
            self._strangers[sock] = None
            thread = threading.Thread(target=self._serve, args=(sock,), name="hopyard-bulk-line", daemon=True)
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads
            with self._lock:
                self._threads.discard(thread)
                self._strangers.pop(sock, None)
            sock.close()
            log.warning("a connection cannot be let in: %s", error)

    # ---------------------------------------------------------------- one thread for each connection

    def _serve(self, sock: socket.socket) -> None:
        connection = None
        try:
            try:
                connection = admit(sock, self._credentials)
            except (OSError, ValueError) as error:
                self._refuse(error)
                return
            finally:
                with self._lock:
                    self._strangers.pop(sock, None)
                    if connection is not None:
                        self._connections[connection] = False
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                while self._open:
                    self._serve_request(connection)
        finally:
            with self._lock:
                if connection is not None:
                    del self._connections[connection]
                self._threads.discard(threading.current_thread())
            if connection is not None:
                connection.close()

    def _refuse(self, error: Exception) -> None:
        with self._lock:
            self._refused += 1
            if not self._open or time.monotonic() - self._warned < WARN_SECONDS:
                return
            count, self._refused, self._warned = self._refused, 0, time.monotonic()
        log.warning("%d unauthenticated connections to the port of States were refused: %s", count, error)

    def _serve_request(self, connection: Connection) -> None:
        connection.wait()
        with self._lock:
            self._connections[connection] = True
        try:
            ask = _ask.decode(connection.receive(ASK)[1])
            with contextlib.ExitStack() as turn:
                reply, result = self._answer(connection, ask, turn)
                body, intact = (result.data, result.intact) if isinstance(result, Taken) else (result, always)
                data = memoryview(body).cast("B")
                connection.send(REPLY, encode(msgspec.structs.replace(reply, size=len(data))))
                if len(data):
                    connection.send_body(data, intact)
        finally:
            with self._lock:
                self._connections[connection] = False

    def _answer(self, connection: Connection, ask: Ask, turn: contextlib.ExitStack) -> tuple[Reply, Any]:
        """Return the reply and its bytes. `turn` is released when they are sent."""
        service = self._services.get(ask.what)
        if service is None:
            return Reply("other", f"nobody here does {ask.what!r}"), b""
        if ask.size > service.largest:
            return _too_large(ask, service.largest), b""

        reply, _ = _attempt(connection, lambda: _take_turn(service.turns, ask.seconds, connection.gone, turn))
        if reply.fault:
            return reply, b""
        data = memoryview(b"")
        if ask.size >= 0:
            try:
                connection.send(GO)
                data = connection.receive_body(ask.size)
            except (OSError, MemoryError) as error:  # where the connection is the reason, nobody receives it
                return Reply("other", f"{type(error).__name__}: {error}"), b""
        return _attempt(connection, lambda: service.answer(ask, data))


def _too_large(ask: Ask, largest: int) -> Reply:
    if not largest:
        return Reply("other", f"{ask.what!r} brings no bytes; {ask.size} were announced")
    return Reply(
        "room",
        f"State {ask.ref} of {ask.size} bytes does not fit into the memory of {socket.gethostname()} ({largest} "
        "bytes), through which it would go: give store= a place that all workers reach (NFS, HDFS, S3, …)",
    )


def _attempt(connection: Connection, work: Callable[[], Any]) -> tuple[Reply, Any]:
    """Return the result of `work`, or its error as a reply, since the client must not wait for ever."""
    try:
        with connection.working():
            return Reply(), work()
    except FileNotFoundError as error:
        return Reply("missing", str(error)), b""
    except ResourceError as error:
        return Reply("room", str(error)), b""
    except StateConflict as error:
        return Reply("conflict", str(error)), b""
    except Exception as error:  # noqa: BLE001 - of any kind of store
        return Reply("other", f"{type(error).__name__}: {error}"), b""


def _take_turn(
    turns: threading.Semaphore | None, seconds: float, gone: Callable[[], bool], turn: contextlib.ExitStack
) -> None:
    """Wait for a turn, which `turn` gives back. Raises TimeoutError if none comes, or nobody wants it any longer."""
    if turns is None:
        return
    deadline = time.monotonic() + seconds
    while not turns.acquire(timeout=max(0.0, min(LOOK_SECONDS, deadline - time.monotonic()))):
        if gone():
            raise TimeoutError("who asked hung up")
        if time.monotonic() >= deadline:
            raise TimeoutError(f"its turn did not come within {seconds:.0f} seconds")
    turn.callback(turns.release)
