"""Plans the arrays that a model sees, from the columns that the user names, once the types of these are known.

Knows Arrow's types; reads no data but the widths of variable-length lists in the first batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from hopyard.data.encoding.column_types import ONE_SCHEMA
from hopyard.data.manifest import Column, Field, Role, Shape, Value
from hopyard.data.options import ColumnSpec, Names
from hopyard.errors import DataError
from hopyard.formats.arrow import is_list, is_text, is_untyped, require
from hopyard.text import shown

FLOATS = {"float16", "float32", "float64"}


def infer_fields(batch: pa.RecordBatch, spec: ColumnSpec, source_label: str) -> list[Field]:
    """Return the fields that `spec` asks for, given the first batch that has rows.

    Args:
        batch: one after the transform.
        source_label: where the batch is from, for messages.

    Raises:
        DataError: a column is missing or has a type that cannot be used.
    """
    require(batch.schema, spec.names, source_label)
    planner = _Planner(
        batch, spec, source_label, frozenset(spec.standardize if isinstance(spec.standardize, list) else ())
    )
    fields = [planner.field("inputs", name, names) for name, names in spec.inputs.items()]
    fields += [planner.field("targets", name, names) for name, names in spec.targets.items()]
    if spec.weight is not None:
        column = planner.column(spec.weight, "weights")
        if column.shape or column.encode:
            raise DataError(
                f"weight column {spec.weight!r} of {source_label} must have one number a row, has type {column.type}"
            )
        fields.append(Field("weights", "weights", False, [column], "float32", "float32"))
    if spec.validation is not None and not pa.types.is_boolean(batch.schema.field(spec.validation).type):
        raise DataError(
            f"validation must be a column of true and false, got {spec.validation!r}, which has in {source_label} type "
            f"{batch.schema.field(spec.validation).type}; make it one with transform="
        )
    if spec.standardize and not any(column.scaled for field in fields for column in field.columns):
        raise DataError(
            f"standardize = {spec.standardize!r}, but no feature is a number that it applies to: in a list of features "
            f"all numbers are standardized, a single column only when it is floating point"
        )
    return fields


def row_shape(field: Field, vocabularies: Mapping[str, list[Value]]) -> Shape:
    """Return the shape of one row as a model sees it, once all vocabularies are known."""
    if field.matrix:
        return (sum(width(column, vocabularies) for column in field.columns),)
    (column,) = field.columns
    return (width(column, vocabularies),) if column.encode == "one-hot" else column.shape


def width(column: Column, vocabularies: Mapping[str, list[Value]]) -> int:
    """Return how many values one row of `column` has after encoding."""
    if column.encode == "one-hot":
        return len(vocabularies[column.name]) + column.other
    return column.size


def raw_shape(field: Field) -> Shape:
    """Return the shape of one row before vocabularies are applied: a category is one value."""
    if field.matrix:
        return (sum(column.size for column in field.columns),)
    return field.columns[0].shape


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans the fields for `infer_fields`."""

    batch: Any
    spec: ColumnSpec
    source_label: str
    named: frozenset[str]
    """Columns that standardize= names."""

    def field(self, role: Role, name: str, names: Names) -> Field:
        """Plans one array: a matrix for a list of columns, the column itself for one name."""
        if role == "inputs" and isinstance(names, str) and name in (self.spec.ragged or ()):
            return self._ragged(name, names)
        matrix = not isinstance(names, str)
        columns = [self.column(column, role) for column in ([names] if isinstance(names, str) else names)]
        has_categories = any(column.encode for column in columns)
        only_integers = all(_dtype(column).startswith(("int", "uint", "bool")) for column in columns)
        if matrix and role == "inputs":
            columns = [column if _dtype(column) == "bool" else self._scaled(column) for column in columns]
            raw = "float64" if has_categories or any(each.scaled or each.impute for each in columns) else "float32"
            return Field(role, name, True, columns, raw, "float32")
        if matrix:
            if only_integers and all(column.encode != "one-hot" for column in columns):
                return Field(role, name, True, columns, "int64", "int64")
            return Field(role, name, True, columns, "float64" if has_categories else "float32", "float32")
        (column,) = columns
        if column.encode:
            return Field(role, name, False, columns, "int64", "int64" if column.encode == "index" else "float32")
        kind = _dtype(column)
        if role == "inputs" and (kind in FLOATS or column.name in self.named):
            column = self._scaled(column)
        if column.is_filled and kind not in FLOATS:
            raise DataError(
                f"impute names {column.name!r} of {self.source_label}, which has type {column.type.rpartition(':')[0]} "
                f"and keeps it, as a feature by itself: put it into a list of features, features=[{column.name!r}, …], "
                "or name it in encode="
            )
        if column.scaled or column.impute:
            return Field(role, name, False, [column], "float64", "float32")
        if role == "targets":
            kind = "int64" if only_integers else "float32"
        elif kind == "float64":
            kind = "float32"
        return Field(role, name, False, [column], kind, kind)

    def _ragged(self, name: str, column: str) -> Field:
        """Plans an input whose rows have any length."""
        kind = self.batch.schema.field(column).type
        if (values := list_values(kind)) is None:
            raise DataError(
                f"ragged names {column!r}, and column {column!r} of {self.source_label} has type {kind}: its rows must "
                "be lists of integers or of floating-point numbers; "
                + (_UNTYPED if is_untyped(kind) else "make it such lists with transform=, or leave it out of ragged=")
            )
        leaf = np.dtype(values.to_pandas_dtype()).name
        dtype = "float32" if leaf == "float64" else leaf
        length, masks = self.spec.max_length or None, self.spec.ragged or {}
        planned = Column(column, f"{kind}:{leaf}", (None,), max_length=length)
        return Field("inputs", name, False, [planned], dtype, dtype, masks[name])

    def column(self, name: str, role: Role) -> Column:
        """Plans one column of the source. Raises DataError when its type cannot be used."""
        array = self.batch.column(self.batch.schema.get_field_index(name))
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        fill = self.spec.impute.get(name) if role == "inputs" else None
        impute = "" if fill is None else fill.strategy
        if name not in self.spec.encode:
            shape, leaf = _leaf(array, array.type)
            if 0 in shape and array.null_count < len(array):
                raise DataError(
                    f"column {name!r} of {self.source_label} has lists without values, rows of shape {shape}: leave "
                    "the column out, or pad its lists with transform="
                )
            if impute and (shape or leaf.endswith("?")):
                raise DataError(
                    f"impute names {name!r} of {self.source_label}, which has type {array.type}: only columns of one "
                    "number a row, and those in encode=, can be filled; fill it with transform="
                )
            if leaf.endswith("?") and not (leaf == "bytes?" and role == "inputs"):
                raise DataError(
                    f"column {name!r} of {self.source_label} has type {array.type}, no number; "
                    f"{_advice(kind, name, role)}"
                )
            return Column(name, f"{kind}:{'uint8' if leaf == 'bytes?' else leaf}", shape, impute=impute)
        test = pa.types
        if is_text(kind) or test.is_integer(kind) or test.is_boolean(kind) or test.is_floating(kind):
            if fill is not None and fill.value is not None and isinstance(fill.value, str) != is_text(kind):
                raise DataError(
                    f"impute[{name!r}] = {shown(fill.value)}, and column {name!r} of {self.source_label} has type "
                    f"{kind}: give a value of that type"
                )
            encoding = self.spec.encode[name]
            return Column(name, f"{kind}:int64", (), encoding.kind, other=encoding.other, impute=impute)
        raise DataError(
            f"column {name!r} of {self.source_label} has type {array.type}, which encode= cannot take as categories; "
            + (_UNTYPED if pa.types.is_null(kind) else "text, numbers and booleans it can: cast it with transform=")
        )

    def _scaled(self, column: Column) -> Column:
        is_scaled = not column.encode and (self.spec.standardize is True or column.name in self.named)
        return msgspec.structs.replace(column, scaled=True) if is_scaled else column


def _dtype(column: Column) -> str:
    """Return the NumPy dtype name of the values of a column."""
    return column.type.rpartition(":")[2]


def _leaf(array: Any, kind: Any) -> tuple[tuple[int, ...], str]:
    """Return (shape of one row, dtype name of its values): "bytes?" for binaries of any length, "?" for no number.

    `array` is used for the length of variable lists only.
    """
    test = pa.types
    if test.is_boolean(kind):
        return (), "bool"
    if test.is_integer(kind) or test.is_floating(kind):
        return (), str(np.dtype(kind.to_pandas_dtype()).name)
    if test.is_decimal(kind):
        return (), "float64"
    if test.is_dictionary(kind) and not is_text(kind.value_type):
        return _leaf(array.dictionary_decode(), kind.value_type)
    if isinstance(kind, pa.FixedShapeTensorType):
        return tuple(kind.shape), _leaf(None, kind.value_type)[1]
    if test.is_fixed_size_binary(kind):
        return (kind.byte_width,), "uint8"
    if test.is_fixed_size_list(kind):
        shape, leaf = _leaf(array.flatten(), kind.value_type)
        return (kind.list_size, *shape), leaf
    if test.is_list(kind) or test.is_large_list(kind):
        full = array.drop_null()
        shape, leaf = _leaf(full.flatten(), kind.value_type)
        return (full.value_lengths()[0].as_py() if len(full) else 0, *shape), leaf
    if test.is_binary(kind) or test.is_large_binary(kind):
        full = array.drop_null()
        return (len(full[0].as_py()) if len(full) else 0,), "bytes?"
    return (), "?"


def list_values(kind: Any) -> Any:
    """Return the type of the numbers in lists of this type; None: it is no type of lists of integers or of
    floating-point numbers."""
    lists = kind.storage_type if isinstance(kind, pa.FixedShapeTensorType) and len(kind.shape) == 1 else kind
    values = lists.value_type if is_list(lists) else pa.null()
    return values if pa.types.is_integer(values) or pa.types.is_floating(values) else None


_UNTYPED = f"all its values are null: leave it out, fill it, or {ONE_SCHEMA}"


def _advice(kind: Any, name: str, role: Role) -> str:
    if is_text(kind) and role == "inputs":
        return f'for categories give encode={{{name!r}: "one-hot"}} (or "index", or a list of values)'
    if is_text(kind) and role == "targets":
        return f'for classes give encode={{{name!r}: "index"}}'
    if pa.types.is_null(kind):
        return _UNTYPED
    return "make it one with transform="
