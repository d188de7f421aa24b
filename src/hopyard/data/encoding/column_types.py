"""One type for each column of a transform's result, whose batches may differ in it.

Pandas changes types where values are missing. Text that is null throughout a batch gets the type null, whole numbers of
which one is null become floating point, and decimals have as many digits as a batch needs. Which batches these are
depends on how the rows were cut. The type is therefore one that the values of all batches fit, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopyard.errors import DataError
from hopyard.formats.arrow import as_type, is_untyped

ONE_SCHEMA = (
    "let transform= keep types, by batch.to_pandas(types_mapper=pandas.ArrowDtype), or return batches of one schema, "
    "by pyarrow.RecordBatch.from_pandas(frame, schema=…)"
)
"""The next step where pandas has changed a type."""
_EXACT = float(1 << 53)
"""Whole numbers from here on may have been rounded when they became floating point."""


class Mixed(Exception):
    """Raised for a batch that differs in type from those before it; `common_types` finds a type for all of them."""


def check(before: dict[str, Any], batch: Any, names: Sequence[str]) -> None:
    """Raise Mixed where a column of a batch has another type than in `before`, to which new columns are added. A column
    that is null throughout a later batch does not count: the encoder gives it the earlier type.
    """
    for name in names:
        if (kind := _kind(batch, name)) is None:
            continue
        known = before.setdefault(name, kind)
        if is_untyped(known) or (kind != known and not is_untyped(kind)):
            raise Mixed


def common_types(batches: Iterable[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the type of each column to which `retyped` must convert some batches. Columns without a common type are
    left out, and so are whole numbers that may have been rounded.
    """
    kinds: dict[str, set[Any]] = {name: set() for name in names}
    fractional, rounded = set(), set()
    for batch in batches:
        for name in names:
            if (kind := _kind(batch, name)) is None:
                continue
            kinds[name].add(kind)
            if pa.types.is_float64(kind):
                values = batch.column(batch.schema.get_field_index(name)).drop_null().to_numpy(zero_copy_only=False)
                values = values[~np.isnan(values)]
                if (values != np.rint(values)).any():
                    fractional.add(name)
                if (np.abs(values) >= _EXACT).any():
                    rounded.add(name)
    types = {}
    for name, each in kinds.items():
        if any(map(pa.types.is_integer, each)):
            if name in rounded and pa.float64() in each:
                continue
            if name not in fractional:  # the floating point was whole numbers, of which one was null
                each.discard(pa.float64())
        schemas = [pa.schema([("", kind)]) for kind in sorted(each, key=str)]
        with suppress(pa.ArrowException):
            types[name] = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    return types


def retyped(batch: Any, types: Mapping[str, Any], source_label: str) -> Any:
    """Return a batch with these types, which `common_types` returned.

    Raises:
        DataError: a value would change.
    """
    for name, kind in types.items():
        if _kind(batch, name) in (None, kind):
            continue
        at = batch.schema.get_field_index(name)
        array = batch.column(at)
        try:
            if is_untyped(array.type):
                array = as_type(array, kind)
            elif pa.types.is_float64(array.type):
                array = pc.if_else(pc.is_nan(array), None, array).cast(kind)
            else:
                array = array.cast(kind)
        except pa.ArrowException as error:
            raise DataError(
                f"column {name!r} of {source_label} has type {array.type}, and in other batches another; as {kind} its "
                f"values would change ({error}); {ONE_SCHEMA}"
            ) from error
        batch = batch.set_column(at, pa.field(name, array.type), array)
    return batch


def _kind(batch: Any, name: str) -> Any:
    """Return the type of the values of a column; None where the batch has no such column."""
    at = batch.schema.get_field_index(name)
    if at < 0:
        return None
    kind: Any = batch.schema.field(at).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind
