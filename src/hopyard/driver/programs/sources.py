"""Where the rows of a feed come from: Spark, whose tasks send them, or this process."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa

from hopyard.data.sources.of import is_pandas
from hopyard.errors import HopyardError, SpecError
from hopyard.feeds.local_rows import blocks_of
from hopyard.feeds.sender import Route, send_partition
from hopyard.feeds.spark_tasks import FEEDING, feeding, feeding_rows
from hopyard.sparkapi.dataframe import checked, is_frame, mapped
from hopyard.sparkapi.session import is_connect

READ_AHEAD = 2
"""Most blocks that wait for a worker which takes its rows more slowly than others."""


class Source(Protocol):
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


class LocalRows:
    """Rows of this process. They are read once, in blocks; block k goes to worker k modulo the number of workers."""

    spark = False

    def __init__(self, data: Any) -> None:
        self._data = data
        self._pass = _Pass()
        """The state of the current call of `send`."""

    def send(self, route: Route) -> int:
        """Send each worker a partition, in a thread of its own."""
        self._pass = current_pass = _Pass()
        senders = [_Sender(route, worker, current_pass) for worker in range(len(route.endpoints))]
        try:
            for number, block in enumerate(blocks_of(self._data, len(senders))):
                if not senders[number % len(senders)].put(block) and all(sender.ended for sender in senders):
                    break
            for sender in senders:
                sender.put(None)
        except BaseException:
            current_pass.stop()
            raise
        for sender in senders:
            sender.thread.join()
        errors = [sender.error for sender in senders if sender.error is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, _Stopped)), errors[0])
        return sum(sender.rows for sender in senders)

    def cancel(self) -> None:
        """Send no further block."""
        self._pass.stop()


class _Stopped(HopyardError):
    """Another worker failed, or the feed was cancelled."""


class _Pass:
    """The state that all senders of one pass over the rows share.

    Attributes:
        changed: held while any of their queues changes, and notified then.
        stopped: whether no further block is sent.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.stopped = False

    def stop(self) -> None:
        """Send no further block."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


class _Sender:
    """Sends the rows of one worker. Its thread ends when all is sent, when the worker wants no more, or on errors."""

    def __init__(self, route: Route, worker: int, current_pass: _Pass) -> None:
        self._route, self._worker, self._pass = route, worker, current_pass
        self._blocks: deque[Any] = deque()
        self.ended = False
        self.rows = 0
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="hopyard-send", daemon=True)
        self.thread.start()

    def put(self, block: Any) -> bool:
        """Wait for room and hand over a block, or None after the last one; return False if the sender has ended."""
        changed = self._pass.changed
        with changed:
            changed.wait_for(lambda: self.ended or len(self._blocks) < READ_AHEAD)
            if not self.ended:
                self._blocks.append(block)
                changed.notify_all()
            return not self.ended

    def _run(self) -> None:
        try:
            self.rows = send_partition(self._route, self._worker, 0, self._pop_blocks(), worker=self._worker).rows
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
            self.error = error
            self._pass.stop()
        finally:
            with self._pass.changed:
                self.ended = True
                self._pass.changed.notify_all()

    def _pop_blocks(self) -> Iterator[Any]:
        """Yield the blocks that were handed over."""
        changed = self._pass.changed
        while True:
            with changed:
                changed.wait_for(lambda: self._blocks or self._pass.stopped)
                if self._pass.stopped:
                    raise _Stopped(f"feed {self._route.feed!r}: stopped")
                block = self._blocks.popleft()
                changed.notify_all()
            if block is None:
                return
            yield block


def source_of(data: Any) -> Source:
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
    allowed = isinstance(data, (list, tuple, Mapping, pa.Table, pa.RecordBatch))
    if allowed or hasattr(data, "prepare") or is_pandas(data):
        return LocalRows(data)
    raise SpecError(
        "feed(…) must be given a Spark DataFrame, an RDD, a hy.Dataset, a pandas DataFrame, a pyarrow Table, a dict "
        f"from column to array or a list of rows, got {type(data).__name__}"
    )
