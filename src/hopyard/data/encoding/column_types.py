"""One type for each column of a transform's result, whose batches may differ in them.

What goes by way of pandas loses its type where values are missing: text that is null throughout a batch comes back with
the type null, whole numbers of which one is null come back as floating point, decimals with as many digits as a batch
needs. Which batches these are depends on how the rows were cut, so the type is one that all batches can have without a
change of values, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hopyard.errors import DataError
from hopyard.formats.arrow import as_type, is_untyped, merged

ONE_SCHEMA = (
    "let transform= keep types, by batch.to_pandas(types_mapper=pandas.ArrowDtype), or return batches of one schema, "
    "by pyarrow.RecordBatch.from_pandas(frame, schema=…)"
)
"""The next step where pandas has changed a type."""
_EXACT = float(1 << 53)
"""Whole numbers of pandas that are larger may have been rounded when they became floating point."""


class Mixed(Exception):
    """Raised for a batch that may have another type than before; `common_types` tells which all batches can have."""


def check(before: dict[str, Any], batch: Any, names: Sequence[str]) -> None:
    """Raise Mixed where a batch has a column with another type than `before`, to which new columns are added. A column
    that is null throughout a later batch is none: the encoder takes it for what it was before.
    """
    for name in names:
        if (kind := _kind(batch, name)) is None:
            continue
        known = before.setdefault(name, kind)
        if is_untyped(known) or (kind != known and not is_untyped(kind) and _common([known, kind], False) is not None):
            raise Mixed


def common_types(batches: Iterable[Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the type of each column to which `retyped` must convert some batches. Columns that have none, because a
    value would change, are left out.
    """
    kinds: dict[str, dict[Any, None]] = {name: {} for name in names}
    fractional, inexact = set(), set()
    for batch in batches:
        for name in names:
            if (kind := _kind(batch, name)) is None:
                continue
            kinds[name][kind] = None
            if pa.types.is_float64(kind):
                values = batch.column(batch.schema.get_field_index(name)).drop_null().to_numpy(zero_copy_only=False)
                values = values[~np.isnan(values)]
                if (values != np.rint(values)).any():
                    fractional.add(name)
                if (np.abs(values) >= _EXACT).any():
                    inexact.add(name)
    types = {}
    for name, each in kinds.items():
        rounded = name in inexact and any(map(pa.types.is_integer, each))
        if len(each) > 1 and not rounded and (kind := _common(list(each), name in fractional)) is not None:
            types[name] = kind
    return types


def retyped(batch: Any, types: Mapping[str, Any], source_label: str) -> Any:
    """Return a batch with these types, which `common_types` returned.

    Raises:
        DataError: a value would change.
    """
    for name, kind in types.items():
        at = batch.schema.get_field_index(name)
        if at < 0 or (array := batch.column(at)).type == kind:
            continue
        try:
            if is_untyped(array.type):
                array = as_type(array, kind)
            elif pa.types.is_float64(array.type):
                array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array).cast(kind)
            elif not pa.types.is_dictionary(array.type):
                array = array.cast(kind)
        except pa.ArrowException as error:
            raise DataError(
                f"column {name!r} of {source_label} has type {array.type}, and in other batches another; as {kind} its "
                f"values would change ({error}); {ONE_SCHEMA}"
            ) from error
        batch = batch.set_column(at, pa.field(name, array.type), array)
    return batch


def _kind(batch: Any, name: str) -> Any:
    """Return the type of the values of a column; None: the batch has no such column."""
    at = batch.schema.get_field_index(name)
    if at < 0:
        return None
    kind: Any = batch.schema.field(at).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _common(kinds: Sequence[Any], fractional: bool) -> Any:
    """Return the type that values of these types can have; None: there is none."""
    typed = [kind for kind in kinds if not is_untyped(kind)]
    if all(map(pa.types.is_decimal, typed)) and len(typed) > 1:
        schemas = [pa.schema([("", kind)]) for kind in typed]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    whole = [kind for kind in typed if pa.types.is_integer(kind)]
    if len(typed) == 2 and len(whole) == 1 and any(map(pa.types.is_float64, typed)):
        return pa.float64() if fractional else whole[0]
    return reduce(lambda first, second: None if first is None else merged(first, second), kinds)
