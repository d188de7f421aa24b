"""Blocks of rows that this process holds, to be poured into a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.cache import open_partition

ROWS = 4096
"""Of a block."""


def blocks_of(data: Any, parts: int = 1) -> Iterator[Any]:
    """Record batches, or lists of Python rows; of little data at least `parts`, so that each worker gets some.

    A hy.Dataset gives its training partitions as it prepared them, the columns of its arrays by their names ("inputs",
    "targets" where there is one), rows of several dimensions flat.
    """
    if hasattr(data, "prepare"):
        manifest = data.prepare()
        for partition in range(len(manifest.train)):
            columns = open_partition(manifest, "train", partition)
            named = {**_named("inputs", columns.inputs), **_named("targets", columns.targets)}
            rows = len(next(iter(named.values())))
            for start in range(0, rows, ROWS):
                yield pa.record_batch({name: _column(array[start : start + ROWS]) for name, array in named.items()})
    elif isinstance(data, (list, tuple)):
        step = _step(len(data), parts)
        for start in range(0, len(data), step):
            rows_ = data[start : start + step]
            yield pa.RecordBatch.from_pylist(rows_) if all(isinstance(row, dict) for row in rows_) else list(rows_)
    else:
        data = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        table = data if isinstance(data, pa.Table) else pa.Table.from_pandas(data, preserve_index=False)
        yield from table.to_batches(max_chunksize=_step(len(table), parts))


def _step(rows: int, parts: int) -> int:
    return max(1, min(ROWS, -(-rows // parts)))


def _named(role: str, part: Any) -> dict[str, Any]:
    return dict(part) if isinstance(part, dict) else {} if part is None else {role: part}


def _column(array: Any) -> Any:
    flat = np.ascontiguousarray(array).reshape(len(array), -1) if array.ndim > 1 else np.ascontiguousarray(array)
    if flat.ndim == 1:
        return pa.array(flat)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
