"""Turns what the user may give as rows into sources: arrays, tables, readers, data frames, map-style data sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.columns import batch_bytes
from hopyard.data.sources import Source
from hopyard.data.sources.memory import BYTES, ROWS, Arrays, BatchReader, Table
from hopyard.data.sources.streams import Stream, as_table, has_rows, in_memory
from hopyard.errors import DataError, SpecError
from hopyard.formats.arrow import Array, is_text, masked_at, plain, to_arrow
from hopyard.text import message_of, sendable, shown, unwritable


def from_numpy(
    x: Any, y: Any, weight: Any = None, key: Any = None
) -> tuple[dict[str, Array], Any, Any, str | None, str | None]:
    """Return (arrays by column name, features, label, weight, key); see `named_parts` for the names."""
    parts = {"inputs": x, "targets": y, "weight": weight, "key": key}
    values, names = named_parts({part: value for part, value in parts.items() if value is not None or part == "inputs"})
    arrays = {column: as_array(value, repr(text)) for column, (text, value) in values.items()}
    for column, (text, value) in values.items():
        if not arrays[column].ndim:
            raise DataError(f"{text} must be an array of shape (rows, …), got the single value {shown(value)}")
    return arrays, names["inputs"], names.get("targets"), names.get("weight"), names.get("key")


def refuse_text(schema: pa.Schema, keys: Sequence[str | None]) -> None:
    """Raise DataError for an array of text that is none of `keys`: arrays have no encode=, as columns have."""
    for field in schema:
        if is_text(getattr(field.type, "value_type", field.type)) and field.name not in keys:
            raise DataError(
                f"{field.name!r} is an array of text, no numbers: give the number of each value (`classes, numbers = "
                "np.unique(array, return_inverse=True)`), or use Dataset.pandas, which has encode="
            )


def named_parts(parts: Mapping[str, Any]) -> tuple[dict[str, tuple[str, Any]], dict[str, Any]]:
    """Names the columns of inputs, targets and weight, each an array or a dict of arrays.

    Returns:
        (by column: what the user calls it, and its value), (by part: its column, or a dict from name to column). A
        column has the name of the part or of the dict's key; where an earlier part has that, "part.name", with more
        dots if need be: what is trained on is never the label or the weight of the same name.

    Raises:
        SpecError: two keys of a dict are equal as text.
    """
    values: dict[str, tuple[str, Any]] = {}
    names: dict[str, Any] = {}
    for part, value in parts.items():
        single = not isinstance(value, Mapping)
        texts = [part] if single else [str(name) for name in value]
        different = set(texts)
        if len(different) < len(texts):
            twice = next(text for text in texts if texts.count(text) > 1)
            raise SpecError(f"{part} have two keys that are {twice!r} as text: names are text; rename one")
        columns = {}
        for text in texts:
            column = text if text not in values else f"{part}.{text}"
            while column in values or (column != text and column in different):
                column += "."
            columns[text] = column
        values.update(
            zip(columns.values(), zip(texts, [value] if single else value.values(), strict=True), strict=True)
        )
        names[part] = columns[part] if single else columns
    return values, names


def from_arrow(source: Any, decode: bool = True) -> tuple[Source, pa.Schema | None]:
    """Return tables, queries, batches or a reader as (source, schema if it is known); SpecError for anything else.

    Args:
        source: what the user gave.
        decode: whether dictionaries are the same rows as their values: no transform sees their codes.
    """
    if (known := arrow_source(source, decode)) is not None:
        return known
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes, Mapping)):
        return BatchReader(source, "iterable of record batches", decode=decode), None
    raise SpecError(
        "source must be rows of Arrow, such as a pyarrow Table, RecordBatchReader or Dataset, a Polars or pandas "
        f"DataFrame, a DuckDB relation or an iterable of record batches, got {type(source).__name__}"
    )


def arrow_source(data: Any, decode: bool = True) -> tuple[Source, pa.Schema | None] | None:
    """Return rows that speak Arrow as `from_arrow` does, but for iterables; None where they are anything else."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return BatchReader(data, "record batch reader", decode=decode), data.schema
    if isinstance(data, (list, tuple)) and data and all(isinstance(batch, pa.RecordBatch) for batch in data):
        try:
            table = pa.Table.from_batches(data)
        except pa.ArrowException as error:
            raise DataError(f"the record batches differ in their schema: {error}") from error
        return Table(table, "record batches in memory", decode), table.schema
    if not has_rows(data):
        return None
    if in_memory(data):
        table = as_table(data)
        return Table(table, "table in memory", decode), table.schema
    return BatchReader(Stream(data), type(data).__name__, again=True, decode=decode), None


def from_pandas(frame: Any, used: Collection[str] | None = None) -> pa.Table:
    """Return a data frame as a table, without its index.

    Args:
        frame: the data frame.
        used: the columns that matter: others are left out where the table cannot have them. None: all matter.

    Raises:
        SpecError, DataError: it is no data frame; a column that matters cannot be in a table.
    """
    try:
        return _from_pandas(frame)
    except DataError:
        names = [str(name) for name in frame.columns]
        if used is None or not set(used) < set(names):
            raise
        return _from_pandas(frame.loc[:, [name in used for name in names]])


def _from_pandas(frame: Any) -> pa.Table:
    if not is_pandas(frame):
        raise SpecError(f"frame must be a pandas DataFrame, got {shown(frame)}")
    for at, (name, kind) in enumerate(zip(frame.columns, frame.dtypes, strict=True)):
        if kind.kind == "O" and (row := masked_at(frame.iloc[:, at])) is not None:
            raise DataError(f"column {str(name)!a}, row {row}: a mask hides a part of this cell; fill it first")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = "; ".join(map(str, error.args))
        raise DataError(f"the data frame cannot be used: {reason}; {_remedy(frame)}") from error


def table_of(data: Any, *, nan_is_null: bool = True) -> pa.Table | None:
    """Rows in memory whose columns have names, as one table: a pyarrow Table or RecordBatch, a pandas DataFrame, a dict
    from column to array, or a list of dicts. None: it is none of these.

    Args:
        data: what the user wrote.
        nan_is_null: whether NaN in a DataFrame is null; in a feed it is a number.

    Raises:
        SpecError, DataError: it is one of these, but cannot be a table.
    """
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, Mapping):
        if not data:
            raise DataError("the dict from column to array must not be empty")
        columns = {str(name): as_array(array, repr(name)) for name, array in data.items()}
        Arrays(columns, "the arrays")  # looks at names and lengths
        return pa.table({name: to_arrow(array, name) for name, array in columns.items()})
    if isinstance(data, (list, tuple)) and data and all(isinstance(row, Mapping) for row in data):
        return from_dicts(data)
    if is_pandas(data):
        return from_pandas(data) if nan_is_null else _pandas_with_nan(data)
    return None


def is_pandas(data: Any) -> bool:
    """Whether it is a pandas DataFrame, as far as its attributes tell."""
    return all(hasattr(data, name) for name in ("iloc", "columns", "dtypes"))


def from_dicts(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows that are dicts as one table, so that each column has one type."""
    names = rows[0].keys()
    if not names:
        raise DataError("row 0 is an empty dict: a row needs at least one key")
    for number, row in enumerate(rows):
        if row.keys() != names:
            differing = ", ".join(sorted(map(repr, row.keys() ^ names)))
            raise DataError(f"row {number} and row 0 differ in their keys: {differing}; each row needs the same")
    columns = {}
    for name in names:
        try:
            columns[str(name)] = _column([row[name] for row in rows])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _no_type(name, error) from error
    return pa.table(columns)


def _pandas_with_nan(frame: Any) -> pa.Table:
    """Return a table where NaN in a column of floats stays a number, as in Spark; None, NaT and NA are null."""
    columns = {}
    for name, column in frame.items():
        try:
            floats = isinstance(column.dtype, np.dtype) and column.dtype.kind == "f"
            columns[str(name)] = pa.array(column.to_numpy(), from_pandas=False) if floats else _of_objects(column)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _no_type(name, error) from error
    return pa.table(columns)


def _no_type(name: Any, error: Exception) -> DataError:
    reason = "; ".join(map(str, error.args))
    return DataError(f"column {name!r}: its values have no common type ({reason})")


def _of_objects(column: Any) -> Any:
    values = list(column) if column.dtype == object else []
    if values and all(isinstance(value, np.ndarray) and value.ndim > 1 for value in values):
        return _column(values)
    array = pa.array(column, from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _column(values: list[Any]) -> Any:
    """Return values as a column: arrays of one shape keep it; those of one dimension may differ in length.

    Raises:
        ValueError: a mask hides some of their values.
    """
    if masked_at(values) is not None:
        raise ValueError("a mask hides some of them; fill them, or leave such rows out")
    if all(isinstance(value, np.ndarray) and value.ndim > 1 for value in values):
        return to_arrow(np.stack(values), "its arrays")
    return pa.array(values)


def _remedy(frame: Any) -> str:
    """Says what to do about a data frame that cannot be a table."""
    names = [str(name) for name in frame.columns]
    for name in names:
        if not sendable(name):
            return f"rename the column {name!a}: UTF-8 cannot write its name"
        if names.count(name) > 1:
            return f"rename all but one of the columns {name!r}"
    for at, (name, kind) in enumerate(zip(names, frame.dtypes, strict=True)):
        if str(kind).startswith("Sparse"):
            return f"make the column {name!r} dense, with .sparse.to_dense()"
        if kind.kind == "c":
            return f"make the column {name!r} two, its real and its imaginary part"
        if kind.kind == "O":
            for row, value in enumerate(frame.iloc[:, at]):
                if isinstance(value, int) and unwritable(value):
                    return f"column {name!r}, row {row}: {value} has more than 64 bits; make it floating point, or text"
    return "give each column one type"


class Items:
    """The items of a map-style data set (`len(it)`, `it[i]`) as record batches; iterating again reads it again.

    Args:
        items: the data set.
        head: its item 0, which was read already to see what it is.
        lists: columns whose arrays have one axis, of any length.
    """

    def __init__(self, items: Any, head: Any, lists: Collection[str] = ()) -> None:
        self._items, self._head, self._lists = items, [head], lists

    def __iter__(self) -> Iterator[Any]:
        total = len(self._items)
        rows: list[dict[str, Array]] = []
        size = 0
        for number in range(total):
            try:
                item = self._head.pop() if number == 0 and self._head else self._items[number]
            except Exception as error:
                raise DataError(f"item {number} cannot be read: {type(error).__name__}: {error}") from error
            row = split_item(item, number)[0]
            if rows and row.keys() != rows[0].keys():
                raise DataError(f"item {number} has {sorted(row)}, the ones before have {sorted(rows[0])}")
            rows.append(row)
            size += sum(value.nbytes for value in row.values())
            if size >= batch_bytes(len(row), BYTES) or len(rows) >= ROWS or number == total - 1:
                yield self._stack(rows, number + 1 - len(rows))
                rows, size = [], 0

    def _stack(self, rows: list[dict[str, Array]], start: int) -> Any:
        columns = {}
        for name in rows[0]:
            values = [row[name] for row in rows]
            if name in self._lists and all(value.ndim == 1 and not np.ma.is_masked(value) for value in values):
                columns[name] = pa.array(values)
                continue
            for at, value in enumerate(values):
                if value.shape != values[0].shape:
                    raise DataError(
                        f"item {start + at}: {name!r} has shape {value.shape}, the ones before have {values[0].shape}; "
                        f"all items need one shape, or one axis where ragged= names it"
                    )
            columns[name] = to_arrow(_stacked(values), name)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _stacked(values: list[Array]) -> Array:
    """Return arrays of one shape as one, masked where one of them is. `np.ma.masked`, which is a float to NumPy
    whatever its neighbours are, takes their type.
    """
    if not any(map(np.ma.isMaskedArray, values)):
        return np.stack(values)
    kind = np.result_type(*({value.dtype for value in values if value is not np.ma.masked} or {np.dtype(np.float64)}))
    masked_value = np.ma.array(np.zeros((), kind), mask=True)
    stacked: Array = np.ma.stack([masked_value if value is np.ma.masked else value for value in values]).astype(kind)
    return stacked


def split_item(item: Any, number: int) -> tuple[dict[str, Array], Any, Any, Any]:
    """Return one item of a map-style data set as (arrays by column, inputs, targets, weight).

    The latter name the columns as `Dataset` wants them: one name, a dict, or None; all None where the item is a dict.
    """
    parts = item if isinstance(item, (tuple, list)) else (item,)
    if not 1 <= len(parts) <= 3:
        raise DataError(f"item {number} must be x, (x, y) or (x, y, weight), has {len(parts)} parts")
    roles = ["items"] if isinstance(item, Mapping) else ["inputs", "targets", "weight"]
    values, names = named_parts(dict(zip(roles, parts, strict=False)))
    arrays = {column: as_array(value, f"item {number}: {text!r}", False) for column, (text, value) in values.items()}
    return arrays, names.get("inputs"), names.get("targets"), names.get("weight")


def as_array(value: Any, description: str, objects: bool = True) -> Array:
    """Return `value` as a NumPy array. Raises DataError naming `description` when it is none, or an array of objects
    and `objects` is False."""
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        raise DataError(f"{description} is a sparse {type(value).__name__}, which is not taken; give its .toarray()")
    try:
        array = plain(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{description} must be an array, got {shown(value)}: {error}") from error
    if array.dtype.hasobject and not objects:
        raise DataError(f"{description} must be an array of numbers, got {shown(value)}, a {type(value).__name__}")
    return array


def from_items(
    items: Any, features: Any, label: Any, weight: Any, lists: Collection[str] = ()
) -> tuple[BatchReader, Any, Any, Any]:
    """Return (source, features, label, weight) of a map-style data set: its first item's names, unless it is a dict.

    Raises:
        SpecError: it is not such a data set, or the names do not fit its items.
        DataError: it is empty.
    """
    if isinstance(items, Mapping) or not hasattr(items, "__getitem__") or not hasattr(items, "__len__"):
        raise SpecError(f"items must be a map-style data set, with len(it) and it[i], got {shown(items)}")
    try:
        count = len(items)
    except Exception as error:
        raise DataError(f"items: its __len__ raised {type(error).__name__}: {message_of(error)}; mend it") from error
    if not count:
        raise DataError(f"items must have rows, got {shown(items)}, of length 0")
    head = items[0]
    first, inputs, targets, weights = split_item(head, 0)
    named = isinstance(head, Mapping)
    if named and features is None:
        raise SpecError(
            f"items are dicts with {sorted(first)}: name the inputs with features=, and the label with label="
        )
    if not named and not (features is None and label is None and weight is None):
        names = {"features": features, "label": label, "weight": weight}
        arguments = ", ".join(f"{name}={shown(value)}" for name, value in names.items() if value is not None)
        raise SpecError(f"{arguments}: these name keys of dicts, but the items are no dicts; leave them out")
    if not named:
        features, label, weight = inputs, targets, weights
    source = BatchReader(Items(items, head, lists), f"{type(items).__name__} of {len(items)} items", again=True)
    return source, features, label, weight
