"""Python rows as a record batch where they are numbers, and back: numbers then travel as such, not as objects.

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
"""In a schema's metadata: how rows looked before they were packed."""
_CODES = {float: "d", int: "q"}
_DTYPES = {float: np.float64, int: np.int64, bool: np.bool_}


def packed(rows: Sequence[Any]) -> Any:
    """A record batch of `rows`; a list of them where they are not numbers alike."""
    kept = list(rows) if not isinstance(rows, list) else rows
    if not kept:
        return kept
    kind = type(kept[0])
    if any(type(row) is not kind for row in kept):
        return kept
    parts: list[Any] = [kept]
    names = ["value"]
    if issubclass(kind, (tuple, list)):
        width = len(kept[0])
        if not width or any(len(row) != width for row in kept):
            return kept
        if kind not in (tuple, list) and not hasattr(kept[0], "__fields__"):
            return kept
        parts = list(zip(*kept, strict=True))
        names = list(getattr(kept[0], "__fields__", None) or (f"_{n}" for n in range(1, width + 1)))
        if len(set(names)) < width:
            return kept
    columns = []
    for part in parts:
        made = _column(part)
        if made is None:
            return kept
        columns.append(made)
    shapes = [what for _, what in columns]
    form = {"row": _form(kind), "columns": shapes}
    arrays = [to_arrow(made, f"column {name!r}") for name, (made, _) in zip(names, columns, strict=True)]
    schema = pa.schema(
        [(name, made.type) for name, made in zip(names, arrays, strict=True)], metadata={_KEY: json.dumps(form)}
    )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def unpacked(batch: Any) -> list[Any]:
    """The rows of a record batch: as they were before `packed`, or as tuples of Python values."""
    form = json.loads((batch.schema.metadata or {}).get(_KEY, b"null"))
    if form is None:
        return list(zip(*(_values(part) for part in batch.columns), strict=True))
    parts = []
    for number, what in enumerate(form["columns"]):
        values = to_numpy(batch.column(number), batch.schema.names[number], "the feed")
        parts.append(list(values.reshape(-1, *what)) if isinstance(what, list) else values.tolist())
    if form["row"] == "bare":
        return list(parts[0])
    rows = zip(*parts, strict=True)
    if form["row"] == "list":
        return [list(row) for row in rows]
    if form["row"] == "named":
        return list(map(_named(tuple(batch.schema.names))._make, rows))
    return list(rows)


def _values(column: Any) -> list[Any]:
    """Python values; arrays stay arrays."""
    if isinstance(column.type, pa.FixedShapeTensorType):
        return list(to_numpy(column, "", "the feed"))
    return list(column.to_pylist())


@functools.cache
def _named(names: tuple[str, ...]) -> Any:
    """Stands for Spark's Row, which would need pyspark: a tuple whose values have the columns' names."""
    return namedtuple("Row", names, rename=True)


def _form(kind: type) -> str:
    if kind is tuple:
        return "tuple"
    if kind is list:
        return "list"
    return "named" if issubclass(kind, tuple) else "bare"


def _column(values: Sequence[Any]) -> tuple[Array, Any] | None:
    """One value of each row as an array of shape (rows, …), and what they were: "number", "list", or an array's shape.
    None: they are no numbers alike."""
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
        return _lists(values)
    if kind is np.ndarray and first.dtype.kind in "biuf" and first.dtype.isnative and 0 not in first.shape:
        if any(type(v) is not np.ndarray or v.shape != first.shape or v.dtype != first.dtype for v in values):
            return None
        return np.stack(values), list(first.shape)
    return None


def _lists(values: Sequence[list[Any]]) -> tuple[Array, Any] | None:
    """Lists of floats, or of whole numbers. `array` is filled in a third of the time that np.array takes."""
    size = len(values[0])
    kind = type(values[0][0]) if size else None
    code = _CODES.get(kind) if kind is not None else None
    if code is None or any(type(value) is not list or len(value) != size for value in values):
        return None
    if any(countOf(map(type, value), kind) != size for value in values):  # True is no 1, and 1 no 1.0
        return None
    made = array(code)
    try:
        for value in values:
            made.fromlist(value)
    except (TypeError, OverflowError):
        return None
    return np.frombuffer(made, code).reshape(-1, size), "list"
