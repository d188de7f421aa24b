"""Python rows as a record batch where they are numbers, and back: numbers are then sent as such, not as objects.

A row is a number, or a tuple, list or named tuple of numbers, lists of numbers (of one length in all rows) and NumPy
arrays. All others stay Python objects.
"""

from __future__ import annotations

import functools
import json
from array import array
from collections import namedtuple
from collections.abc import Sequence
from operator import countOf
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.formats.arrow import Array, to_arrow, to_numpy

_KEY = b"hopyard.rows"
"""Key in a schema's metadata: the form of the rows before they were packed."""
_CODES = {float: "d", int: "q"}
_DTYPES = {float: np.float64, int: np.int64, bool: np.bool_}


def packed(rows: Sequence[Any]) -> Any:
    """Return a record batch of `rows`, or a list of them where they are not numbers of one form."""
    items = list(rows) if not isinstance(rows, list) else rows
    if not items:
        return items
    kind = type(items[0])
    if any(type(row) is not kind for row in items):
        return items
    parts: list[Any] = [items]
    names = ["value"]
    if issubclass(kind, (tuple, list)):
        width = len(items[0])
        if not width or any(len(row) != width for row in items):
            return items
        if kind not in (tuple, list) and not hasattr(items[0], "__fields__"):
            return items
        parts = list(zip(*items, strict=True))
        names = list(getattr(items[0], "__fields__", None) or (f"_{n}" for n in range(1, width + 1)))
        if len(set(names)) < width:
            return items
    columns = []
    for part in parts:
        column = _column(part)
        if column is None:
            return items
        columns.append(column)
    forms = [column_form for _, column_form in columns]
    form = {"row": _row_kind(kind), "columns": forms}
    arrays = [to_arrow(values, f"column {name!r}") for name, (values, _) in zip(names, columns, strict=True)]
    schema = pa.schema(
        [(name, part.type) for name, part in zip(names, arrays, strict=True)], metadata={_KEY: json.dumps(form)}
    )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def unpacked(batch: Any) -> list[Any]:
    """Return the rows of a record batch: as they were before `packed`, or as tuples of Python values."""
    form = json.loads((batch.schema.metadata or {}).get(_KEY, b"null"))
    if form is None:
        return list(zip(*(_values(part) for part in batch.columns), strict=True))
    parts = []
    for number, column_form in enumerate(form["columns"]):
        values = to_numpy(batch.column(number), batch.schema.names[number], "the feed")
        parts.append(list(values.reshape(-1, *column_form)) if isinstance(column_form, list) else values.tolist())
    if form["row"] == "bare":
        return list(parts[0])
    rows = zip(*parts, strict=True)
    if form["row"] == "list":
        return [list(row) for row in rows]
    if form["row"] == "named":
        return list(map(_named(tuple(batch.schema.names))._make, rows))
    return list(rows)


def _values(column: Any) -> list[Any]:
    """Return a column as Python values; arrays stay arrays."""
    if isinstance(column.type, pa.FixedShapeTensorType):
        return list(to_numpy(column, "", "the feed"))
    return list(column.to_pylist())


@functools.cache
def _named(names: tuple[str, ...]) -> Any:
    """Return a class in place of Spark's Row, which would need pyspark: a tuple with the columns' names."""
    return namedtuple("Row", names, rename=True)


def _row_kind(kind: type) -> str:
    if kind is tuple:
        return "tuple"
    if kind is list:
        return "list"
    return "named" if issubclass(kind, tuple) else "bare"


def _column(values: Sequence[Any]) -> tuple[Array, Any] | None:
    """Return one value of each row as an array of shape (rows, …), and the form of the values: "number", "list", or an
    array's shape. None: they are not numbers of one form."""
    first = values[0]
    kind = type(first)
    if kind in _DTYPES:
        if any(type(value) is not kind for value in values):
            return None
        try:
            return np.array(values, _DTYPES[kind]), "number"
        except OverflowError:
            return None
    if kind is list:
        return _list_column(values)
    if kind is np.ndarray and first.dtype.kind in "biuf" and first.dtype.isnative and 0 not in first.shape:
        if any(type(v) is not np.ndarray or v.shape != first.shape or v.dtype != first.dtype for v in values):
            return None
        return np.stack(values), list(first.shape)
    return None


def _list_column(values: Sequence[list[Any]]) -> tuple[Array, Any] | None:
    """Return a column of lists of floats, or of integers. `array` is filled in a third of the time of np.array."""
    size = len(values[0])
    kind = type(values[0][0]) if size else None
    code = _CODES.get(kind) if kind is not None else None
    if code is None or any(type(value) is not list or len(value) != size for value in values):
        return None
    if any(countOf(map(type, value), kind) != size for value in values):  # True is no 1, and 1 no 1.0
        return None
    numbers = array(code)
    try:
        for value in values:
            numbers.fromlist(value)
    except (TypeError, OverflowError):
        return None
    return np.frombuffer(numbers, code).reshape(-1, size), "list"
