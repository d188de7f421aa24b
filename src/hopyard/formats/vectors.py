"""Spark's vectors (`pyspark.ml.linalg`, dense and sparse) as plain lists of numbers. They come as structs in Arrow.

And any column of Spark as a NumPy array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.errors import DataError
from hopyard.formats.arrow import Array, is_list, is_text, null_rows, to_numpy

LIST = pa.large_list(pa.float64())
"""The type that a vector becomes. It is large, as offsets of 32 bits end at 2 billion values of one batch."""

_BATCH_BYTES = 64 << 20
"""Bytes that one batch of sparse vectors may take as lists; with more it is cut."""


def is_vector(kind: Any) -> bool:
    """Whether an Arrow type is that of Spark's VectorUDT."""
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["type", "size", "indices", "values"]:
        return False
    _, _, indices, values = (field.type for field in kind)
    lists = [part for part in (indices, values) if pa.types.is_list(part) or pa.types.is_large_list(part)]
    return len(lists) == 2 and kind[0].type == pa.int8() and values.value_type == pa.float64()


def without_vectors(schema: pa.Schema) -> pa.Schema:
    """Return the schema that `lists` gives."""
    return pa.schema([(field.name, LIST if is_vector(field.type) else field.type) for field in schema])


def lists(batch: Any) -> Iterator[Any]:
    """Yield the batch with lists in place of vectors; in several parts where these would be large."""
    positions = [number for number, field in enumerate(batch.schema) if is_vector(field.type)]
    if not positions:
        yield batch
        return
    widest = max((_widest(batch.column(number)) for number in positions), default=0)
    step = max(1, _BATCH_BYTES // max(1, 8 * widest * len(positions)))
    for start in range(0, batch.num_rows, step):
        part = batch.slice(start, step)
        columns = [_list(column) if number in positions else column for number, column in enumerate(part.columns)]
        yield pa.RecordBatch.from_arrays(columns, schema=without_vectors(batch.schema))


def _widest(array: Any) -> int:
    kinds, sizes, _, values = array.flatten()
    lengths = np.where(_filled(kinds, 1) == 0, _filled(sizes, 0), _filled(values.value_lengths(), 0))
    return int(lengths.max(initial=0))


def _list(array: Any) -> Any:
    """Return vectors, null or not, as LIST."""
    kinds, sizes, indices, values = array.flatten()  # with the nulls of the vectors
    sparse = _filled(kinds, 1) == 0
    if not sparse.any():
        return values.cast(LIST)
    counts = _filled(values.value_lengths(), 0)
    lengths = np.where(sparse, _filled(sizes, 0), counts)
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    rows = np.repeat(np.arange(len(array)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    within[sparse[rows]] = indices.filter(pa.array(sparse)).flatten().to_numpy(zero_copy_only=False)
    out = np.zeros(int(starts[-1]))
    out[starts[rows] + within] = values.flatten().to_numpy(zero_copy_only=False)
    null = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(pa.array(starts), pa.array(out), mask=null)


def _filled(array: Any, value: int) -> np.ndarray[Any, Any]:
    return np.asarray(array.fill_null(value).to_numpy(zero_copy_only=False)).astype(np.int64)


def column_to_numpy(array: Any, name: str, source_label: str, skip: str) -> Array:
    """Return an Arrow column, as Spark hands it to Python, as an array: numbers and booleans (rows,), lists of one
    length (rows, n, …), vectors (rows, n) of float64, decimals float64, dates and times datetime64, text and bytes as
    objects, None where null.

    Args:
        array: the Arrow array.
        name, source_label: of the column, for messages.
        skip: how else the user may avoid the error: "or do not read the column".

    Raises:
        DataError: a column of another type than text and bytes has nulls; lists differ in length; the type is no array.
    """
    if is_vector(array.type):
        parts = [batch.column(0) for batch in lists(pa.record_batch([array], [name]))]
        array = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    kind = array.type
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return np.array([*array.to_pylist(), None], dtype=object)[:-1]  # never (rows, characters)
    nulls = null_rows(array) if is_list(kind) or array.null_count else None
    if nulls is not None and nulls.any():
        raise DataError(
            f"column {name!r} of {source_label}: {int(nulls.sum())} of {len(array)} rows hold null, first row "
            f"{int(np.argmax(nulls))}; drop or fill them first (df.na.drop, df.na.fill), {skip}"
        )
    if pa.types.is_nested(kind) and not is_list(kind):
        raise DataError(
            f"column {name!r} of {source_label} has type {kind}, which is no array; select the fields that you need of "
            f"it, {skip}"
        )
    return to_numpy(array, name, source_label)
