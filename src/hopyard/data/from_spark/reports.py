"""One job over the partitions of a DataFrame, of which the driver gets what each task reports."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hopyard.data.encoding.encoder import ONE_HOT_LIMIT
from hopyard.data.from_spark.task import Task, TaskReport
from hopyard.data.manifest import Value
from hopyard.data.options import ColumnSpec
from hopyard.sparkapi.dataframe import alive, collected, mapped, quoted


def with_vocabularies(spec: ColumnSpec, frames: list[Any], task: Task | None) -> tuple[ColumnSpec, list[TaskReport]]:
    """`spec` with the values of all columns to be encoded (where the user lists none, the sorted ones of all rows), and
    the reports of the tasks that found them.

    Args:
        spec: as the user wrote it.
        frames: of all rows.
        task: with the transform, where there is one: columns are then what it makes of them.
    """
    open_ = {name: how for name, how in spec.encode.items() if how.values is None}
    found: dict[str, set[Value]] = {name: set() for name in open_}
    reports: list[TaskReport] = []
    for df in frames if open_ else []:
        if task is None:
            for name, how in open_.items():
                values = df.select(quoted(name)).distinct()
                rows = collected(values.limit(ONE_HOT_LIMIT + 1) if how.kind == "one-hot" else values)
                found[name].update(row[0] for row in rows)
            continue
        for report in run_tasks(df, task, "values"):
            report.check()
            reports.append(report)
            for name in open_:
                found[name].update(report.values[name])
    closed = {
        name: msgspec.structs.replace(how, values=sorted(value for value in found[name] if _is(value)))
        for name, how in open_.items()
    }
    return msgspec.structs.replace(spec, encode={**spec.encode, **closed}), reports


def run_tasks(df: Any, task: Task, what: Literal["run", "values"]) -> list[TaskReport]:
    """Runs a task on every partition of `df`: one job, of which only the tasks' reports come here; in their order."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    def work(batches: Any) -> Any:  # goes by value: this module is not imported there
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        report = getattr(task, what)(context.partitionId(), batches)
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array([report], pyarrow.binary())], ["report"])

    alive(df)
    rows = collected(mapped(df, work, StructType([StructField("report", BinaryType())])))
    return sorted(
        (msgspec.msgpack.decode(bytes(row[0]), type=TaskReport) for row in rows), key=lambda report: report.number
    )


def _is(value: Any) -> bool:
    """Neither null nor NaN: these are faults, which the rows' own job counts."""
    return value is not None and value == value  # noqa: PLR0124
