"""Runs one job over the partitions of a DataFrame; the driver gets a report of each task, and no rows.

Tasks report errors that the user has to mend, and do not raise them: Spark would try the task again, and bury the
message in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from hopyard.errors import DataError, ResourceError, SpecError
from hopyard.sparkapi.dataframe import alive, collected, mapped

R = TypeVar("R", bound=msgspec.Struct)

_ERRORS = {kind.__name__: kind for kind in (DataError, SpecError, ResourceError)}


class _Outcome(msgspec.Struct, frozen=True):
    """What a task sends: MessagePack of its report, or (name of the class, message) of an error."""

    partition: int
    report: bytes = b""
    error: tuple[str, str] | None = None


def partition() -> int:
    """Return the number of the Spark partition that this worker processes; -1 outside of any."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else context.partitionId()


def report_each(df: Any, work: Callable[[int, Iterable[Any]], R], kind: type[R]) -> list[R]:
    """Runs `work(partition, its record batches)` on each partition of `df`; returns the reports in their order.

    Args:
        df: a DataFrame.
        work: function that executors run, so it is pickled.
        kind: type of the reports.

    Raises:
        SpecError, DataError, ResourceError: the error of the first partition that reports one; or the session was
            stopped.
    """

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        data = msgspec.msgpack.encode(_outcome(work, partition(), batches))
        yield pa.RecordBatch.from_pydict({"outcome": pa.array([data], pa.binary())})

    alive(df)
    rows = collected(mapped(df, run, "outcome binary"))
    outcomes = [msgspec.msgpack.decode(bytes(row[0]), type=_Outcome) for row in rows]
    outcomes.sort(key=lambda outcome: outcome.partition)
    for outcome in outcomes:
        if outcome.error is not None:
            raise _ERRORS[outcome.error[0]](outcome.error[1])
    return [msgspec.msgpack.decode(outcome.report, type=kind) for outcome in outcomes]


def _outcome(work: Callable[[int, Iterable[Any]], Any], partition: int, batches: Iterable[Any]) -> _Outcome:
    try:
        return _Outcome(partition, msgspec.msgpack.encode(work(partition, batches)))
    except (DataError, SpecError, ResourceError) as error:
        return _Outcome(partition, error=(type(error).__name__, str(error)))
