"""Which rows cannot be encoded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from hopyard.data.encoding.encoder import LARGEST, Encoder, RowOrigin, Vocabulary
from hopyard.data.manifest import Column, Field, Value
from hopyard.errors import DataError
from hopyard.formats.arrow import Array, null_rows, to_numpy


def valid_rows(fields: Sequence[Field], vocabularies: dict[str, Vocabulary], batch: Any) -> Array:
    """Return a boolean array of shape (rows,): whether the encoder takes the row's values in all columns of the fields.

    Of the rows with null, NaN, infinity, or a value that training never saw, the encoder is asked about one each: it
    may fill what is missing.

    Args:
        fields: arrays of the model.
        vocabularies: column of categories → the values that training saw.
        batch: an Arrow record batch with these columns.

    Raises:
        DataError: the lists of a column differ in length.
    """
    valid = np.ones(batch.num_rows, np.bool_)
    for field in fields:
        for column in field.columns:
            array = batch.column(batch.schema.get_field_index(column.name))
            single = msgspec.structs.replace(field, columns=[column])
            for rows in _doubtful(array, column, vocabularies):
                if rows.any() and not _is_taken(single, vocabularies, batch.slice(int(np.argmax(rows)), 1)):
                    valid &= ~rows
    return valid


def _doubtful(array: Any, column: Column, vocabularies: Mapping[str, Vocabulary]) -> Iterator[Array]:
    """Yield boolean arrays of shape (rows,): which rows the encoder may refuse, for each reason that there is."""
    missing = null_rows(array)
    present = np.ones(len(array), np.bool_) if missing is None else ~missing
    yield ~present
    if column.encode:
        encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        codes = np.asarray(encoded.indices.fill_null(0)).astype(np.int64)
        kinds = np.array([*(_kind(value, vocabularies[column.name]) for value in values), ""])[codes]
        for kind in ("NaN", "infinite", "unknown"):
            yield present & (kinds == kind)
        return
    numbers = to_numpy(array if missing is None else array.filter(pa.array(present)), column.name, "the rows")
    if numbers.dtype.kind == "f" and len(numbers):
        numbers = numbers.reshape(len(numbers), -1)
        for bad in (np.isnan(numbers).any(axis=1), (np.abs(numbers) > LARGEST).any(axis=1)):
            rows = np.zeros(len(array), np.bool_)
            rows[present] = bad
            yield rows


def _kind(value: Value, vocabulary: Vocabulary) -> str:
    """Return why the encoder may refuse a category; "": training saw it."""
    if value in vocabulary.values:
        return ""
    if not isinstance(value, float):
        return "unknown"
    return "NaN" if math.isnan(value) else "infinite" if abs(value) > LARGEST else "unknown"


def _is_taken(field: Field, vocabularies: dict[str, Vocabulary], row: Any) -> bool:
    encoder = Encoder([field], vocabularies, strict=False)
    try:
        encoder.raw(row, RowOrigin("the rows", 0))
    except DataError:
        return False
    return not encoder.faults
