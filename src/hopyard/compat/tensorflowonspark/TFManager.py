"""Queues of one process under the names of TensorFlowOnSpark: for tests of a `map_fun` without Spark.

    mgr = TFManager.start(b"key", ["input", "output"])
    mgr.get_queue("input").put(row)
    mgr.get_queue("input").put(None)          # the end of the feed
    map_fun(args, TFNodeContext(mgr=mgr))

In a program `ctx.mgr` is `TFSparkNode.Feeds` instead: rows come there in blocks, by the program's own feeds.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable
from typing import Any

from hopyard.compat.tensorflowonspark.marker import EndPartition


class TFManager:
    """Named queues and values."""

    def __init__(self, queues: Iterable[str]) -> None:
        self._queues: dict[str, queue.Queue[Any]] = {name: queue.Queue() for name in queues}
        self._values: dict[str, Any] = {"state": "running"}

    def get(self, key: str) -> Any:
        """Return the value that was set, or None."""
        return self._values.get(key)

    def set(self, key: str, value: Any) -> None:
        """Sets a value, for all who hold this manager."""
        self._values[key] = value

    def get_queue(self, qname: str) -> queue.Queue[Any] | None:
        """Return the queue of this name, or None."""
        return self._queues.get(qname)

    def stream(self, qname_in: str, qname_out: str) -> QueueStream:
        """Return the stream that a `TFNode.DataFeed` reads and answers."""
        return QueueStream(self, qname_in, qname_out)


class QueueStream:
    """Reads rows from one queue and puts answers into another."""

    def __init__(self, mgr: TFManager, qname_in: str, qname_out: str) -> None:
        self._mgr = mgr
        self._rows = mgr.get_queue(qname_in)
        self._answers = mgr.get_queue(qname_out)
        self.ended = False

    def read(self, count: int, across_partitions: bool) -> list[Any]:
        """Waits for `count` rows; returns fewer at the end of the feed or, without `across_partitions`, a partition."""
        assert self._rows is not None, "no such queue"
        rows: list[Any] = []
        while len(rows) < count and not self.ended:
            item = self._rows.get()
            self._rows.task_done()
            if item is None:
                self.ended = True
            elif not isinstance(item, EndPartition):
                rows.append(item)
            elif rows and not across_partitions:
                break
        return rows

    def answer(self, rows: Iterable[Any]) -> None:
        """Puts one answer for each row that was read."""
        assert self._answers is not None, "no such queue"
        for row in rows:
            self._answers.put(row)

    def terminate(self) -> None:
        """Ends the feed: rows that wait are dropped."""
        assert self._rows is not None, "no such queue"
        self._mgr.set("state", "terminating")
        self.ended = True
        while True:
            try:
                self._rows.get_nowait()
            except queue.Empty:
                return
            self._rows.task_done()


def start(authkey: bytes, queues: Iterable[str], mode: str = "local") -> TFManager:
    """Return a manager of these queues, in this process; `authkey` and `mode` were for a server, which is gone."""
    return TFManager(queues)
