"""What Spark runs to feed a program and to infer: functions for `mapInArrow` and `mapPartitionsWithIndex`.

They run in executors. From pyspark they use only the number of their task's partition.

Answers of an inference come in the order of the rows, as many as there are. It is computed when its result is used, and
again when it is used again: no record is kept of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.errors import DataError, FeedError, HopyardError
from hopyard.feeds.protocol import END, SCHEMA
from hopyard.feeds.sender import FeedConnection, Route, framed, send_partition
from hopyard.formats.arrow import is_list, to_lists
from hopyard.sparkapi.dataframe import struct_type

ROWS = 256
"""Python rows of a block."""

FEEDING = "partition long, rows long, worker int, unwanted boolean"
"""Schema of the rows that `feeding` yields."""
_SCHEMA = pa.schema([("partition", pa.int64()), ("rows", pa.int64()), ("worker", pa.int32()), ("unwanted", pa.bool_())])

Batches = Callable[[Iterator[Any]], Iterator[Any]]


def feeding(route: Route) -> Batches:
    """Return a function for `mapInArrow`: it sends each partition and yields one row for it, of schema FEEDING."""

    def hopyard_feed(batches: Iterator[Any]) -> Iterator[Any]:
        partition = task_partition()
        result = send_partition(route, partition, (batch for batch in batches if batch.num_rows))
        row = {"partition": partition, "rows": result.rows, "worker": result.worker, "unwanted": result.unwanted}
        yield pa.RecordBatch.from_pylist([row], schema=_SCHEMA)

    return hopyard_feed


def feeding_rows(
    route: Route, rows: int = ROWS
) -> Callable[[int, Iterable[Any]], Iterator[tuple[int, int, int, bool]]]:
    """Return a function for `mapPartitionsWithIndex`: it sends each partition and yields (partition, rows, worker,
    unwanted) for it."""

    def hopyard_feed(partition: int, inputs: Iterable[Any]) -> Iterator[tuple[int, int, int, bool]]:
        result = send_partition(route, partition, cut(inputs, rows))
        yield partition, result.rows, result.worker, result.unwanted

    return hopyard_feed


def ask(route: Route, partition: int, blocks: Iterable[Any]) -> Iterator[Any]:
    """Send a partition and yield its answers in order, the values as the program gave them.

    A thread sends while answers are read.

    Raises:
        ConnectionError: the worker ended; names it.
        FeedError: the program takes no more rows, or answered wrongly; with its reason.
    """
    with FeedConnection(route, partition, answers=True) as connection:
        if connection.unwanted:
            raise _no_more_rows(route)
        sender = _Sender(connection, blocks)
        sender.start()
        answered_rows = 0
        try:
            while sender.more(answered_rows):
                values, rows = connection.answer()
                if connection.unwanted:
                    raise _no_more_rows(route)
                answered_rows += rows
                yield values
        except (HopyardError, OSError):
            if sender.error is None:
                raise
        finally:
            connection.close()
            sender.join()
        if sender.error is not None:
            raise sender.error


def inferring(route: Route, schema: Any, zone: str = "UTC") -> Batches:
    """Return a function for `mapInArrow`: it yields the program's answers to each partition, as columns of `schema`.

    Args:
        route: to the program.
        schema: of the answers: Arrow's, a StructType, or text such as "prediction double".
        zone: time zone of the session, for answers that are times.

    Raises:
        SpecError: `schema` is none of these.
    """
    schema = _schema(schema, zone)

    def hopyard_infer(batches: Iterator[Any]) -> Iterator[Any]:
        for values in ask(route, task_partition(), (batch for batch in batches if batch.num_rows)):
            yield answered(values, schema)

    return hopyard_infer


def inferring_rows(route: Route, rows: int = ROWS) -> Callable[[int, Iterable[Any]], Iterator[Any]]:
    """Return a function for `mapPartitionsWithIndex`: it yields the program's answers, row by row.

    Lists come as they are, arrays of shape (rows,) as Python values, others as arrays, dicts of these as tuples.
    """

    def hopyard_infer(partition: int, inputs: Iterable[Any]) -> Iterator[Any]:
        for values in ask(route, partition, cut(inputs, rows)):
            yield from by_row(values)

    return hopyard_infer


def by_row(values: Any) -> list[Any]:
    """Return the answers as a list with one item for each row."""
    if isinstance(values, Mapping):
        return list(zip(*(by_row(part) for part in values.values()), strict=True))
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return list(values.tolist())
    return list(values)


def answered(values: Any, schema: Any) -> Any:
    """Return answers as a record batch of `schema`; a single column need not be named.

    Raises:
        DataError: there are too few columns or too many, or values do not fit their type.
    """
    if not isinstance(values, Mapping):
        named = isinstance(values, list) and values and isinstance(values[0], (tuple, list))
        if len(schema) == 1:
            values = {schema.names[0]: values}
        elif named and all(len(row) == len(schema) for row in values):
            values = dict(zip(schema.names, map(list, zip(*values, strict=True)), strict=True))
        else:
            raise DataError(
                f"the program answered {type(values).__name__}, the schema has the columns {schema.names}; answer a "
                "dict from column to array"
            )
    if set(values) != set(schema.names):
        raise DataError(f"the program answered the columns {sorted(values)}, the schema has {sorted(schema.names)}")
    columns = []
    for column in schema:
        try:
            columns.append(_arrow(values[column.name], column.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"the program's answer {column.name!r} does not fit type {column.type}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _arrow(values: Any, kind: Any) -> Any:
    if not isinstance(values, np.ndarray):
        inner = kind
        while is_list(inner):
            inner = inner.value_type
        if pa.types.is_integer(inner):  # Arrow would silently cut 2.7 to 2; its cast does not
            return pa.array(list(values)).cast(kind)
        return pa.array(list(values), kind)
    if values.ndim == 1:
        return pa.array(values).cast(kind) if values.dtype.kind in "biuf" else pa.array(values.tolist(), kind)
    return to_lists(values).cast(kind)


class _Sender(threading.Thread):
    """The thread that sends the rows of an inference."""

    def __init__(self, connection: FeedConnection, blocks: Iterable[Any]) -> None:
        super().__init__(name="ask", daemon=True)
        self._connection, self._blocks = connection, blocks
        self._changed = threading.Condition()
        self._rows = 0
        self._complete = False
        self.error: BaseException | None = None
        """The error that kept rows from being sent, where it was raised in this thread; known after `join`."""

    def run(self) -> None:
        number = 0
        try:
            for kind, body, rows in framed(self._blocks):
                with self._changed:
                    self._rows += rows
                    self._changed.notify_all()
                self._connection.send(kind, body, number, rows)
                number += kind != SCHEMA
            with self._changed:
                self._complete = True
                self._changed.notify_all()
            self._connection.send(END, b"", number, self._rows)
        except OSError:  # the thread that reads the answers gets the error too, with the reason
            pass
        except BaseException as error:  # noqa: BLE001 - the thread that reads the answers raises it again
            self.error = error
            self._connection.close()
        finally:
            with self._changed:
                self._complete = True
                self._changed.notify_all()

    def more(self, answered_rows: int) -> bool:
        """Whether more answers will come after those to `answered_rows` rows; waits until that is known."""
        with self._changed:
            self._changed.wait_for(lambda: self._complete or self._rows > answered_rows)
            return self._rows > answered_rows


def _schema(schema: Any, zone: str) -> Any:
    if isinstance(schema, pa.Schema):
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(struct_type(schema, "prediction double"), timezone=zone)


def _no_more_rows(route: Route) -> FeedError:
    return FeedError(
        f"feed {route.feed!r}: the program takes no more rows for inference, it has ended or terminated its feed; an "
        "inference is computed each time its result is used: use it before the program ends, or cache it"
    )


def cut(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield rows in lists of `size`; the last list has the remaining rows."""
    remaining = iter(rows)
    while block := list(islice(remaining, size)):
        yield block


def task_partition() -> int:
    """Return the partition of the Spark task that runs here; 0 where none does."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return 0 if context is None else int(context.partitionId())
