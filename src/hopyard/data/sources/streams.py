"""Tables of other libraries, by Arrow's PyCapsule interface: frames of Polars, relations of DuckDB, tables of Ibis.

Some hold their rows in memory, some run a query for each reading, and some can be read once. Nothing tells the last two
apart, so the rows of both are read as a stream, and a second reading must give the same rows as the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from hopyard.errors import DataError
from hopyard.filesystems import line_of

_METHODS: dict[str, dict[str, int]] = {
    "to_pyarrow_batches": {},
    "to_arrow_iter": {},
    "scanner": {"batch_readahead": 2, "fragment_readahead": 1},
    "to_reader": {},
}
"""Methods that give record batches one after the other, and their arguments: of Ibis, of Daft, and of data sets and
scanners of PyArrow. These have no `__arrow_c_stream__`, or one of all rows in memory."""


def has_rows(data: Any) -> bool:
    """Return whether it is a table, a query or a reader with columns. A single column (a Series) also exports a
    stream; it is refused.
    """
    kind = type(data)
    if any(hasattr(kind, name) for name in _METHODS):
        return True
    return hasattr(kind, "__arrow_c_stream__") and not (hasattr(kind, "to_frame") or kind is pa.ChunkedArray)


def in_memory(data: Any) -> bool:
    """Return whether such data has its rows in memory: it knows their size."""
    return hasattr(type(data), "nbytes") or hasattr(type(data), "estimated_size")


def as_table(data: Any) -> pa.Table:
    """Return data in memory as a table, without a copy where the layout allows it. Raise DataError if it cannot be."""
    try:
        return pa.table(data)
    except Exception as error:
        raise _unreadable(data, error) from error


class Stream:
    """The record batches of data that `has_rows`, opened anew for each iteration."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        try:
            data = self._data
            for method, arguments in _METHODS.items():
                if hasattr(type(data), method):
                    data = getattr(data, method)(**arguments)
            yield from pa.RecordBatchReader.from_stream(data) if hasattr(data, "__arrow_c_stream__") else data
        except Exception as error:
            raise _unreadable(self._data, error) from error


def _unreadable(data: Any, error: Exception) -> DataError:
    return DataError(
        f"the {type(data).__name__} cannot be read as Arrow: {line_of(error)}; convert it to a pyarrow.Table"
    )
