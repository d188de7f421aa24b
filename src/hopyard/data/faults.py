"""Rows that cannot be encoded: what a message says of them, and which they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.encoding.encoder import LARGEST, Fault, Vocabulary
from hopyard.data.manifest import Column, Field
from hopyard.formats.arrow import Array, null_rows, to_numpy


def listed(faults: Mapping[str, Fault]) -> str:
    """Return a line for each column with bad values."""
    return "\n".join(
        f"  column {name!r}: {fault.count} of its rows hold null, NaN, infinity or more than float32 can; "
        f"the first is {fault.first}"
        for name, fault in faults.items()
    )


def valid_rows(fields: Sequence[Field], vocabularies: Mapping[str, Vocabulary], batch: Any) -> Array:
    """Return a boolean array of shape (rows,): whether the row's values can be encoded, in all columns of the fields.

    Args:
        fields: arrays of the model.
        vocabularies: column of categories → the values that training saw.
        batch: an Arrow record batch with these columns.

    Raises:
        DataError: the lists of a column differ in length.
    """
    valid = np.ones(batch.num_rows, np.bool_)
    for column in {column.name: column for field in fields for column in field.columns}.values():
        array = batch.column(batch.schema.get_field_index(column.name))
        valid &= _known(array, vocabularies[column.name]) if column.encode else _finite(array, column)
    return valid


def _known(array: Any, vocabulary: Vocabulary) -> Array:
    """Return which rows hold a category of the vocabulary."""
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    known = np.array([*(value in vocabulary.values for value in array.dictionary.to_pylist()), False])
    return np.asarray(known[np.asarray(array.indices.fill_null(len(known) - 1)).astype(np.int64)])


def _finite(array: Any, column: Column) -> Array:
    """Return which rows hold neither null nor NaN, infinity or more than float32 can."""
    missing = null_rows(array)
    valid = np.ones(len(array), np.bool_) if missing is None else ~missing
    values = to_numpy(array if missing is None else array.filter(pa.array(valid)), column.name, "the rows")
    if values.dtype.kind == "f" and len(values):
        valid[valid] = (np.abs(values.reshape(len(values), -1)) <= LARGEST).all(axis=1)
    return valid
