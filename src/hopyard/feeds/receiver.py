"""The endpoint of a program's process: sockets on one side, the queues of its feeds on the other.

Each connection that is let in carries one attempt at one partition: a hello that says of which feed, blocks, an end,
and back an acknowledgement or answers. The worker to which an attempt must connect first (`partition % workers`) keeps
the books on who takes it, so that another attempt goes to the same worker. A program that ended its feed, or itself,
drains what still comes; one that died leaves its senders a broken connection.
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

from hopyard.core.programs.messages import Endpoint
from hopyard.core.programs.uneven import Count
from hopyard.errors import HopyardError
from hopyard.feeds.protocol import (
    ARROW,
    END,
    PICKLE,
    SCHEMA,
    Handshake,
    Head,
    executor,
    machine,
    read,
    read_into,
    receive_header,
    send,
    send_message,
    skip,
)
from hopyard.feeds.queue import QUEUE_BYTES, FeedQueue
from hopyard.feeds.streams import Block, Stream
from hopyard.system.network import LOOPBACK, is_loopback

log = logging.getLogger(__name__)

_LONGEST = 100
"""Bytes of a unix socket's path; systems end at 104 to 108."""
_SCHEMA_BYTES = 64 << 20
_LEAVE_SECONDS = 1.0
_ACCEPT_SECONDS = 0.1
"""Until an endpoint that could not take a connection (no descriptors are left, …) tries again."""


class FeedServer:
    """Owner of the endpoint and the queues of one process of a program. Threads of its own listen and receive.

    Args:
        folder: where the socket's folder is made, and blocks beyond the limit lie.
        host: address of this process that other machines can dial.
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
        self._guarded: set[str] = set()
        """Feeds that a thread guards against a program which does not answer."""
        self._done = False
        self._error = ""
        """Why it is done, where the program failed."""
        self._closed = False
        self._folder = folder
        port = 0
        with contextlib.ExitStack() as opened:
            path = _dialable(_private(folder, opened), opened)
            self._listeners = [opened.enter_context(_listening(path))]
            if apart:
                here = socket.create_server((LOOPBACK if is_loopback(host) else host, 0), backlog=512)
                self._listeners.append(opened.enter_context(here))
                port = int(here.getsockname()[1])
            self._opened = opened.pop_all()
        self.endpoint = Endpoint(machine(), str(path), host if apart else "", port, executor())
        for listener in self._listeners:
            threading.Thread(target=self._listen, args=(listener,), name="feed_server", daemon=True).start()

    def queue(self, feed: str) -> FeedQueue:
        """That of a feed; made when it is first named, by the program or by a task."""
        with self._lock:
            queue = self._queues.get(feed)
            late = queue is None and self._done
            if queue is None:
                queue = self._queues[feed] = FeedQueue(feed, self._folder, self._limit, self._on_count)
        if late:  # without the lock, as it tells
            self._end(queue)
        return queue

    def finish(self, error: str = "") -> None:
        """The program is through with all feeds, also those to come, as when its main has returned; tasks are told, and
        drained. Where it failed, they fail with its error; the first one counts.
        """
        with self._lock:
            self._done = True
            self._error = self._error or error
            queues = list(self._queues.values())
        for queue in queues:
            self._end(queue)

    def close(self) -> None:
        """Close the endpoint and cut all connections: to who still sends, this worker has ended."""
        with self._lock:
            self._closed = True
            connections = [*self._listeners, *self._connections]
        for connection in connections:
            _cut(connection)
        self.finish()
        self._opened.close()

    def _end(self, queue: FeedQueue) -> None:
        if self._error:
            queue.fail(HopyardError(self._error))
        else:
            queue.terminate()

    def _listen(self, listener: socket.socket) -> None:
        short = False
        while True:
            try:
                connection, _ = listener.accept()
                self._received(connection)
                short = False
            except (OSError, RuntimeError) as error:  # closed; or no descriptor, no thread is left, who dialed has gone
                if self._closed:
                    return
                if not short:  # once, not ten times a second
                    log.warning("the endpoint for rows could not take a connection, and goes on trying: %s", error)
                short = True
                time.sleep(_ACCEPT_SECONDS)

    def _received(self, connection: socket.socket) -> None:
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._connections.add(connection)
        try:
            threading.Thread(target=self._serve, args=(connection,), name="feed_server", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._connections.discard(connection)
            connection.close()
            raise

    def _serve(self, connection: socket.socket) -> None:
        handshake = Handshake(connection, self._token)
        try:
            self._admitted(connection, handshake, handshake.admit())
        except (OSError, ValueError, KeyError) as error:
            log.debug("a connection to the feed ended: %s", error)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _admitted(self, connection: socket.socket, handshake: Handshake, hello: dict[str, Any]) -> None:
        queue = self.queue(hello["feed"])
        epoch, partition = int(hello["epoch"]), int(hello["partition"])
        answers = bool(hello.get("answers"))
        try:
            if not answers:
                queue.uneven = hello.get("uneven", "join")
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
            queue.lost(stream)

    def _watch(self, queue: FeedQueue) -> None:
        """Let an inference fail whose rows wait too long."""
        with self._lock:
            if queue.name not in self._guarded:
                self._guarded.add(queue.name)
                threading.Thread(target=self._guard, args=(queue,), name="feed_stall", daemon=True).start()

    def _guard(self, queue: FeedQueue) -> None:
        timeout = queue.await_stall()
        if timeout is not None:
            queue.fail(
                HopyardError(
                    f"feed {queue.name!r}: worker {self.index} has neither taken nor answered a row for {timeout:g} "
                    f"seconds, though rows wait for it: does its main read ctx.feed({queue.name!r}) and answer each "
                    "batch? infer(timeout=…) says how long to wait"
                )
            )


class AnswerStream:
    """The way back to a task that waits for answers. The program's thread answers; any thread may end it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def answer(self, values: Any, rows: int) -> None:
        """Answers for the next `rows` rows; OSError when the task has gone."""
        data = pickle.dumps(values, 5)
        with self._lock:
            send(self._connection, PICKLE, data, rows=rows)

    def leave(self, **words: Any) -> None:
        """Say why there are no more answers. A task that is not reading meanwhile finds a broken connection instead."""
        if not self._lock.acquire(timeout=_LEAVE_SECONDS):
            _cut(self._connection)
            return
        try:
            with contextlib.suppress(OSError, ValueError):  # the task has gone, and its connection was closed
                ready = select.poll()
                ready.register(self._connection, select.POLLOUT)
                if ready.poll(_LEAVE_SECONDS * 1000):
                    send_message(self._connection, **words)
                else:
                    _cut(self._connection)
        finally:
            self._lock.release()


class _Attempt:
    """One attempt at one partition, on its connection."""

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
                    self._queue.over(self._stream, self._epoch, self._partition, head.number)
                    if self._stream.is_request:
                        self._connection.recv(1)  # the connection is the program's now, until the task hangs up
                    else:
                        send_message(self._connection, rows=self._rows)
                    return
                if head.kind == SCHEMA and 0 < head.size <= _SCHEMA_BYTES:
                    self._schema = pa.ipc.read_schema(pa.py_buffer(read(self._connection, head.size)))
                elif head.kind in (ARROW, PICKLE) and head.size >= 0:
                    if not self._block(head):
                        self._leave(unwanted=True)
                        return
                else:
                    raise ConnectionError(f"a frame of kind {head.kind!r} and {head.size} bytes")
            except HopyardError as error:
                self._leave(failed=str(error))
                return

    def _block(self, head: Head) -> bool:
        """Receive one block, or skip it where it was taken before. False: no more are wanted."""
        self._rows += head.rows
        try:
            if not self._stream.is_request and self._queue.seen(self._epoch, self._partition, head.number, head.digest):
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

    def _leave(self, **words: Any) -> None:
        """Say why no more is taken, and take what is under way, so that the words arrive."""
        if self._stream.is_request:
            self._stream.reply_to.leave(**words)
        else:
            send_message(self._connection, **words)
        scrap = bytearray(1 << 20)
        while self._connection.recv_into(scrap):
            pass


def _private(folder: Path, opened: contextlib.ExitStack) -> Path:
    """A folder of this user alone, in `folder`; removed with `opened`."""
    folder.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix="feed-", dir=folder)).resolve()
    opened.callback(shutil.rmtree, private, ignore_errors=True)
    return private


def _dialable(folder: Path, opened: contextlib.ExitStack) -> Path:
    """Path of a socket in `folder` that is short enough to be bound and dialed. One that is too long (a deep TMPDIR)
    leads by way of a descriptor of this process, which `opened` closes: this leaves nothing behind when it is killed.
    """
    path = folder / "rows"
    if len(os.fsencode(path)) < _LONGEST:
        return path
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    opened.callback(os.close, held)
    short = Path(f"/proc/{os.getpid()}/fd/{held}/rows")
    if not short.parent.exists():
        raise OSError(
            f"the path of the socket {path} on {socket.gethostname()} has {len(os.fsencode(path))} bytes, of which a "
            f"socket may have {_LONGEST - 1} where there is no /proc; set TMPDIR to a shorter path"
        )
    return short


def _listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(512)
    except BaseException:
        listener.close()
        raise
    return listener


def _cut(connection: socket.socket) -> None:
    """Wake whoever waits on it. The owner closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
