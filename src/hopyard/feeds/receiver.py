"""The server end of a feed: it accepts connections and puts their rows into the queues of a program's process.

Each connection that is admitted carries one attempt at one partition: a hello that names the feed, blocks, an end, and
in return an acknowledgement or answers. The worker to which an attempt must connect first (`partition % workers`)
records which worker takes it, so that another attempt goes to the same worker. A program that ended its feed, or
itself, drains what still comes; the senders of one that died find a broken connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from hopyard.core.programs.feed_progress import Count
from hopyard.core.programs.messages import Endpoint
from hopyard.errors import FeedError, HopyardError
from hopyard.feeds.protocol import (
    ARROW,
    END,
    PICKLE,
    SCHEMA,
    FrameHeader,
    Handshake,
    executor,
    machine,
    receive_header,
    send,
    send_message,
    skip,
)
from hopyard.feeds.queue import QUEUE_BYTES, FeedQueue
from hopyard.feeds.streams import Block, Stream
from hopyard.system.network import LOOPBACK, is_loopback, read, read_into

log = logging.getLogger(__name__)

_MAX_PATH_BYTES = 100
"""Limit on the bytes of a unix socket's path; systems allow 104 to 108."""
_MAX_SCHEMA_BYTES = 64 << 20
_LEAVE_SECONDS = 1.0
_ACCEPT_SECONDS = 0.1
"""Pause of an endpoint that could not accept a connection (no descriptors are left, …) before it tries again."""
STRANGERS = 512
"""Connections that may be about to show the token, as tasks of a whole cluster may come at once. One more ends the
oldest."""


class FeedServer:
    """Owner of the endpoint and the queues of one process of a program. Threads of its own listen and receive.

    Args:
        folder: where the socket's folder is created, and blocks beyond the limit are stored.
        host: address of this process that other machines can connect to.
        token: of the program.
        index: of this worker among those that are fed.
        apart: whether tasks may come from other machines.
        limit: bytes of one feed that may wait.
        on_count: see `FeedQueue`.

    Raises:
        OSError: no socket can be opened there. Nothing is left behind.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        token: str,
        index: int,
        apart: bool,
        *,
        limit: int = QUEUE_BYTES,
        on_count: Callable[[str, Count], None] | None = None,
    ) -> None:
        self.index = index
        self._token, self._limit, self._on_count = token, limit, on_count
        self._lock = threading.Lock()
        self._queues: dict[str, FeedQueue] = {}
        self._connections: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}
        """Those of them that have not shown the token yet; the oldest first."""
        self._watched_feeds: set[str] = set()
        """Feeds for which a thread watches that the program takes and answers rows."""
        self._done = False
        self._error = ""
        """The program's error, where it failed."""
        self._closed = False
        self._folder = folder
        port = 0
        with contextlib.ExitStack() as resources:
            path = _socket_path(_private_folder(folder, resources), resources)
            self._listeners = [resources.enter_context(_unix_listener(path))]
            if apart:
                tcp_listener = socket.create_server((LOOPBACK if is_loopback(host) else host, 0), backlog=512)
                self._listeners.append(resources.enter_context(tcp_listener))
                port = int(tcp_listener.getsockname()[1])
            self._resources = resources.pop_all()
        self.endpoint = Endpoint(machine(), str(path), host if apart else "", port, executor())
        for listener in self._listeners:
            threading.Thread(target=self._listen, args=(listener,), name="feed_server", daemon=True).start()

    def queue(self, feed: str) -> FeedQueue:
        """Return the queue of a feed; it is created when the program or a task first names it."""
        with self._lock:
            queue = self._queues.get(feed)
            is_finished = queue is None and self._done
            if queue is None:
                queue = self._queues[feed] = FeedQueue(feed, self._folder, self._limit, self._on_count)
        if is_finished:  # without the lock, as it reports
            self._end(queue)
        return queue

    def finish(self, error: str = "") -> None:
        """End all feeds, also those to come, as when the program's main has returned; tasks are told, and what they
        still send is drained. Where the program failed, they fail with its error; the first error counts.
        """
        with self._lock:
            self._done = True
            self._error = self._error or error
            queues = list(self._queues.values())
        for queue in queues:
            self._end(queue)

    def close(self) -> None:
        """Close the endpoint and all connections: to a task that still sends, this worker has ended."""
        with self._lock:
            self._closed = True
            connections = [*self._listeners, *self._connections]
        for connection in connections:
            _shut_down(connection)
        self.finish()
        self._resources.close()

    def _end(self, queue: FeedQueue) -> None:
        if self._error:
            queue.fail(FeedError(self._error))
        else:
            queue.terminate()

    def _listen(self, listener: socket.socket) -> None:
        failing = False
        while True:
            try:
                connection, _ = listener.accept()
                self._start_serving(connection)
                failing = False
            except (OSError, RuntimeError) as error:  # closed; no descriptor or thread is left; the client has gone
                if self._closed:
                    return
                if not failing:  # once, not ten times a second
                    log.warning("the endpoint for rows could not take a connection, and goes on trying: %s", error)
                failing = True
                time.sleep(_ACCEPT_SECONDS)

    def _start_serving(self, connection: socket.socket) -> None:
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._connections.add(connection)
            if len(self._strangers) >= STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]  # its thread may take long to notice, and another may come meanwhile
                _shut_down(oldest)
            self._strangers[connection] = None
        try:
            threading.Thread(target=self._serve, args=(connection,), name="feed_server", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._connections.discard(connection)
                self._strangers.pop(connection, None)
            connection.close()
            raise

    def _serve(self, connection: socket.socket) -> None:
        handshake = Handshake(connection, self._token)
        try:
            hello = handshake.admit()
            with self._lock:
                self._strangers.pop(connection, None)
            self._handle(connection, handshake, hello)
        except (OSError, ValueError, KeyError) as error:
            log.debug("a connection to the feed ended: %s", error)
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._strangers.pop(connection, None)
            connection.close()

    def _handle(self, connection: socket.socket, handshake: Handshake, hello: dict[str, Any]) -> None:
        queue = self.queue(hello["feed"])
        epoch, partition = int(hello["epoch"]), int(hello["partition"])
        answers = bool(hello.get("answers"))
        try:
            if not answers:
                queue.uneven = hello.get("uneven", "allow")
                if not hello.get("claimed"):
                    worker = queue.claim(epoch, partition, int(hello["worker"]))
                    if worker not in (None, self.index):
                        handshake.reply({"worker": worker})
                        return
            stream = queue.open(epoch, partition, AnswerStream(connection) if answers else None, hello.get("timeout"))
        except HopyardError as error:
            handshake.reply({"failed": str(error)})
            return
        if stream is None:
            handshake.reply({"unwanted": True})
            return
        handshake.reply({"worker": self.index})
        if stream.timeout is not None:
            self._watch(queue)
        try:
            _Attempt(queue, connection, stream, epoch, partition).run()
        finally:
            queue.abandon(stream)

    def _watch(self, queue: FeedQueue) -> None:
        """Start the thread that lets an inference fail whose rows wait too long."""
        with self._lock:
            if queue.name not in self._watched_feeds:
                self._watched_feeds.add(queue.name)
                threading.Thread(target=self._fail_on_stall, args=(queue,), name="feed_stall", daemon=True).start()

    def _fail_on_stall(self, queue: FeedQueue) -> None:
        timeout = queue.await_stall()
        if timeout is not None:
            queue.fail(
                FeedError(
                    f"feed {queue.name!r}: worker {self.index} has neither taken nor answered a row for {timeout:g} "
                    f"seconds, though rows wait for it: does its main read ctx.feed({queue.name!r}) and answer each "
                    "batch? infer(timeout=…) says how long to wait"
                )
            )


class AnswerStream:
    """Sends answers to the task that waits for them. The program's thread answers; any thread may end the stream."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def answer(self, values: Any, rows: int) -> None:
        """Send the answers for the next `rows` rows; OSError when the task has gone."""
        data = pickle.dumps(values, 5)
        with self._lock:
            send(self._connection, PICKLE, data, rows=rows)

    def leave(self, **message: Any) -> None:
        """Tell the task why there are no more answers. If it does not read meanwhile, its connection is shut down."""
        if not self._lock.acquire(timeout=_LEAVE_SECONDS):
            _shut_down(self._connection)
            return
        try:
            with contextlib.suppress(OSError, ValueError):  # the task has gone, and its connection was closed
                ready = select.poll()
                ready.register(self._connection, select.POLLOUT)
                if ready.poll(_LEAVE_SECONDS * 1000):
                    send_message(self._connection, **message)
                else:
                    _shut_down(self._connection)
        finally:
            self._lock.release()


class _Attempt:
    """Receives one attempt at one partition, on its connection."""

    def __init__(self, queue: FeedQueue, connection: socket.socket, stream: Stream, epoch: int, partition: int) -> None:
        self._queue, self._connection, self._stream = queue, connection, stream
        self._epoch, self._partition = epoch, partition
        self._schema: Any = None
        self._rows = 0

    def run(self) -> None:
        while True:
            head = receive_header(self._connection)
            try:
                if head.kind == END:
                    self._queue.end_partition(self._stream, self._epoch, self._partition, head.number)
                    if self._stream.is_request:
                        self._connection.recv(1)  # the connection is the program's now, until the task hangs up
                    else:
                        send_message(self._connection, rows=self._rows)
                    return
                if head.kind == SCHEMA and 0 < head.size <= _MAX_SCHEMA_BYTES:
                    self._schema = pa.ipc.read_schema(pa.py_buffer(read(self._connection, head.size)))
                elif head.kind in (ARROW, PICKLE) and head.size >= 0:
                    if not self._receive_block(head):
                        self._leave(unwanted=True)
                        return
                else:
                    raise ConnectionError(f"a frame of kind {head.kind!r} and {head.size} bytes")
            except HopyardError as error:
                self._leave(failed=str(error))
                return

    def _receive_block(self, head: FrameHeader) -> bool:
        """Receive one block, or skip it where it was accepted before. False: no more are wanted."""
        self._rows += head.rows
        try:
            if not self._stream.is_request and self._queue.is_duplicate(
                self._epoch, self._partition, head.number, head.digest
            ):
                skip(self._connection, head.size)
                return True
            body = self._queue.reserve(self._stream, head.size)
        except HopyardError:
            skip(self._connection, head.size)
            raise
        if body is None:
            skip(self._connection, head.size)
            return False
        try:
            read_into(self._connection, memoryview(body))
        except OSError:
            self._queue.release(head.size)
            raise
        block = Block(head.kind, head.rows, body, self._schema, self._stream, self._partition)
        self._queue.put(block, self._epoch, head.number, head.digest)
        return not self._queue.unwanted

    def _leave(self, **message: Any) -> None:
        """Tell the sender why no more rows are taken, and read what is under way, so that the message arrives."""
        if self._stream.is_request:
            self._stream.reply_to.leave(**message)
        else:
            send_message(self._connection, **message)
        scrap = bytearray(1 << 20)
        while self._connection.recv_into(scrap):
            pass


def _private_folder(folder: Path, resources: contextlib.ExitStack) -> Path:
    """Create a folder of this user alone in `folder`; closing `resources` removes it."""
    folder.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix="feed-", dir=folder)).resolve()
    resources.callback(shutil.rmtree, private, ignore_errors=True)
    return private


def _socket_path(folder: Path, resources: contextlib.ExitStack) -> Path:
    """Return a path of a socket in `folder` that is short enough to bind and connect to. Where the folder's own path is
    too long (a deep TMPDIR), it goes by way of a descriptor of this process, which closing `resources` closes: nothing
    is left behind when the process is killed.
    """
    path = folder / "rows"
    if len(os.fsencode(path)) < _MAX_PATH_BYTES:
        return path
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    resources.callback(os.close, descriptor)
    short_path = Path(f"/proc/{os.getpid()}/fd/{descriptor}/rows")
    if not short_path.parent.exists():
        raise OSError(
            f"the path of the socket {path} on {socket.gethostname()} has {len(os.fsencode(path))} bytes, of which a "
            f"socket may have {_MAX_PATH_BYTES - 1} where there is no /proc; set TMPDIR to a shorter path"
        )
    return short_path


def _unix_listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(512)
    except BaseException:
        listener.close()
        raise
    return listener


def _shut_down(connection: socket.socket) -> None:
    """Wake all threads that wait on a connection. Its owner closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
