"""Rows out of a Spark task, or the driver, into the processes of a program: what runs where the rows are.

A partition goes to one worker, block by block, over one connection; a full queue of the worker holds the task up. Which
worker: one in the executor of the task, else one of its machine, else any, by the partition's number; the worker
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

import cloudpickle
import pyarrow as pa
from blake3 import blake3

from hopyard.core.programs.messages import Endpoint
from hopyard.errors import HopyardError
from hopyard.feeds.protocol import (
    ARROW,
    END,
    PICKLE,
    SCHEMA,
    connect,
    executor,
    machine,
    read,
    receive_header,
    receive_message,
    send,
)
from hopyard.feeds.rows import packed

PIECE = 4 << 20
"""Bytes of a block, about. A batch of Spark (10,000 rows) may have 60 MB; in pieces it is hashed, sent and taken at the
same time, and from the processor's cache."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where the rows of one feed go."""

    endpoints: tuple[Endpoint, ...]
    """Endpoints of the workers that are fed, by rank."""
    token: str = field(repr=False)
    feed: str = "train"
    epoch: int = 0
    """Number of the epoch; an inference has none to count."""
    uneven: str = "join"
    timeout: float | None = None
    """For an inference: seconds that a worker may take and answer nothing at all while rows wait for it."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """What became of one partition."""

    rows: int
    worker: int
    unwanted: bool = False
    """The program took no more rows, by its own choice."""


def send_partition(
    route: Route, partition: int, attempt: int, blocks: Iterable[Any], worker: int | None = None
) -> SendResult:
    """Send one attempt at a partition; returns when the worker has it in its queue.

    Args:
        route: where to.
        partition: its number; no other of this epoch has it.
        attempt: which try at it this is, for logs.
        blocks: record batches, or lists of Python rows.
        worker: that should take it; None: the nearest.

    Raises:
        ConnectionError: the worker ended; names it.
        HopyardError: the feed failed; with its reason.
    """
    with FeedConnection(route, partition, attempt, worker=worker) as connection:
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
            connection.acknowledged(rows)
        return SendResult(rows, connection.worker, connection.unwanted)


def chosen(endpoints: Sequence[Endpoint], partition: int) -> int:
    """Which worker should take a partition that is computed here."""
    first = partition % len(endpoints)
    here = executor()
    inside = [number for number, endpoint in enumerate(endpoints) if here and endpoint.executor == here]
    if inside:
        return first if first in inside else inside[partition % len(inside)]
    this = machine()
    near = [number for number, endpoint in enumerate(endpoints) if endpoint.machine == this]
    return first if first in near or not near else near[partition % len(near)]


def framed(blocks: Iterable[Any]) -> Iterator[tuple[bytes, Any, int]]:
    """Blocks as (kind, body, rows): a schema whenever it changes, record batches in pieces, other rows pickled."""
    schema: Any = None
    for rows_or_batch in blocks:
        block = rows_or_batch if isinstance(rows_or_batch, pa.RecordBatch) else packed(rows_or_batch)
        if not isinstance(block, pa.RecordBatch):
            yield PICKLE, cloudpickle.dumps(block, 5), len(block)  # classes of the user's script by value
            continue
        block = _plain(block)
        if schema is None or not schema.equals(block.schema, check_metadata=True):
            schema = block.schema
            yield SCHEMA, schema.serialize(), 0
        rows = block.num_rows
        step = max(1, rows * PIECE // max(1, block.nbytes))
        for start in range(0, rows, step):
            piece = block.slice(start, step) if step < rows else block
            yield ARROW, piece.serialize(), piece.num_rows


def _plain(block: Any) -> Any:
    """Without dictionaries, which a batch by itself does not carry."""
    if not any(pa.types.is_dictionary(kind) for kind in block.schema.types):
        return block
    columns = [part.dictionary_decode() if pa.types.is_dictionary(part.type) else part for part in block.columns]
    return pa.RecordBatch.from_arrays(columns, names=block.schema.names)


class FeedConnection:
    """The connection to the worker that takes a partition.

    Raises, in all that it does:
        ConnectionError: the worker ended; names it.
        HopyardError: the feed failed; with its reason.
    """

    def __init__(
        self, route: Route, partition: int, attempt: int, answers: bool = False, worker: int | None = None
    ) -> None:
        self._route, self._partition, self._answers = route, partition, answers
        self.unwanted = False
        """The worker takes no more rows."""
        self.closed = False
        wanted = chosen(route.endpoints, partition) if worker is None else worker
        self.worker = wanted if answers else partition % len(route.endpoints)
        hello = {
            "feed": route.feed,
            "epoch": route.epoch,
            "partition": partition,
            "attempt": attempt,
            "worker": wanted,
            "uneven": route.uneven,
            "answers": answers,
            "timeout": route.timeout,
        }
        words = self._connect(hello)
        if words.get("worker", self.worker) != self.worker:
            self._connection.close()
            self.worker = int(words["worker"])
            words = self._connect(hello | {"claimed": True})
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        try:
            self._heed(words)
        except HopyardError:
            self._connection.close()
            raise

    def __enter__(self) -> FeedConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; a thread that sends or reads is woken."""
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
                raise self._gone(error) from None
            self._receive()  # it may have said why
            return
        if not self._answers and kind != END and self._poll.poll(0):
            self._receive()

    def acknowledged(self, rows: int) -> None:
        """Wait until the worker has all rows."""
        words = self._receive()
        if not self.unwanted and words.get("rows") != rows:
            raise self._gone(f"it has {words.get('rows')} rows of {rows}")

    def answer(self) -> tuple[Any, int]:
        """The next answer, and for how many rows it is; (None, 0) where the worker takes no more rows."""
        try:
            head = receive_header(self._connection)
            if head.kind == PICKLE:
                return pickle.loads(read(self._connection, head.size)), head.rows  # noqa: S301 - it showed the token
            words = receive_message(self._connection, head)
        except OSError as error:
            raise self._gone(error) from None
        self._heed(words)
        return None, 0

    def _connect(self, hello: dict[str, Any]) -> dict[str, Any]:
        try:
            self._connection, words = connect(self._route.endpoints[self.worker], self._route.token, hello)
        except OSError as error:
            raise self._gone(error) from None
        return words

    def _receive(self) -> dict[str, Any]:
        try:
            words = receive_message(self._connection, receive_header(self._connection))
        except OSError as error:
            raise self._gone(error) from None
        self._heed(words)
        return words

    def _heed(self, words: dict[str, Any]) -> None:
        if "failed" in words:
            raise HopyardError(words["failed"])
        self.unwanted = bool(words.get("unwanted"))

    def _gone(self, why: object) -> ConnectionError:
        hint = (
            "; an inference is computed each time its result is used, so use it before the program ends, and call "
            "program.infer again where it was started again; the driver logs what the program failed of, and "
            "program.wait() raises it"
        )
        more = hint if self._answers else "; its own error, if any, is in the program's log"
        return ConnectionError(
            f"worker {self.worker} of the program has ended, or cannot be reached, while it was to take partition "
            f"{self._partition} of feed {self._route.feed!r} ({why}){more}"
        )
