"""What Spark runs to feed a program: functions for `mapInArrow` and `mapPartitionsWithIndex`.

They run in executors. Of pyspark they know the context of their task: its partition and its attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from hopyard.feeds.sender import Route, SendResult, send_partition

ROWS = 256
"""Python rows that make a block."""

FEEDING = "partition long, rows long, worker int, unwanted boolean"
"""Schema of what `feeding` gives."""

Batches = Callable[[Iterator[Any]], Iterator[Any]]


def feeding(route: Route) -> Batches:
    """For `mapInArrow`: sends each partition; gives one row for it, of the schema FEEDING."""

    def hopyard_feed(batches: Iterator[Any]) -> Iterator[Any]:
        partition, attempt = task()
        done = send_partition(route, partition, attempt, (batch for batch in batches if batch.num_rows))
        yield pa.RecordBatch.from_pylist([_row(partition, done)], schema=_SCHEMA)

    return hopyard_feed


def feeding_rows(
    route: Route, rows: int = ROWS
) -> Callable[[int, Iterable[Any]], Iterator[tuple[int, int, int, bool]]]:
    """For `mapPartitionsWithIndex`: sends each partition; gives (partition, rows, worker, unwanted) for it."""

    def hopyard_feed(partition: int, given: Iterable[Any]) -> Iterator[tuple[int, int, int, bool]]:
        done = send_partition(route, partition, task()[1], cut(given, rows))
        yield partition, done.rows, done.worker, done.unwanted

    return hopyard_feed


def cut(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Rows in lists of `size`, the last one of what is left."""
    left = iter(rows)
    while block := list(islice(left, size)):
        yield block


def task() -> tuple[int, int]:
    """(partition, attempt) of the Spark task that runs here; (0, 0) where none does."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return (0, 0) if context is None else (context.partitionId(), context.attemptNumber())


_SCHEMA = pa.schema([("partition", pa.int64()), ("rows", pa.int64()), ("worker", pa.int32()), ("unwanted", pa.bool_())])


def _row(partition: int, done: SendResult) -> dict[str, Any]:
    return {"partition": partition, "rows": done.rows, "worker": done.worker, "unwanted": done.unwanted}
