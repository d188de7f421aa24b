"""Blocks of rows that this process holds, to be poured into a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.arrow import to_arrow
from hopyard.data.cache import open_partition
from hopyard.errors import DataError

ROWS = 4096
"""Of a block."""


def blocks_of(data: Any, parts: int = 1) -> Iterator[Any]:
    """Record batches, or lists of Python rows; of little data at least `parts`, so that each worker gets some.

    A hy.Dataset gives its training partitions as it prepared them, the columns of its arrays by their names ("inputs",
    "targets" where there is one).
    """
    if hasattr(data, "prepare"):
        manifest = data.prepare()
        for partition in range(len(manifest.train)):
            columns = open_partition(manifest, "train", partition)
            named = {**_named("inputs", columns.inputs), **_named("targets", columns.targets)}
            rows = len(next(iter(named.values())))
            for start in range(0, rows, ROWS):
                yield pa.record_batch(
                    {name: to_arrow(array[start : start + ROWS], name) for name, array in named.items()}
                )
    elif isinstance(data, (list, tuple)) and data and all(isinstance(row, dict) for row in data):
        yield from blocks_of(_table(data), parts)
    elif isinstance(data, (list, tuple)):
        step = _step(len(data), parts)
        for start in range(0, len(data), step):
            yield list(data[start : start + step])
    else:
        data = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        table = data if isinstance(data, pa.Table) else pa.Table.from_pandas(data, preserve_index=False)
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


def _column(values: list[Any]) -> Any:
    """Arrays of one shape keep it; those of one dimension may differ in length."""
    if all(isinstance(value, np.ndarray) and value.ndim > 1 for value in values):
        return to_arrow(np.stack(values), "its arrays")
    return pa.array(values)


def _step(rows: int, parts: int) -> int:
    return max(1, min(ROWS, -(-rows // parts)))


def _named(role: str, part: Any) -> dict[str, Any]:
    return dict(part) if isinstance(part, dict) else {} if part is None else {role: part}
