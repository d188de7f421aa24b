"""Columns of a block as a dict of arrays, and arrays as Arrow columns of Spark.

It runs in executors and knows nothing of pyspark. Spark's Arrow is a dialect: no fixed-size lists, no unsigned numbers,
no half precision; a vector of pyspark.ml is a struct of (type, size, indices, values).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hopyard.errors import DataError
from hopyard.formats.arrow import Array, rows_of, to_lists

_SPARK_DTYPES = ("bool", "int8", "int16", "int32", "int64", "float32", "float64")
"""dtypes that Spark has."""
_WIDENED = {"uint8": "int16", "uint16": "int32", "uint32": "int64", "float16": "float32", "bfloat16": "float32"}
"""dtype → the smallest dtype of Spark that holds all its values."""

_DENSE = 1
"""`type` of a dense vector; 0 is a sparse one."""


if TYPE_CHECKING:  # where a dict is a MutableMapping itself
    _Mapping = dict[str, Array]
else:

    class _Mapping(MutableMapping, dict):
        """A dict by its type; its methods, all but those below, ask `__getitem__`."""


class LazyColumns(_Mapping):
    """A dict from column to array whose arrays are made when they are first asked for: what nobody reads costs nothing.

    It is a dict for libraries that ask for one (pandas), but those that look into dicts themselves, such as JAX, want
    `dict(columns)`.

    Args:
        makers: column → function that returns its array.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Array]]) -> None:
        super().__init__()
        self._makers = dict(makers)
        self._arrays: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            self._arrays[name] = self._makers[name]()
        return self._arrays[name]

    def __setitem__(self, name: str, array: Array) -> None:
        self._makers[name] = lambda: array
        self._arrays[name] = array

    def __delitem__(self, name: str) -> None:
        del self._makers[name]
        self._arrays.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:  # that of Mapping would make the array
        return name in self._makers

    def __or__(self, other: Any) -> Any:
        return dict(self) | dict(other)

    def __ror__(self, other: Any) -> Any:
        return dict(other) | dict(self)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._makers)

    def __repr__(self) -> str:
        return f"<columns {', '.join(map(repr, self._makers))}>"

    def copy(self) -> dict[str, Array]:
        """Return all columns as a plain dict."""
        return dict(self)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def to_vectors(values: Array) -> Any:
    """Return an array of shape (rows, n) as dense vectors of pyspark.ml."""
    rows = len(values)
    parts = [
        pa.array(np.full(rows, _DENSE, np.int8)),
        pa.nulls(rows, pa.int32()),
        pa.nulls(rows, pa.list_(pa.int32())),
        to_lists(np.asarray(values, np.float64)),
    ]
    return pa.StructArray.from_arrays(parts, names=["type", "size", "indices", "values"])


def to_column(values: Any, name: str) -> Any:
    """Return an array of shape (rows, …) as an Arrow column in Spark's dialect: lists in lists for each further axis;
    a dict of arrays as a struct.

    Raises:
        DataError: `values` is no array of rows, or has a dtype that Spark lacks; names the column.
    """
    if isinstance(values, dict):
        parts = {key: to_column(part, f"{name}.{key}") for key, part in values.items()}
        return pa.StructArray.from_arrays(list(parts.values()), names=[str(key) for key in parts])
    array = np.asarray(rows_of(values, repr(name)))
    if array.dtype.kind in "USO" or (array.dtype.kind == "M" and array.ndim == 1):
        return _text_or_times(array, name)
    kind = _WIDENED.get(array.dtype.name, array.dtype.name)
    if kind not in _SPARK_DTYPES:
        allowed = ", ".join([*_SPARK_DTYPES, *_WIDENED])
        raise DataError(f"{name!r} has dtype {array.dtype}, which Spark lacks; {allowed}, text and times are allowed")
    return to_lists(array.astype(kind, copy=False))


def _text_or_times(array: Array, name: str) -> Any:
    """Return an array of text, bytes or times, of shape (rows,) only, as an Arrow column."""
    if array.ndim > 1:
        raise DataError(f"{name!r} has shape {array.shape} and dtype {array.dtype}; arrays of text have shape (rows,)")
    try:
        if array.dtype.kind == "M":
            unit = np.datetime_data(array.dtype)[0]
            return pa.array(array.astype("datetime64[D]" if unit == "D" else "datetime64[us]"))
        column = pa.array(array.tolist())
    except pa.ArrowException as error:
        raise DataError(f"{name!r} is an array of objects that are no column: {error}") from error
    return column
