"""Where the rows of a feed come from: Spark, whose tasks send them, or this process."""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import Any, Protocol

import pyarrow as pa

from hopyard.data.feeding import FEEDING, feeding, feeding_rows
from hopyard.data.held import blocks_of
from hopyard.data.pour import Road, pour
from hopyard.data.spark import checked, is_frame, mapped
from hopyard.errors import SpecError
from hopyard.sessions import is_connect


class Source(Protocol):
    """Where rows come from."""

    spark: bool
    """Whether they go from Spark's tasks, which need room."""

    def pour(self, road: Road) -> int:
        """Send all rows once; how many."""
        ...

    def cancel(self) -> None:
        """Stop sending."""
        ...


class OfSpark:
    """A DataFrame or RDD of Spark."""

    spark = True

    def __init__(self, data: Any) -> None:
        self._data = data
        self._context: Any = None
        """Of a classic session: its job tags work from any thread, a session's do not."""
        if not is_frame(data):
            self._context = data.ctx
        elif not is_connect(data.sparkSession):
            self._context = data.sparkSession.sparkContext
        self._tag = f"hopyard-feed-{secrets.token_hex(4)}"

    def pour(self, road: Road) -> int:
        """One job."""
        data = self._data
        if self._context is not None:
            self._context.addJobTag(self._tag)
        else:
            data.sparkSession.addTag(self._tag)
        if is_frame(data):
            return sum(row.rows for row in mapped(data, feeding(road), FEEDING).collect())
        return sum(rows for _, rows, _, _ in data.mapPartitionsWithIndex(feeding_rows(road)).collect())

    def cancel(self) -> None:
        """Cancel the job."""
        with contextlib.suppress(Exception):  # a session that was stopped has none
            if self._context is not None:
                self._context.cancelJobsWithTag(self._tag)
            else:
                self._data.sparkSession.interruptTag(self._tag)


class Here:
    """Rows of this process, in blocks: a thread for each worker sends every k-th."""

    spark = False

    def __init__(self, data: Any) -> None:
        self._data = data
        self._stopped = threading.Event()
        """Of the present pour."""

    def pour(self, road: Road) -> int:
        """A partition for each block."""
        count = len(road.doors)
        rows = [0] * count
        errors: list[BaseException] = []
        stopped = self._stopped = threading.Event()

        def run(worker: int) -> None:
            try:
                for number, block in enumerate(blocks_of(self._data, count)):
                    if stopped.is_set() or errors:
                        return
                    if number % count == worker:
                        rows[worker] += pour(road, number, 0, [block], worker=worker).rows
            except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
                errors.append(error)

        threads = [threading.Thread(target=run, args=(n,), name="hopyard-pour", daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return sum(rows)

    def cancel(self) -> None:
        """No further block."""
        self._stopped.set()


def source_of(data: Any) -> Source:
    """Rows to feed.

    Raises:
        SpecError: there are none in `data`.
    """
    if is_frame(data):
        return OfSpark(checked(data, "data"))
    if hasattr(data, "mapPartitionsWithIndex") and hasattr(data, "ctx"):
        return OfSpark(data)
    if isinstance(data, (list, tuple, pa.Table, pa.RecordBatch)) or hasattr(data, "prepare") or _is_pandas(data):
        return Here(data)
    raise SpecError(
        f"feed({type(data).__name__}): a Spark DataFrame, an RDD, a hy.Dataset, a pandas DataFrame, a pyarrow Table "
        "or a list of rows is needed"
    )


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.startswith("pandas") and hasattr(data, "iloc") and hasattr(data, "columns")
