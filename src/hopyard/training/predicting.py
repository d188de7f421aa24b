"""A model's outputs for rows: one for each input row, in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopyard.data.columns import Columns
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.errors import DataError, HopyardError
from hopyard.formats.arrow import Array
from hopyard.ports import SupportsPredict
from hopyard.spec import Batch

EXACT = 1 << 53
"""float64 holds every whole number up to this one."""


def answers(trainable: SupportsPredict, columns: Columns, batch_size: int, same_type: bool = False) -> Any:
    """Return outputs for all rows, each at the position of its row, with NaN for rows that were left out.

    Args:
        trainable: the model.
        columns: the result of `data.apply.apply`.
        batch_size: rows of each call of the model.
        same_type: whether the dtype of outputs with several numbers a row must not depend on dropped rows.

    Returns:
        Array of shape (source rows, …), or a dict of such. Whole numbers and booleans are float64 where rows were
        dropped.

    Raises:
        HopyardError: the model returns more or fewer answers than rows.
        DataError: rows were dropped, and answers are of a type that has no NaN.
    """
    parts: list[Any] = []
    for number, batch in enumerate(PartitionLoader(columns, batch_size)):
        try:
            parts.append(trainable.predict(batch))
        except Exception as error:
            first = number * batch_size
            error.add_note(
                f"The model raised this for rows {first} to {first + batch.rows - 1} of the encoded data. Columns and "
                "types are those of the training rows, so perhaps a value is one that none of those had."
            )
            raise
    if not parts:  # all rows were dropped: a row of zeros shows shapes and types
        parts = [_each(trainable.predict(_zeros(columns)), lambda array: array[:0])]
    outputs = (
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if isinstance(parts[0], dict)
        else np.concatenate(parts)
    )
    return _each(outputs, lambda array: _at_source_rows(array, columns, same_type))


def _at_source_rows(array: Array, columns: Columns, same_type: bool) -> Array:
    if len(array) != columns.rows:
        raise HopyardError(
            f"predict(batch) must give one answer for each row, gave {len(array)} for {columns.rows} rows"
        )
    if columns.places is None:
        return array
    total = columns.rows if columns.source_rows is None else columns.source_rows
    if columns.rows == total:
        outputs = np.empty_like(array)
    else:
        outputs = np.full(
            (total, *array.shape[1:]), np.nan, _with_nan(array, same_type and array.shape[1:] not in ((), (1,)))
        )
    outputs[columns.places] = array
    return outputs


def _with_nan(array: Array, same_type: bool) -> Any:
    """Return the array's dtype, or float64 for numbers that lack NaN. Raises DataError where neither will do."""
    if array.dtype.kind in "fc":
        return array.dtype
    exact = array.dtype.kind == "b" or (
        array.dtype.kind in "iu" and (not array.size or (array.min() >= -EXACT and array.max() <= EXACT))
    )
    if same_type or not exact:
        raise DataError(
            f"rows were left out (by the Dataset's transform, or as handleInvalid= says), and answers of type "
            f"{array.dtype} have no NaN that could stand in their place; drop such rows before predict"
        )
    return np.dtype(np.float64)


def _zeros(columns: Columns) -> Batch:
    inputs = _each(columns.inputs, lambda array: np.zeros((1, *array.shape[1:]), array.dtype))
    return Batch(inputs, None, None, 1)


def _each(value: Any, function: Any) -> Any:
    return {name: function(array) for name, array in value.items()} if isinstance(value, dict) else function(value)
