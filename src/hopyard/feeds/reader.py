"""The program's end of a feed: its share of the rows, batch by batch."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from hopyard.checks import column_names, seconds, whole
from hopyard.errors import DataError, SpecError
from hopyard.feeds.adapters import dataset
from hopyard.feeds.decode import columns_of, rows_of
from hopyard.feeds.queue import FeedQueue
from hopyard.feeds.streams import Block, Piece, Stream
from hopyard.formats.arrow import Array
from hopyard.text import shown

REPEAT_BYTES = 64 << 20
"""Bytes of a feed's first rows that are kept in memory for uneven="cycle"."""


class Feed:
    """The rows of one feed that come to this process. `ctx.feed(name)` returns it; one thread uses it.

    Batches have exactly the size that is asked for, except the last one; in inference they end with each partition.
    Rows of a block that one call leaves go to the next call, whichever way it asks for rows.
    """

    def __init__(self, queue: FeedQueue) -> None:
        self._queue = queue
        self._pid = os.getpid()
        self._pieces: deque[Piece] = deque()
        self._rows = 0
        """Total rows in all pieces."""
        self._batch_number = 0
        """Number of the next batch."""
        self._repeatable: list[list[Piece]] = []
        """The first batches of a feed that repeats them."""
        self._repeat_bytes = 0
        self._repeats = 0
        self._unanswered: deque[tuple[Stream, int]] = deque()
        """In inference: batches that have no answer yet."""

    @property
    def should_stop(self) -> bool:
        """Whether no rows are left: the feed has ended and all of it was taken, or `terminate` was called."""
        return not self._rows and self._queue.finished

    def terminate(self) -> None:
        """Take no more rows: what is queued is dropped, and tasks that still send end at once, without an error."""
        self._queue.terminate()
        self._pieces.clear()
        self._rows = 0

    def batches(
        self, size: int, timeout: float | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[dict[str, Array]]:
        """Batches as dicts from column to array of shape (size, …).

        Numbers have shape (size,), arrays of one length (size, length), vectors of pyspark.ml the same in float64,
        text and bytes are objects. Rows of an RDD have the columns "_1", "_2", …, single values "value". Arrays belong
        to the caller, who may change them.

        Args:
            size: rows of a batch.
            timeout: seconds after which rows that have come are given as a batch, though there are fewer; None: never.
                It has no effect where workers end together.
            columns: the columns to decode; None: all. Others may hold anything: nulls, lists of any length, structs.

        Raises:
            SpecError: `size` is no integer >= 1, `timeout` no number of seconds, or `columns` no list of names.
            DataError: a column has nulls, or lists that differ in length; names it.
            FeedError: the feed has failed; with its reason.
        """
        return self._column_batches(whole("size", size, 1), _seconds(timeout), _names(columns))

    def rows(self, size: int, timeout: float | None = None) -> Iterator[list[Any]]:
        """Batches as lists of Python rows: those of an RDD as they were, those of a DataFrame as tuples.

        `size`, `timeout` and errors as for `batches`.
        """
        return self._row_batches(whole("size", size, 1), _seconds(timeout))

    def dataset(self, size: int, framework: str = "tensorflow", columns: Sequence[str] | None = None) -> Any:
        """Batches as a `tf.data.Dataset` or a torch `IterableDataset` whose items are dicts from column to tensor.

        It goes over the rows once, as `batches(size, columns=columns)` does: what one iteration has taken, no other
        gets. For TensorFlow the first rows are waited for here, as their types are needed, and auto-sharding is off:
        each task has its own share already. With a torch DataLoader: `batch_size=None`, `num_workers=0`.

        Raises:
            SpecError: another framework than "tensorflow" or "torch"; from a DataLoader with other `num_workers`, as
                no other process can read the feed.
        """
        names = _names(columns)
        return dataset(framework, partial(self.batches, size, columns=names), partial(self._first, names))

    def __reduce__(self) -> NoReturn:
        refuse_process(self._queue.name)

    def answer(self, values: Any) -> None:
        """In inference: answer the oldest batch that has no answer yet, with one value for each row.

        Args:
            values: a list, an array or tensor of shape (rows, …), or a dict from column to such values. For a
                DataFrame, the columns of its schema.

        Raises:
            DataError: there are not as many values as rows in the batch; the waiting task fails with the same message.
        """
        name = self._queue.name
        if not self._unanswered:
            raise DataError(f"feed {name!r}: no batch waits for an answer; each batch of an inference takes one")
        stream, rows = self._unanswered.popleft()
        answers = (
            {str(key): _as_array(part) for key, part in values.items()}
            if isinstance(values, Mapping)
            else _as_array(values)
        )
        lengths = {len(part) for part in answers.values()} if isinstance(answers, dict) else {len(answers)}
        if lengths != {rows}:
            counts = " and ".join(str(length) for length in sorted(lengths)) or "no"
            error = DataError(
                f"feed {name!r}: answers must be one value for each row, in their order, got {counts} values to a "
                f"batch of {rows} rows (partition {stream.partition})"
            )
            self._queue.fail(error)
            raise error
        try:
            with self._queue.answering(stream, rows):
                stream.reply_to.answer(answers, rows)
        except OSError:  # the task has gone: Spark took it back, or wanted only some rows
            self._queue.abandon(stream)

    def _column_batches(
        self, size: int, timeout: float | None, names: Sequence[str] | None
    ) -> Iterator[dict[str, Array]]:
        while pieces := self._batch(size, timeout):
            columns = self._decode(partial(columns_of, pieces, self._queue.name, names))
            # the program gets copies of pieces that are read again
            yield {name: part.copy() for name, part in columns.items()} if self._repeatable else columns

    def _row_batches(self, size: int, timeout: float | None) -> Iterator[list[Any]]:
        while pieces := self._batch(size, timeout):
            yield self._decode(partial(rows_of, pieces))

    def _batch(self, size: int, timeout: float | None) -> list[Piece]:
        self._check_process()
        rule = self._queue.rule()
        is_repeat = False
        if rule != "allow":
            turn = self._queue.turn(self._batch_number, size)
            if turn == "end":
                self.terminate()
                return []
            is_repeat = turn == "again"
            timeout = None
        pieces = self._next_repeat() if is_repeat else self._gather(size, timeout)
        self._batch_number += bool(pieces)
        if rule == "cycle" and pieces and not is_repeat and self._repeat_bytes < REPEAT_BYTES:
            self._repeatable.append(pieces)
            self._repeat_bytes += sum(len(piece.block.body) for piece in pieces if not piece.start)
        if pieces and pieces[0].block.stream.is_request:
            stream, rows = pieces[0].block.stream, sum(piece.stop - piece.start for piece in pieces)
            stream.unanswered += rows
            self._unanswered.append((stream, rows))
        return pieces

    def _first(self, names: Sequence[str] | None) -> dict[str, Array] | None:
        """The row that the next batch will begin with; None when there is none."""
        self._check_process()
        while not self._pieces:
            item = self._queue.take()
            if item.kind == "end":
                return None
            if item.block is not None:
                self._add(item.block)
        first = self._pieces[0]
        row = [Piece(first.block, first.start, first.start + 1)]
        return dict(self._decode(partial(columns_of, row, self._queue.name, names)))

    def _check_process(self) -> None:
        if os.getpid() != self._pid:  # before any lock, which this process may have inherited locked
            refuse_process(self._queue.name)

    def _add(self, block: Block) -> None:
        self._pieces.append(Piece(block, 0, block.rows))
        self._rows += block.rows

    def _next_repeat(self) -> list[Piece]:
        """The next of the first batches, which are repeated in turn."""
        if not self._repeatable:
            raise DataError(
                f'feed {self._queue.name!r}: this worker got no rows, and by uneven="cycle" it should repeat some; '
                "make at least as many partitions as there are workers (df.repartition)"
            )
        pieces = self._repeatable[self._repeats % len(self._repeatable)]
        self._repeats += 1
        return pieces

    def _gather(self, size: int, timeout: float | None) -> list[Piece]:
        deadline = None
        while self._rows < size:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            item = self._queue.take(remaining)
            if item.block is not None:
                self._add(item.block)
                if timeout is not None and deadline is None:
                    deadline = time.monotonic() + timeout
            elif item.kind == "lost":
                self._pieces.clear()
                self._rows = 0
                deadline = None
            elif self._rows or item.kind == "end":
                break
        return self._split(min(size, self._rows))

    def _split(self, rows: int) -> list[Piece]:
        pieces = []
        self._rows -= rows
        while rows:
            first = self._pieces[0]
            stop = min(first.stop, first.start + rows)
            pieces.append(Piece(first.block, first.start, stop))
            rows -= stop - first.start
            first.start = stop
            if stop == first.stop:
                self._pieces.popleft()
        return pieces

    def _decode(self, decode: Callable[[], Any]) -> Any:
        try:
            return decode()
        except DataError as error:
            self._queue.fail(error)
            raise


def refuse_process(name: str) -> NoReturn:
    """Raise SpecError: feed `name` was used in another process than the task's, which would get copies of rows, or
    wait forever."""
    raise SpecError(
        f"feed {name!r} can be read in the task's own process only, as its rows arrive there; give a torch DataLoader "
        "num_workers=0, and read the feed before other processes get its rows"
    )


def _names(columns: Any) -> Sequence[str] | None:
    if columns is None:
        return None
    if names := column_names(columns):
        return names
    raise SpecError(f"columns must be a list of names, or None for all, got {shown(columns)}")


def _seconds(timeout: Any) -> float | None:
    return None if timeout is None else seconds("timeout", timeout, zero=True, none="for any")


def _as_array(values: Any) -> Any:
    """Return lists as they are, tensors of any framework as arrays."""
    if isinstance(values, (list, tuple, np.ndarray)):
        return values
    for name in ("detach", "cpu"):  # torch
        values = getattr(values, name, lambda values=values: values)()
    return np.asarray(values)
