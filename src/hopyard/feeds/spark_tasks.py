"""What Spark runs to feed a program: functions for `mapInArrow` and `mapPartitionsWithIndex`.

They run in executors. From pyspark they use only the context of their task: its partition and its attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from hopyard.feeds.sender import Route, SendResult, send_partition

ROWS = 256
"""Python rows of a block."""

FEEDING = "partition long, rows long, worker int, unwanted boolean"
"""Schema of the rows that `feeding` yields."""

Batches = Callable[[Iterator[Any]], Iterator[Any]]


def feeding(route: Route) -> Batches:
    """Return a function for `mapInArrow`: it sends each partition and yields one row for it, of schema FEEDING."""

    def hopyard_feed(batches: Iterator[Any]) -> Iterator[Any]:
        partition, attempt = task()
        result = send_partition(route, partition, attempt, (batch for batch in batches if batch.num_rows))
        yield pa.RecordBatch.from_pylist([_row(partition, result)], schema=_SCHEMA)

    return hopyard_feed


def feeding_rows(
    route: Route, rows: int = ROWS
) -> Callable[[int, Iterable[Any]], Iterator[tuple[int, int, int, bool]]]:
    """Return a function for `mapPartitionsWithIndex`: it sends each partition and yields (partition, rows, worker,
    unwanted) for it."""

    def hopyard_feed(partition: int, inputs: Iterable[Any]) -> Iterator[tuple[int, int, int, bool]]:
        result = send_partition(route, partition, task()[1], cut(inputs, rows))
        yield partition, result.rows, result.worker, result.unwanted

    return hopyard_feed


def cut(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield rows in lists of `size`; the last list has the remaining rows."""
    remaining = iter(rows)
    while block := list(islice(remaining, size)):
        yield block


def task() -> tuple[int, int]:
    """(partition, attempt) of the Spark task that runs here; (0, 0) where none does."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.attemptNumber())


_SCHEMA = pa.schema([("partition", pa.int64()), ("rows", pa.int64()), ("worker", pa.int32()), ("unwanted", pa.bool_())])


def _row(partition: int, result: SendResult) -> dict[str, Any]:
    return {"partition": partition, "rows": result.rows, "worker": result.worker, "unwanted": result.unwanted}
