"""The client end of a feed: it sends rows from a Spark task, or from the driver, to the processes of a program.

A partition goes to one worker, block by block, over one connection; a full queue of the worker holds the task up. The
worker is one in the executor of the task, else one of its machine, else any, by the partition's number; the worker
`partition % workers` is asked first, so that a second attempt at a partition never goes elsewhere. Blocks are Arrow
record batches, or lists of Python rows. Knows nothing of Spark.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from blake3 import blake3

from hopyard.code.modules import child_main
from hopyard.code.pickling import dumps
from hopyard.core.programs.messages import Endpoint
from hopyard.errors import FeedError, HopyardError
from hopyard.feeds.protocol import (
    ARROW,
    END,
    PICKLE,
    SCHEMA,
    connect,
    executor,
    machine,
    receive_header,
    receive_message,
    send,
)
from hopyard.feeds.rows import packed
from hopyard.system.network import read

PIECE = 4 << 20
"""Bytes of a block, about. A batch of Spark (10,000 rows) may have 60 MB; in pieces it is hashed, sent and received at
the same time, and from the processor's cache."""


@dataclass(frozen=True, slots=True)
class Route:
    """The endpoints and settings of one feed, for those that send its rows."""

    endpoints: tuple[Endpoint, ...]
    """Endpoints of the workers that are fed, by rank."""
    token: str = field(repr=False)
    feed: str = "train"
    epoch: int = 0
    """Number of the epoch; an inference counts none."""
    uneven: str = "allow"
    timeout: float | None = None
    """For an inference: seconds for which a worker may neither take nor answer a row while rows wait for it."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """The outcome of sending one partition."""

    rows: int
    worker: int
    unwanted: bool = False
    """The program took no more rows, by its own choice."""


def send_partition(route: Route, partition: int, blocks: Iterable[Any], worker: int | None = None) -> SendResult:
    """Send one attempt at a partition; return when the worker has it in its queue.

    Args:
        route: the feed to send to.
        partition: its number; no other of this epoch has it.
        blocks: record batches, or lists of Python rows.
        worker: which should take it; None: the nearest.

    Raises:
        ConnectionError: the worker ended; names it.
        FeedError: the feed failed; with its reason.
    """
    with FeedConnection(route, partition, worker=worker) as connection:
        number = rows = 0
        for kind, body, count in framed(blocks) if not connection.unwanted else ():
            if kind == SCHEMA:
                connection.send(kind, body)
                continue
            connection.send(kind, body, number, count, blake3(body).digest(16))
            if connection.unwanted:
                break
            number, rows = number + 1, rows + count
        if not connection.unwanted:
            connection.send(END, b"", number, rows)
            connection.await_acknowledgement(rows)
        return SendResult(rows, connection.worker, connection.unwanted)


def choose_worker(endpoints: Sequence[Endpoint], partition: int) -> int:
    """Return the worker that should take a partition that is computed here."""
    first = partition % len(endpoints)
    here, this_machine = executor(), machine()
    in_executor = [number for number, endpoint in enumerate(endpoints) if here and endpoint.executor == here]
    on_machine = [number for number, endpoint in enumerate(endpoints) if endpoint.machine == this_machine]
    nearest = in_executor or on_machine or [first]
    return first if first in nearest else nearest[partition % len(nearest)]


def framed(blocks: Iterable[Any]) -> Iterator[tuple[bytes, Any, int]]:
    """Frames as (kind, body, rows): a schema whenever it changes, record batches in pieces, other rows pickled."""
    schema: Any = None
    for rows_or_batch in blocks:
        block = rows_or_batch if isinstance(rows_or_batch, pa.RecordBatch) else packed(rows_or_batch)
        if not isinstance(block, pa.RecordBatch):
            yield PICKLE, dumps(block, modules=child_main()), len(block)  # classes of the user's script by value
            continue
        block = _decode_dictionaries(block)
        if schema is None or not schema.equals(block.schema, check_metadata=True):
            schema = block.schema
            yield SCHEMA, schema.serialize(), 0
        rows = block.num_rows
        step = max(1, rows * PIECE // max(1, block.nbytes))
        for start in range(0, rows, step):
            piece = block.slice(start, step) if step < rows else block
            yield ARROW, piece.serialize(), piece.num_rows


def _decode_dictionaries(block: Any) -> Any:
    """Return the batch without dictionaries, which a batch by itself does not carry."""
    if not any(pa.types.is_dictionary(kind) for kind in block.schema.types):
        return block
    columns = [part.dictionary_decode() if pa.types.is_dictionary(part.type) else part for part in block.columns]
    return pa.RecordBatch.from_arrays(columns, names=block.schema.names)


class FeedConnection:
    """The connection to the worker that takes a partition.

    Its methods raise:
        ConnectionError: the worker ended; names it.
        FeedError: the feed failed; with its reason.
    """

    def __init__(self, route: Route, partition: int, answers: bool = False, worker: int | None = None) -> None:
        self._route, self._partition, self._answers = route, partition, answers
        self.unwanted = False
        """The worker takes no more rows."""
        self.closed = False
        preferred = choose_worker(route.endpoints, partition) if worker is None else worker
        self.worker = preferred if answers else partition % len(route.endpoints)
        hello = {
            "feed": route.feed,
            "epoch": route.epoch,
            "partition": partition,
            "worker": preferred,
            "uneven": route.uneven,
            "answers": answers,
            "timeout": route.timeout,
        }
        reply = self._connect(hello)
        if reply.get("worker", self.worker) != self.worker:
            self._connection.close()
            self.worker = int(reply["worker"])
            reply = self._connect(hello | {"claimed": True})
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        try:
            self._handle_reply(reply)
        except HopyardError:
            self._connection.close()
            raise

    def __enter__(self) -> FeedConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a thread that sends or reads is woken."""
        if not self.closed:
            self.closed = True
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()

    def send(self, kind: bytes, body: Any, number: int = 0, rows: int = 0, digest: bytes = b"") -> None:
        """Send a frame; waits while the worker's queue is full. Sets `unwanted` when the worker says so."""
        try:
            send(self._connection, kind, body, number, rows, digest)
        except OSError as error:
            if self._answers:
                raise self._connection_error(error) from None
            self._receive()  # the worker may have sent the reason
            return
        if not self._answers and kind != END and self._poll.poll(0):
            self._receive()

    def await_acknowledgement(self, rows: int) -> None:
        """Wait until the worker has all rows."""
        reply = self._receive()
        if not self.unwanted and reply.get("rows") != rows:
            raise self._connection_error(f"it has {reply.get('rows')} rows of {rows}")

    def answer(self) -> tuple[Any, int]:
        """Return the next answer and its number of rows; (None, 0) where the worker takes no more rows."""
        try:
            head = receive_header(self._connection)
            if head.kind == PICKLE:
                return pickle.loads(read(self._connection, head.size)), head.rows  # noqa: S301 - the worker showed the token
            reply = receive_message(self._connection, head)
        except OSError as error:
            raise self._connection_error(error) from None
        self._handle_reply(reply)
        return None, 0

    def _connect(self, hello: dict[str, Any]) -> dict[str, Any]:
        try:
            self._connection, reply = connect(self._route.endpoints[self.worker], self._route.token, hello)
        except OSError as error:
            raise self._connection_error(error) from None
        return reply

    def _receive(self) -> dict[str, Any]:
        try:
            reply = receive_message(self._connection, receive_header(self._connection))
        except OSError as error:
            raise self._connection_error(error) from None
        self._handle_reply(reply)
        return reply

    def _handle_reply(self, reply: dict[str, Any]) -> None:
        if "failed" in reply:
            raise FeedError(reply["failed"])
        self.unwanted = bool(reply.get("unwanted"))

    def _connection_error(self, reason: object) -> ConnectionError:
        inference_hint = (
            "; an inference is computed each time its result is used, so use it before the program ends, and call "
            "program.infer again where it was started again; the driver logs what the program failed of, and "
            "program.wait() raises it"
        )
        hint = inference_hint if self._answers else "; its own error, if any, is in the program's log"
        return ConnectionError(
            f"worker {self.worker} of the program has ended, or cannot be reached, while it was to take partition "
            f"{self._partition} of feed {self._route.feed!r} ({reason}){hint}"
        )
