"""Where the rows of a feed come from: Spark, whose tasks send them, or this process."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from hopyard.data.sources.of import arrow_source, is_pandas
from hopyard.errors import HopyardError, SpecError
from hopyard.feeds.local_rows import blocks_of
from hopyard.feeds.sender import Route, send_partition
from hopyard.feeds.spark_tasks import FEEDING, feeding, feeding_rows
from hopyard.formats.arrow import plain_schema
from hopyard.sparkapi import is_connect
from hopyard.sparkapi.dataframe import checked, is_frame, mapped


class FeedSource(Protocol):
    """The source of a feed's rows."""

    spark: bool
    """Whether Spark's tasks send them, which need room."""

    def send(self, route: Route) -> int:
        """Send all rows once; return how many."""
        ...

    def cancel(self) -> None:
        """Stop sending."""
        ...


class SparkRows:
    """A DataFrame or RDD of Spark."""

    spark = True

    def __init__(self, data: Any) -> None:
        self._data = data
        self._context: Any = None
        """SparkContext of a classic session: its job tags work from any thread, the session's do not."""
        if not is_frame(data):
            self._context = data.ctx
        elif not is_connect(data.sparkSession):
            self._context = data.sparkSession.sparkContext
        self._tag = f"hopyard-feed-{secrets.token_hex(4)}"

    def send(self, route: Route) -> int:
        """Send them in one job."""
        data = self._data
        if self._context is not None:
            self._context.addJobTag(self._tag)
        else:
            data.sparkSession.addTag(self._tag)
        if is_frame(data):
            return sum(row.rows for row in mapped(data, feeding(route), FEEDING).collect())
        return sum(rows for _, rows, _, _ in data.mapPartitionsWithIndex(feeding_rows(route)).collect())

    def cancel(self) -> None:
        """Cancel the job."""
        with contextlib.suppress(Exception):  # a session that was stopped has none
            if self._context is not None:
                self._context.cancelJobsWithTag(self._tag)
            else:
                self._data.sparkSession.interruptTag(self._tag)


class DriverRows:
    """Rows of this process, in blocks that are views of them; block k goes to worker k modulo the number of workers."""

    spark = False

    def __init__(self, data: Any) -> None:
        self._data = data
        self._stop = threading.Event()
        """Set: the current call of `send` sends no further block."""

    def send(self, route: Route) -> int:
        """Send each worker a partition, in a thread of its own."""
        self._stop = stop = threading.Event()
        workers = len(route.endpoints)
        blocks = list(blocks_of(self._data, workers))
        rows, errors = list[int](), list[BaseException]()

        def send(worker: int) -> None:
            try:
                part = _until(stop, blocks[worker::workers], route.feed)
                rows.append(send_partition(route, worker, part, worker=worker).rows)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
                errors.append(error)
                stop.set()

        threads = [
            threading.Thread(target=send, args=(worker,), name="hopyard-send", daemon=True) for worker in range(workers)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            stop.set()
            raise
        if errors:
            raise errors[0]
        return sum(rows)

    def cancel(self) -> None:
        """Send no further block."""
        self._stop.set()


def _until(stop: threading.Event, blocks: Iterable[Any], feed: str) -> Iterator[Any]:
    for block in blocks:
        if stop.is_set():
            raise HopyardError(f"feed {feed!r}: stopped")
        yield block


def source_of(data: Any) -> FeedSource:
    """Return the source of rows to feed.

    Raises:
        SpecError: there are none in `data`.
    """
    if is_frame(data):
        return SparkRows(checked(data, "data"))
    if hasattr(data, "mapPartitionsWithIndex") and hasattr(data, "ctx"):
        return SparkRows(data)
    names = list(data.columns) if is_pandas(data) else getattr(getattr(data, "schema", None), "names", [])
    if len(set(map(str, names))) < len(names):
        twice = sorted({str(name) for name in names if list(map(str, names)).count(str(name)) > 1})
        raise SpecError(f"feed({type(data).__name__}): there are several columns named {', '.join(twice)}; rename them")
    if isinstance(data, pa.Table) or is_pandas(data) or hasattr(data, "prepare"):
        return DriverRows(data)
    if (known := arrow_source(data, decode=False)) is not None:  # read as a whole, as a reader can be read once
        source, schema = known
        batches = [batch for batch, _, _ in source.pieces(None, [])]
        if not batches:
            return DriverRows(plain_schema(pa.schema([]) if schema is None else schema, decode=False).empty_table())
        return DriverRows(pa.Table.from_batches(batches))
    if isinstance(data, (list, tuple, Mapping)):
        return DriverRows(data)
    raise SpecError(
        "feed(…) must be given a Spark DataFrame, an RDD, a hy.Dataset, rows of Arrow or pandas, a dict from column to "
        f"array or a list of rows, got {type(data).__name__}"
    )
