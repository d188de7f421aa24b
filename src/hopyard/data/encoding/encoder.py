"""From record batches to raw arrays: types, growing vocabularies, and the refusal of bad values.

Encoding has two steps: `Encoder.raw` (one pass over a batch; a category becomes the number of its first appearance) and
`finalize.FeatureFinalizer` (sorted vocabularies, one-hot, means and deviations). Where a vocabulary or a mean is not
known before all rows were seen, raw arrays are stored first and finalized after; `predict` does both at once, with the
same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.encoding.column_types import ONE_SCHEMA
from hopyard.data.encoding.faults import Fault
from hopyard.data.encoding.schema import FLOATS, list_values
from hopyard.data.manifest import Column, Field, Value
from hopyard.data.ragged import Ragged
from hopyard.errors import DataError
from hopyard.formats.arrow import Array, is_untyped, list_lengths, null_rows, to_numpy

WHOLE = 1 << 53
"""Floating point of 64 bits has all integers up to here."""
LARGEST = np.finfo(np.float32).max
ONE_HOT_LIMIT = 16_384
"""Values of a one-hot column: beyond it, one row of float32 is more than 64 KiB, and the column is rather a key."""
MISSING = -1
"""Code of a category whose value is missing."""
_STEP = 4096
"""Rows that are stacked at once: with 20 columns about 320 KiB, inside the second-level cache."""


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Where a batch came from, for messages: its first row is row `row` of `name`, or of the transform's result."""

    name: str
    row: int
    transformed: bool = False

    def __str__(self) -> str:
        return f"the transform's result for {self.name}" if self.transformed else self.name

    def at(self, row: int) -> str:
        """Describes row `row` of this batch."""
        number = self.row + row
        return (
            f"row {number} (counted after the transform) of {self.name}"
            if self.transformed
            else f"row {number} of {self.name}"
        )


@dataclass(slots=True)
class Vocabulary:
    """The values of one column of categories.

    Attributes:
        column: its name.
        values: value → code.
        fixed: whether it takes no new values.
        other: whether one more category, the last, stands for values that are none of the others.
        min_frequency: how many training rows each of its values has, where it grows and has `other`.
        fill: the value that stands for missing ones; None: none is missing, or it is not known yet.
        counts: int64 array of shape (values + 2,): how many training rows have each code, from MISSING to that of other
            values; None: they were not counted, so all values are categories.
    """

    column: str
    values: dict[Value, int] = field(default_factory=dict)
    fixed: bool = False
    other: bool = False
    min_frequency: int = 1
    fill: Value | None = None
    counts: Array | None = None

    def codes(
        self,
        array: Any,
        origin: RowOrigin,
        missing: Array | None = None,
        *,
        is_label: bool = False,
        refused: Array | None = None,
    ) -> Array:
        """Return an int64 array of shape (rows,): the code of each row, by first appearance while the values grow;
        MISSING where a value is.

        Args:
            array: Arrow values.
            origin: their origin.
            missing: which of them are missing; None: none.
            is_label: whether the column is a label, for messages.
            refused: Boolean array of shape (rows,), set where a value is refused, in place of an error.

        Raises:
            DataError: a value that a fixed vocabulary lacks, or of another type than its values.
        """
        if missing is not None and missing.all():
            return np.full(len(array), MISSING)
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        indices = array.indices if missing is None else array.indices.fill_null(0)
        index = np.asarray(indices.to_numpy(zero_copy_only=False)).astype(np.int64)
        used = np.bincount(index if missing is None else index[~missing], minlength=len(array.dictionary)) > 0
        table = np.zeros(len(array.dictionary), np.int64)
        for at, value in enumerate(array.dictionary.to_pylist()):
            if used[at]:
                code = self.values.get(value)
                if code is None:
                    rows = index == at if missing is None else (index == at) & ~missing
                    try:
                        code = self._new(value, origin.at(int(np.argmax(rows))), is_label)
                    except DataError:
                        if refused is None:
                            raise
                        refused |= rows
                        continue
                table[at] = code
        codes = np.asarray(table[index])
        if missing is not None:
            codes[missing] = MISSING
        return codes

    def count(self, codes: Array) -> None:
        """Adds training rows to `counts`, when all values are known."""
        counts = np.bincount(codes - MISSING, minlength=len(self.values) - MISSING + 1)
        self.counts = counts if self.counts is None else self.counts + counts

    def _new(self, value: Value, row: str, is_label: bool) -> int:
        if not self.fixed:
            return self.values.setdefault(value, len(self.values))
        text = isinstance(value, str)
        mistyped = bool(self.values) and isinstance(next(iter(self.values)), str) != text
        if self.other and not mistyped:
            return len(self.values)
        shown = ", ".join(map(repr, list(self.values)[:20])) + (", …" if len(self.values) > 20 else "")
        if mistyped:
            raise DataError(
                f"column {self.column!r}, {row}: {value!r} is {'text' if text else 'no text'}, and the values it is "
                f"encoded by are {'not' if text else 'text'} ({shown}): such values are never equal; cast the column, "
                f"or train with values of its type in encode={{{self.column!r}: …}}"
            )
        other = "" if is_label else ", or with hy.Categories(…), which keeps a category for other values"
        raise DataError(
            f"column {self.column!r}, {row}: {value!r} is not among the {len(self.values)} values it is encoded by "
            f"({shown}); drop or mend such rows first, or list all values in encode={{{self.column!r}: …}}: "
            f'("index", [...]), or [...] for one-hot rows{other}'
        )

    def ranks(self) -> Array:
        """Return an int64 array of shape (values + 2,): from code to place among the categories; then those of a value
        that a fixed vocabulary lacks, and of a missing one (code MISSING)."""
        places = {value: place for place, value in enumerate(self.ordered_values())}
        last = len(places)  # the category of other values, if there is one
        codes = [places.get(value, last) for value in self.values]
        return np.array([*codes, last, places.get(self.fill, last) if self.fill is not None else last])

    def ordered_values(self) -> list[Value]:
        """Return the categories in the order of their final codes. −0.0 and 0.0 are one value, given as 0.0."""
        values = list(self.values)
        if not self.fixed:
            values = sorted(value for value in values if self._is_frequent(value))
        return [value + 0.0 if isinstance(value, float) else value for value in values]

    def most_frequent(self) -> Value:
        """Return the value that most of the counted rows have, of equals the least one. Raise DataError where no row
        has any."""
        counts = self.counts
        if counts is None or not counts[-MISSING : len(self.values) - MISSING].any():
            raise DataError(
                f"column {self.column!r}: the value of every training row is missing, so none is the most frequent; "
                'leave the column out, or give impute= ("constant", value) for it'
            )
        return min(self.values, key=lambda value: (-counts[self.values[value] - MISSING], value))

    def _is_frequent(self, value: Value) -> bool:
        if not self.other or self.counts is None:
            return True
        count = self.counts[self.values[value] - MISSING] + (self.counts[0] if value == self.fill else 0)
        return bool(count >= self.min_frequency)


class Encoder:
    """Turns batches into the arrays of `fields`. Owns the vocabularies that grow and the faults found so far.

    Args:
        fields: one for each array.
        vocabularies: column of categories → its values.
        strict: whether columns must keep the type that they were planned with (`predict` takes what can be cast).
        drops: whether the caller drops rows that have faults, and encodes the others again. Then a value that a fixed
            vocabulary lacks is a fault too, and nothing is raised as long as there are faults.
    """

    def __init__(
        self, fields: list[Field], vocabularies: dict[str, Vocabulary], strict: bool = True, drops: bool = False
    ) -> None:
        self.fields = fields
        self.vocabularies = vocabularies
        self.faults: dict[str, Fault] = {}
        self.refused: Array = np.zeros(0, np.bool_)
        """Which rows of the last batch have faults."""
        self._counted: set[str] = set()
        self._missing: dict[str, Array] = {}
        """Which rows of the batch lack a number in a column that is filled."""
        self._labels = {column.name for field in fields if field.role == "targets" for column in field.columns}
        self._strict, self._drops = strict, drops

    def raw(self, batch: Any, origin: RowOrigin) -> list[Any]:
        """Return an array for each field: shape (rows, *raw row shape), or Ragged; dtype `field.raw`; may be views of
        the batch.

        Bad values are counted in `faults`; once there are any, the list is empty.
        """
        self._counted.clear()
        self._missing.clear()
        self.refused = np.zeros(batch.num_rows, np.bool_)
        arrays: list[Any] = []
        error: DataError | None = None
        with np.errstate(over="ignore", invalid="ignore"):
            for field in self.fields:
                try:
                    arrays.append((self._ragged if field.is_ragged else self._raw)(field, batch, origin))
                except DataError as caught:
                    error = error or caught
        if error is not None and not (self._drops and self.faults):  # else it may be of a row that is dropped
            raise error
        return [] if self.faults else [array for array in arrays if array is not None]

    def _ragged(self, field: Field, batch: Any, origin: RowOrigin) -> Ragged | None:
        """Return rows of any length; None: some are bad, or have no values."""
        (column,) = field.columns
        array, kind = self._typed(column, batch, origin)
        array = array.cast(pa.list_(pa.int8())) if is_untyped(kind) else array
        if list_values(array.type) is None:
            raise DataError(f"column {column.name!r} of {origin} must have lists of numbers, has type {kind}")
        array = array.storage if isinstance(kind, pa.FixedShapeTensorType) else array
        lengths, nulls = list_lengths(array), null_rows(array)
        bad = lengths == 0 if nulls is None else (lengths == 0) | nulls
        if not bad.any():
            rows = Ragged.of(to_numpy(array.flatten(), column.name, str(origin)), lengths)
            rows = rows if column.max_length is None else rows.cut(column.max_length)
            values = _cast(rows.values, field.raw, column, origin)
            rows = Ragged(values, rows.starts, rows.ends)
            if field.raw in FLOATS:
                bad[np.repeat(np.arange(len(rows)), rows.lengths)[_bad(values)]] = True
        if bad.any():
            self._add_fault(column, bad, origin)
            return None
        return rows

    def _raw(self, field: Field, batch: Any, origin: RowOrigin) -> Array | None:
        parts = [self._values(column, batch, origin) for column in field.columns]
        if field.role == "inputs" and field.raw in FLOATS:
            try:
                for column, values in zip(field.columns, parts, strict=True):
                    _exact(column, values, origin)
            except DataError:
                self._count_all_bad(field, parts, origin)  # the row may be one of those that are dropped
                raise
        good = [part for part in parts if part is not None]
        if len(good) < len(parts):
            self._count_all_bad(field, parts, origin)
            return None
        if not field.matrix:
            (values,), (column,) = good, field.columns
            array = values if values.dtype == field.raw else _cast(values, field.raw, column, origin)
            if field.raw in FLOATS and not _fine(array):
                self._count_all_bad(field, parts, origin)
                return None
            if field.role == "weights" and (values < 0).any():  # not of the cast ones: -1e-300 becomes -0
                row = int(np.argmax(values < 0))
                raise DataError(
                    f"weight column {column.name!r}, {origin.at(row)}: {values[row]} is below 0; a weight must be a "
                    f"number >= 0, where 0 leaves the row out; drop or replace such rows before, or with transform="
                )
            if (missing := self._missing.get(column.name)) is not None and column.is_filled:
                array[missing] = np.nan
            return array
        array = np.empty((batch.num_rows, sum(column.size for column in field.columns)), field.raw)
        flat = [values if values.ndim == 1 else values.reshape(len(values), -1) for values in good]
        fine = True
        for start in range(0, len(array), _STEP):
            at, rows = 0, slice(start, start + _STEP)
            for values in flat:
                width = 1 if values.ndim == 1 else values.shape[1]
                array[rows, at if values.ndim == 1 else slice(at, at + width)] = values[rows]
                at += width
            fine = fine and (field.raw == "int64" or _fine(array[rows]))
        if fine:
            at = 0
            for column in field.columns:
                if (missing := self._missing.get(column.name)) is not None and column.is_filled:
                    array[missing, at] = np.nan
                at += column.size
            return array
        self._count_all_bad(field, parts, origin)
        return None

    def _values(self, column: Column, batch: Any, origin: RowOrigin) -> Array | None:
        """Return the values of one column, shape (rows, *column.shape), categories as codes; None: some are bad."""
        array, kind = self._typed(column, batch, origin)
        if column.impute:
            return self._filled(column, array, kind, origin)
        bad = null_rows(array)
        if bad is not None:
            values = None if column.encode else to_numpy(array.filter(pa.array(~bad)), column.name, str(origin))
            if values is not None and values.dtype.name in FLOATS:
                bad[~bad] = _bad(values)
            self._add_fault(column, bad, origin)
            return None
        if column.encode:
            return self._codes(column, array, kind, origin)
        values = to_numpy(array, column.name, str(origin), origin.at)
        if values.dtype.kind not in "biuf":
            expected = column.type.rpartition(":")[0]
            raise DataError(f"column {column.name!r} of {origin} must have type {expected}, has {array.type}")
        if values.shape[1:] != column.shape:
            if column.name in self.faults:  # of rows that were all null, which gave it no shape
                return None

            remedy = (
                f"give one row as an array of shape {(1, *column.shape)}, such as x[None]"
                if values.shape == column.shape
                else "pad or cut them with transform=, or name a feature in ragged="
            )
            raise DataError(
                f"column {column.name!r} of {origin}: rows must have shape {column.shape}, as those before, got "
                f"{f'shape {values.shape[1:]}' if values.shape[1:] else 'one number each'}; {remedy}"
            )
        return values

    def _typed(self, column: Column, batch: Any, origin: RowOrigin) -> tuple[Any, Any]:
        """Return a column and the type of its values. Raise DataError where it is not the type of those before."""
        array = batch.column(batch.schema.get_field_index(column.name))
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        expected = column.type.rpartition(":")[0]
        if self._strict and str(kind) != expected and not is_untyped(kind):
            raise DataError(
                f"column {column.name!r} of {origin} has type {kind}, before it had {expected}; "
                + (ONE_SCHEMA if origin.transformed else "all files, batches and validation data need one schema")
            )
        return array, kind

    def _filled(self, column: Column, array: Any, kind: Any, origin: RowOrigin) -> Array | None:
        """Return the values of a column whose missing ones (null, NaN) are filled later: a category as MISSING; a
        number as 0, noted in `_missing`. None: some are infinite or beyond float32."""
        null = null_rows(array)
        missing = np.zeros(len(array), np.bool_) if null is None else null
        if column.encode:
            return self._codes(column, array, kind, origin, missing)
        present = np.zeros(0) if missing.all() else to_numpy(array.filter(pa.array(~missing)), column.name, str(origin))
        if present.dtype.kind not in "biuf" or present.ndim > 1:
            raise DataError(f"column {column.name!r} of {origin} must have one number a row, has type {array.type}")
        values = np.zeros(len(array), present.dtype)
        values[~missing] = present
        if present.dtype.kind == "f":
            nan = np.isnan(values)
            values[nan] = 0
            missing = missing | nan
        if missing.any():
            self._missing[column.name] = missing
        return values

    def _codes(
        self, column: Column, array: Any, kind: Any, origin: RowOrigin, missing: Array | None = None
    ) -> Array | None:
        """Return the categories of a column as codes; where `missing` says which are null, these and NaN as MISSING.
        None: some are bad."""
        bad = np.zeros(len(array), np.bool_)
        if pa.types.is_floating(kind):
            floats = np.asarray(array.cast(kind).to_numpy(zero_copy_only=False))
            bad = _bad(floats)
            if missing is not None:
                missing = missing | np.isnan(floats)
                bad &= ~missing
        codes = None
        if not bad.any():
            missing = missing if missing is not None and missing.any() else None
            refused = bad if self._drops else None
            is_label = column.name in self._labels
            codes = self.vocabularies[column.name].codes(array, origin, missing, is_label=is_label, refused=refused)
        if bad.any():
            self._add_fault(column, bad, origin)
            return None
        return codes

    def _count_all_bad(self, field: Field, parts: list[Array | None], origin: RowOrigin) -> None:
        """Counts the bad numbers in those columns of a field whose values are there."""
        for column, values in zip(field.columns, parts, strict=True):
            if values is None or column.encode or values.dtype.name not in FLOATS:
                continue
            if (bad := _bad(values)).any():
                self._add_fault(column, bad, origin)

    def _add_fault(self, column: Column, bad: Array, origin: RowOrigin) -> None:
        """Counts the `bad` rows of a column: once a batch, even if two fields use the column."""
        self.refused |= bad
        if column.name in self._counted:
            return
        self._counted.add(column.name)
        if column.name not in self.faults:
            self.faults[column.name] = Fault(0, origin.at(int(np.argmax(bad))), None in column.shape)
        self.faults[column.name].count += int(bad.sum())


def _bad(values: Array) -> Array:
    """Boolean array of shape (rows,): whether a value of the row is NaN, infinite or beyond float32."""
    if not len(values):
        return np.zeros(0, dtype=bool)
    return np.asarray(~(np.abs(values.reshape(len(values), -1)) <= LARGEST).all(axis=1))


def _exact(column: Column, values: Array | None, origin: RowOrigin) -> None:
    """Raise DataError for the first integer of a feature that a float64 may not hold."""
    if values is None or column.encode or values.dtype.name not in ("int64", "uint64") or not values.size:
        return
    if values.min() >= -WHOLE and values.max() <= WHOLE:
        return
    wrong = (values < -WHOLE) | (values > WHOLE)
    row = int(np.argmax(wrong.reshape(len(values), -1).any(axis=1)))
    encode_hint = "" if column.shape else f'for categories give encode={{{column.name!r}: "index"}}; for amounts '
    raise DataError(
        f"feature {column.name!r}, {origin.at(row)}: {values[row][wrong[row]].flat[0]} is beyond 2**53, where floating "
        f"point makes different integers equal; {encode_hint}subtract an offset, or divide, with transform="
    )


def _cast(values: Array, dtype: str, column: Column, origin: RowOrigin) -> Array:
    """Return `values` as `dtype`; DataError where that would lose whole numbers."""
    result = values.astype(dtype)
    narrows = not np.can_cast(values.dtype, dtype, "same_kind") or (
        values.dtype.kind in "iu" and result.dtype.kind in "biu"
    )
    if narrows and not np.can_cast(values.dtype, dtype, "safe") and not np.array_equal(result, values):
        raise DataError(
            f"column {column.name!r} of {origin} has type {values.dtype} and values that {dtype} cannot hold"
        )
    return result


def _fine(values: Array) -> bool:
    """Whether every value is a number within float32."""
    return not values.size or bool(values.min() >= -LARGEST and values.max() <= LARGEST)
