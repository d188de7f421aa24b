"""Conversion between Arrow's columns and NumPy's arrays, without copies where there need not be any."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopyard.checks import no_such
from hopyard.errors import DataError
from hopyard.text import sendable

Array = np.ndarray[Any, Any]


def plain(value: Any) -> Array:
    """Return `value` as a NumPy array: a masked array stays one, so that `to_arrow` makes nulls of what is masked; of
    other subclasses only the values count.
    """
    return value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)


def masked_at(values: Sequence[Any]) -> int | None:
    """Return the index of the first of these values of which a mask hides something; None: there is none."""
    if not any(issubclass(kind, np.ma.MaskedArray) for kind in set(map(type, values))):
        return None
    return next((at for at, value in enumerate(values) if np.ma.is_masked(value)), None)


def rows_of(value: Any, name: str) -> Array:
    """Return `value` as an array of shape (rows, …), as `plain` does. Raises DataError where it has no rows axis."""
    try:
        array = plain(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} is no array of shape (rows, …): {error}") from error
    if array.ndim == 0:
        raise DataError(f"{name} must be an array of shape (rows, …), got a single value of type {array.dtype}")
    return array


def to_lists(array: Array, kind: Any = None) -> Any:
    """Return an array of shape (rows, …) as lists in lists, whose values have the Arrow type `kind`; None: that of the
    dtype. Offsets have 32 bits, as Spark takes no others: with more values it raises DataError."""
    nested = pa.array(np.ascontiguousarray(array).reshape(-1), kind)
    for axis in range(array.ndim - 1, 0, -1):
        offsets = np.arange(math.prod(array.shape[:axis]) + 1, dtype=np.int64) * array.shape[axis]
        if offsets[-1] >= 1 << 31:
            raise DataError(
                f"a block of shape {array.shape} is more than one Arrow list may hold; make blocks smaller with "
                f"spark.sql.execution.arrow.maxRecordsPerBatch"
            )
        nested = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), nested)
    return nested


def to_arrow(array: Any, name: str) -> Any:
    """Return an Arrow array of `array`'s rows: shape (rows,) as plain values, (rows, …) as fixed-shape tensors; null
    where a masked array is masked.

    Raises:
        DataError: no rows axis, rows without values, or a dtype that Arrow lacks.
    """
    array = rows_of(array, name)
    if 0 in array.shape[1:]:
        raise DataError(f"{name} has shape {array.shape}: rows without values; give each row at least one")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        if array.ndim == 1:
            return pa.array(array)
        values = pa.array(np.ma.ravel(array) if np.ma.isMaskedArray(array) else np.ascontiguousarray(array).reshape(-1))
        storage = pa.FixedSizeListArray.from_arrays(values, math.prod(array.shape[1:]))
        return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(values.type, array.shape[1:]), storage)
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"{name} has dtype {array.dtype}, which cannot be used as numbers: {error}") from error
    except UnicodeError as error:
        invalid = next((text for text in array.flat if isinstance(text, str) and not sendable(text)), "")
        raise DataError(f"{name} has the value {invalid!a}, which UTF-8 cannot write: {error}") from error
    except OverflowError as error:
        raise DataError(
            f"{name} has an integer of more than 64 bits: give floating point, or text ({error})"
        ) from error


def doubled(kind: Any) -> Any:
    """Return an Arrow type with float64 in place of float32, inside lists too."""
    if pa.types.is_list(kind):
        return pa.list_(doubled(kind.value_type))
    return pa.float64() if kind == pa.float32() else kind


def plain_type(kind: Any, decode: bool = True) -> Any:
    """Return the one Arrow type that stands for all layouts of the same values: text, bytes and lists with offsets of
    32 bits, text and bytes without views, no run ends, and with `decode` no dictionaries.
    """
    test = pa.types
    if test.is_string_view(kind) or test.is_large_string(kind):
        return pa.string()
    if test.is_binary_view(kind) or test.is_large_binary(kind):
        return pa.binary()
    if test.is_dictionary(kind):
        values = plain_type(kind.value_type, decode)
        return values if decode else pa.dictionary(kind.index_type, values, kind.ordered)
    if test.is_run_end_encoded(kind):
        return plain_type(kind.value_type, decode)
    if is_list(kind):
        size = kind.list_size if test.is_fixed_size_list(kind) else -1
        return pa.list_(plain_type(kind.value_type, decode), size)
    if test.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type, decode)) for field in kind])
    return kind


def plain_schema(schema: Any, decode: bool = True, keep: Collection[str] = ()) -> Any:
    """Return a schema with the `plain_type` of each column; `keep`: columns that stay dictionaries."""
    fields = [field.with_type(plain_type(field.type, decode and field.name not in keep)) for field in schema]
    return pa.schema(fields, schema.metadata)


def plain_batch(batch: Any, decode: bool = True, keep: Collection[str] = ()) -> Any:
    """Return a record batch with the types of `plain_schema`.

    Raises:
        DataError: a column cannot be converted.
    """
    schema = plain_schema(batch.schema, decode, keep)
    if list(map(str, schema.types)) == list(map(str, batch.schema.types)):  # equal types may name the values of lists
        return batch
    columns = list(map(_plain_array, batch.columns, schema.types, schema.names))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain_array(array: Any, kind: Any, name: str) -> Any:
    try:
        if pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        if array.get_total_buffer_size() >= 1 << 31:  # a slice, whose offsets would not fit into 32 bits
            array = pa.concat_arrays([array])
        for each in (plain_type(array.type, decode=False), kind):  # Arrow decodes no dictionary of views
            array = array if str(array.type) == str(each) else array.cast(each)
    except pa.ArrowException as error:
        raise DataError(
            f"column {name!r} has type {array.type}, which cannot be converted to {kind}: {error}; cast it first"
        ) from error
    return array


def is_untyped(kind: Any) -> bool:
    """Return whether an Arrow type is null, or that of lists or dictionaries of nulls."""
    if pa.types.is_dictionary(kind) or is_list(kind):
        return is_untyped(kind.value_type)
    return bool(pa.types.is_null(kind))


def merged(first: Any, second: Any) -> Any:
    """Return the type of two equal Arrow types, or the one with values where the other is of nulls; None: neither."""
    if first == second:
        return first
    one, other = (pa.null() if pa.types.is_dictionary(kind) and is_untyped(kind) else kind for kind in (first, second))
    try:
        return pa.unify_schemas([pa.schema([("", one)]), pa.schema([("", other)])]).field(0).type
    except pa.ArrowException:
        return None


def as_type(array: Any, kind: Any) -> Any:
    """Return an Arrow array as one of type `kind`, its own type `merged` with others. A dictionary whose values have
    this type stays one.
    """
    if kind == array.type or (pa.types.is_dictionary(array.type) and kind == array.type.value_type):
        return array
    return pa.nulls(len(array), kind) if is_untyped(array.type) and not is_list(array.type) else array.cast(kind)


def null_rows(array: Any) -> Array | None:
    """Return a boolean array of shape (rows,): whether any value of the row is null; None when none is."""
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return null_rows(array.storage)
    if pa.types.is_dictionary(kind) and array.dictionary.null_count:
        return null_rows(array.dictionary_decode())
    has_null = np.array(array.is_null().to_numpy(zero_copy_only=False)) if array.null_count else None
    if is_list(kind) and (inner := null_rows(array.flatten())) is not None:
        has_null = np.zeros(len(array), np.bool_) if has_null is None else has_null.copy()
        has_null[_parents(array)[inner]] = True
    return has_null


def to_numpy(array: Any, name: str, source_label: str, at: Callable[[int], str] | None = None, each: int = 1) -> Array:
    """Return the values of an Arrow array without nulls: shape (rows, …), its own dtype; a view where Arrow allows it.

    Args:
        array: the Arrow array.
        name, source_label: of the column, for messages.
        at: row → text that says where it is.
        each: how many of its lists one row of the column has.

    Raises:
        DataError: lists (or binaries) differ in length.
    """
    kind, rows = array.type, len(array)
    if isinstance(kind, pa.FixedShapeTensorType):
        values = to_numpy(array.storage, name, source_label, at, each)
        return values.reshape(rows, *kind.shape, *values.shape[2:])  # bytes are an axis of their own
    if pa.types.is_dictionary(kind):
        return to_numpy(array.dictionary_decode(), name, source_label, at, each)
    if pa.types.is_decimal(kind):
        return np.asarray(array.cast(pa.float64()).to_numpy())
    if is_list(kind):
        size = (
            kind.list_size
            if pa.types.is_fixed_size_list(kind)
            else _equal(array.value_lengths(), name, source_label, at, each)
        )
        inner = to_numpy(array.flatten(), name, source_label, at, each * max(size, 1))
        return inner.reshape(rows, size, *inner.shape[1:])
    if pa.types.is_fixed_size_binary(kind):
        size = kind.byte_width
        return np.frombuffer(array.buffers()[1], np.uint8, rows * size, array.offset * size).reshape(rows, size)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        width = np.dtype(np.int64 if pa.types.is_large_binary(kind) else np.int32)
        offsets = np.frombuffer(array.buffers()[1], width, rows + 1, array.offset * width.itemsize)
        size = _equal(np.diff(offsets), name, source_label, at, each)
        return np.frombuffer(array.buffers()[2] or b"", np.uint8, rows * size, int(offsets[0])).reshape(rows, size)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list of any kind that `to_numpy` takes."""
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text, or a dictionary of text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def list_lengths(array: Any) -> Array:
    """Return how many values of `array.flatten()` each row of an array of lists has, an int64 array; 0 where it is
    null."""
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size, np.int64)
        if array.null_count:
            lengths[np.asarray(array.is_null().to_numpy(zero_copy_only=False))] = 0
        return lengths
    return np.asarray(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)


def _parents(array: Any) -> Array:
    """Return the row of each value of `array.flatten()`, which leaves out what null rows hold."""
    return np.repeat(np.arange(len(array)), list_lengths(array))


def _equal(lengths: Any, name: str, source_label: str, at: Callable[[int], str] | None, each: int) -> int:
    sizes = np.asarray(lengths)
    if not len(sizes):
        return 0
    different = np.flatnonzero(sizes != sizes[0])
    if len(different):
        row = int(different[0]) // each
        raise DataError(
            f"column {name!r} of {source_label}: rows differ in length, {sizes[0]} values and then "
            f"{sizes[different[0]]} ({at(row) if at is not None else f'{row} rows later'}); pad or cut them first "
            f"(a hy.Dataset: transform=, or ragged= for a feature)"
        )
    return int(sizes[0])


def require(schema: Any, names: Iterable[str], source_label: str) -> None:
    """Raise DataError unless each of `names` is exactly once in `schema`; it names all that are missing."""
    counts = Counter(schema.names)  # Arrow cannot look up a name with half a surrogate pair
    times = {name: counts[name] for name in names}
    if absent := [name for name, count in times.items() if count == 0]:
        raise DataError(f"{source_label} has {no_such('column', absent, schema.names)}")
    for name, count in times.items():
        if count > 1:
            raise DataError(f"{source_label} has {count} columns named {name!r}; rename all but one")
