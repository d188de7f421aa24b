"""Blocks of rows from data of this process, to be sent to a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from hopyard.data.partitions.mapped import open_partition
from hopyard.data.sources.of import named_parts, table_of
from hopyard.errors import SpecError
from hopyard.formats.arrow import to_arrow

ROWS = 4096
"""Rows of a block, at most."""


def blocks_of(data: Any, parts: int = 1) -> Iterator[Any]:
    """Yield record batches, or for a list that is no table (see `table_of`) lists of its rows; little data gives at
    least `parts` blocks, so that each worker gets some.

    A hy.Dataset yields its training partitions as it prepared them, its arrays as columns by their names ("inputs",
    "targets" and "weights" where there are some; "targets.name" where an input has the name).
    """
    if hasattr(data, "prepare"):
        manifest = data.prepare()
        if any(field.is_ragged for field in manifest.fields):
            raise SpecError("a Dataset with ragged= cannot be fed: give its rows one length, or read ctx.batches(data)")
        for partition in range(len(manifest.train)):
            columns = open_partition(manifest, "train", partition)
            roles = {"inputs": columns.inputs, "targets": columns.targets, "weights": columns.weights}
            values, _ = named_parts({role: part for role, part in roles.items() if part is not None})
            named = {column: array for column, (_, array) in values.items()}
            step = _step(columns.rows, -(-parts // len(manifest.train)))
            for start in range(0, columns.rows, step):
                yield pa.record_batch(
                    {name: to_arrow(array[start : start + step], name) for name, array in named.items()}
                )
    elif (table := table_of(data, nan_is_null=False)) is not None:
        yield from table.to_batches(max_chunksize=_step(len(table), parts))
    else:
        step = _step(len(data), parts)
        for start in range(0, len(data), step):
            yield list(data[start : start + step])


def _step(rows: int, parts: int) -> int:
    even_step = -(-rows // parts)  # may make fewer: 5 rows for 4 parts are 2, 2 and 1
    return max(1, min(ROWS, even_step if even_step and -(-rows // even_step) >= parts else rows // parts))
