"""What a program holds: its share of the rows that are fed to it, batch by batch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.checks import seconds, whole
from hopyard.errors import DataError
from hopyard.feeds.adapters import dataset
from hopyard.feeds.decode import columns_of, rows_of
from hopyard.feeds.queue import FeedQueue
from hopyard.feeds.streams import Block, Stream
from hopyard.formats.arrow import Array

KEPT = 64 << 20
"""Bytes of a feed's first rows that are kept for uneven="repeat"."""


@dataclass(slots=True)
class _Piece:
    """Rows of one block, from `start` on."""

    block: Block
    start: int
    stop: int


class Feed:
    """The rows of one feed that come to this process. Made by `ctx.feed(name)`; one thread uses it.

    Batches have exactly the size that is asked for, except the last one; in inference they end with each partition.
    What one call leaves of a block is the next one's, whichever way it asks for rows.
    """

    def __init__(self, queue: FeedQueue) -> None:
        self._queue = queue
        self._pieces: deque[_Piece] = deque()
        self._rows = 0
        """Total rows in all pieces."""
        self._given = 0
        """Batches."""
        self._kept: list[list[_Piece]] = []
        """First batches of a feed that repeats."""
        self._kept_bytes = 0
        self._again = 0
        self._asked: deque[tuple[Stream, int]] = deque()
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

    def batches(self, size: int, wait: float | None = None) -> Iterator[dict[str, Array]]:
        """Batches as dicts from column to array of shape (size, …).

        Numbers have shape (size,), arrays of one length (size, length), vectors of pyspark.ml the same in float64,
        text and bytes are objects. Rows of an RDD have the columns "_1", "_2", …, single values "value". Arrays belong
        to the caller, who may change them.

        Args:
            size: rows of a batch.
            wait: seconds after which rows that have come are given as a batch, though there are fewer; None: never. Of
                no meaning where workers end together.

        Raises:
            SpecError: `size` is no integer >= 1, or `wait` no number of seconds.
            DataError: a column has nulls, or lists that differ in length; names it.
            HopyardError: the feed has failed; with its reason.
        """
        return self._columns(whole("size", size, 1), _time(wait))

    def rows(self, size: int, wait: float | None = None) -> Iterator[list[Any]]:
        """Batches as lists of Python rows: those of an RDD as they were, those of a DataFrame as tuples.

        Arguments and errors as for `batches`.
        """
        return self._python(whole("size", size, 1), _time(wait))

    def dataset(self, size: int, framework: str = "tensorflow") -> Any:
        """Batches as a `tf.data.Dataset` or a torch `IterableDataset`, of dicts from column to tensor.

        It goes over the rows once, as `batches(size)` does: what one iteration has taken, no other gets. For TensorFlow
        the first rows are waited for here, as their types are needed. With a torch DataLoader: `batch_size=None`,
        `num_workers=0`.

        Raises:
            SpecError: another framework than "tensorflow" or "torch".
        """
        return dataset(framework, lambda: self.batches(size), self._first)

    def answer(self, values: Any) -> None:
        """In inference: what the program makes of the oldest batch that has no answer yet, one value for each row.

        Args:
            values: a list, an array or tensor of shape (rows, …), or a dict of such from column to values. For a
                DataFrame, the columns of its schema.

        Raises:
            DataError: there are not as many values as rows in the batch; the task that waits fails with the same words.
        """
        name = self._queue.name
        if not self._asked:
            raise DataError(f"feed {name!r}: no batch waits for an answer; each batch of an inference takes one")
        stream, rows = self._asked.popleft()
        answers = (
            {str(key): _plain(part) for key, part in values.items()} if isinstance(values, Mapping) else _plain(values)
        )
        lengths = {len(part) for part in answers.values()} if isinstance(answers, dict) else {len(answers)}
        if lengths != {rows}:
            got = " and ".join(str(length) for length in sorted(lengths)) or "no"
            error = DataError(
                f"feed {name!r}: answers must be one value for each row, in their order, got {got} values to a "
                f"batch of {rows} rows (partition {stream.partition})"
            )
            self._queue.fail(error)
            raise error
        try:
            with self._queue.answering(stream, rows):
                stream.reply_to.answer(answers, rows)
        except OSError:  # the task has gone: Spark took it back, or wanted only some rows
            self._queue.lost(stream)

    def _columns(self, size: int, wait: float | None) -> Iterator[dict[str, Array]]:
        while pieces := self._batch(size, wait):
            columns = self._guarded(columns_of, pieces)
            yield {name: part.copy() for name, part in columns.items()} if self._kept else columns  # these come again

    def _python(self, size: int, wait: float | None) -> Iterator[list[Any]]:
        while pieces := self._batch(size, wait):
            yield self._guarded(rows_of, pieces)

    def _batch(self, size: int, wait: float | None) -> list[_Piece]:
        rule = self._queue.rule()
        again = False
        if rule != "join":
            turn = self._queue.turn(self._given, size)
            if turn == "end":
                self.terminate()
                return []
            again = turn == "again"
            wait = None
        pieces = self._repeated() if again else self._gathered(size, wait)
        self._given += bool(pieces)
        if rule == "repeat" and pieces and not again and self._kept_bytes < KEPT:
            self._kept.append(pieces)
            self._kept_bytes += sum(len(piece.block.body) for piece in pieces if not piece.start)
        if pieces and pieces[0].block.stream.is_request:
            stream, rows = pieces[0].block.stream, sum(piece.stop - piece.start for piece in pieces)
            stream.owed += rows
            self._asked.append((stream, rows))
        return pieces

    def _first(self) -> dict[str, Array] | None:
        """A row that the next batch will begin with; None when there is none."""
        while not self._pieces:
            item = self._queue.take()
            if item.what == "end":
                return None
            if item.block is not None:
                self._hold(item.block)
        first = self._pieces[0]
        return dict(self._guarded(columns_of, [_Piece(first.block, first.start, first.start + 1)]))

    def _hold(self, block: Block) -> None:
        self._pieces.append(_Piece(block, 0, block.rows))
        self._rows += block.rows

    def _repeated(self) -> list[_Piece]:
        """The first batches again, in turn."""
        if not self._kept:
            raise DataError(
                f'feed {self._queue.name!r}: this worker got no rows, and by uneven="repeat" it should repeat some; '
                "make at least as many partitions as there are workers (df.repartition)"
            )
        pieces = self._kept[self._again % len(self._kept)]
        self._again += 1
        return pieces

    def _gathered(self, size: int, wait: float | None) -> list[_Piece]:
        until = None
        while self._rows < size:
            left = None if until is None else max(0.0, until - time.monotonic())
            item = self._queue.take(left)
            if item.block is not None:
                self._hold(item.block)
                if wait is not None and until is None:
                    until = time.monotonic() + wait
            elif item.what == "lost":
                self._pieces.clear()
                self._rows = 0
                until = None
            elif self._rows or item.what == "end":
                break
        return self._split(min(size, self._rows))

    def _split(self, rows: int) -> list[_Piece]:
        pieces = []
        self._rows -= rows
        while rows:
            first = self._pieces[0]
            stop = min(first.stop, first.start + rows)
            pieces.append(_Piece(first.block, first.start, stop))
            rows -= stop - first.start
            first.start = stop
            if stop == first.stop:
                self._pieces.popleft()
        return pieces

    def _guarded(self, make: Any, pieces: list[_Piece]) -> Any:
        try:
            return make([(piece.block, piece.start, piece.stop) for piece in pieces], self._queue.name)
        except DataError as error:
            self._queue.fail(error)
            raise


def _time(wait: Any) -> float | None:
    return None if wait is None else seconds("wait", wait, zero=True, none="for any")


def _plain(values: Any) -> Any:
    """Lists as they are; tensors of any framework as arrays."""
    if isinstance(values, (list, tuple, np.ndarray)):
        return values
    for name in ("detach", "cpu"):  # torch
        values = getattr(values, name, lambda values=values: values)()
    return np.asarray(values)
