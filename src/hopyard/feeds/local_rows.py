"""Blocks of rows that this process holds, to be sent to a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.partitions.cache import open_partition
from hopyard.data.sources.of import named_parts
from hopyard.errors import DataError
from hopyard.formats.arrow import masked_at, to_arrow

ROWS = 4096
"""Of a block."""


def blocks_of(data: Any, parts: int = 1) -> Iterator[Any]:
    """Record batches, or lists of Python rows; of little data at least `parts`, so that each worker gets some.

    A hy.Dataset gives its training partitions as it prepared them, the columns of its arrays by their names ("inputs",
    "targets" and "weights" where there are some; "targets.name" where an input has the name).
    """
    if hasattr(data, "prepare"):
        manifest = data.prepare()
        for partition in range(len(manifest.train)):
            columns = open_partition(manifest, "train", partition)
            given = {"inputs": columns.inputs, "targets": columns.targets, "weights": columns.weights}
            values, _ = named_parts({role: part for role, part in given.items() if part is not None})
            named = {column: array for column, (_, array) in values.items()}
            step = _step(columns.rows, -(-parts // len(manifest.train)))
            for start in range(0, columns.rows, step):
                yield pa.record_batch(
                    {name: to_arrow(array[start : start + step], name) for name, array in named.items()}
                )
    elif isinstance(data, (list, tuple)) and data and all(isinstance(row, dict) for row in data):
        yield from blocks_of(_table(data), parts)
    elif isinstance(data, (list, tuple)):
        step = _step(len(data), parts)
        for start in range(0, len(data), step):
            yield list(data[start : start + step])
    else:
        data = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        table = data if isinstance(data, pa.Table) else _of_pandas(data)
        yield from table.to_batches(max_chunksize=_step(len(table), parts))


def _table(rows: Sequence[dict[str, Any]]) -> Any:
    """Rows that are dicts as one table, so that a column has one type in all blocks."""
    names = rows[0].keys()
    if not names:
        raise DataError("row 0 is an empty dict: a row needs at least one key")
    for number, row in enumerate(rows):
        if row.keys() != names:
            odd = ", ".join(sorted(map(repr, row.keys() ^ names)))
            raise DataError(f"row {number} and row 0 differ in their keys: {odd}; each row needs the same")
    columns = {}
    for name in names:
        try:
            columns[name] = _column([row[name] for row in rows])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            told = "; ".join(map(str, error.args))
            raise DataError(f"column {name!r}: its values have no common type ({told})") from error
    return pa.table(columns)


def _of_pandas(frame: Any) -> Any:
    """NaN in a column of floats is a number, as it is in Spark; None, NaT and NA are null."""
    columns = {}
    for name, column in frame.items():
        try:
            floats = isinstance(column.dtype, np.dtype) and column.dtype.kind == "f"
            columns[str(name)] = pa.array(column.to_numpy(), from_pandas=False) if floats else _of_objects(column)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            told = "; ".join(map(str, error.args))
            raise DataError(f"column {name!r}: its values have no common type ({told})") from error
    return pa.table(columns)


def _of_objects(column: Any) -> Any:
    values = list(column) if column.dtype == object else []
    if values and all(isinstance(value, np.ndarray) and value.ndim > 1 for value in values):
        return _column(values)
    made = pa.array(column, from_pandas=True)
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def _column(values: list[Any]) -> Any:
    """Arrays of one shape keep it; those of one dimension may differ in length.

    Raises:
        ValueError: a mask hides some of their values.
    """
    if masked_at(values) is not None:
        raise ValueError("a mask hides some of them; fill them, or leave such rows out")
    if all(isinstance(value, np.ndarray) and value.ndim > 1 for value in values):
        return to_arrow(np.stack(values), "its arrays")
    return pa.array(values)


def _step(rows: int, parts: int) -> int:
    even = -(-rows // parts)  # may make fewer: 5 rows for 4 parts are 2, 2 and 1
    return max(1, min(ROWS, even if even and -(-rows // even) >= parts else rows // parts))
