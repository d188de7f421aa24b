"""Steps before a batch is encoded: the user's transform, and the choice of validation rows."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.code.digest import Unseen, digest
from hopyard.code.pickling import dumps
from hopyard.data.encoding.encoder import RowOrigin
from hopyard.errors import DataError, SpecError
from hopyard.formats.arrow import Array, null_rows

log = logging.getLogger(__name__)

Transform = Callable[[Any], Any]
"""Record batch → record batch. It should treat each row by itself: where batches are cut is not promised."""


def transformed(transform: Transform, batch: Any, source_label: str) -> Any:
    """Return the user's function's result for a batch; DataError when it raises or returns something else."""
    try:
        result = transform(batch)
    except Exception as error:
        raise DataError(f"transform raised {type(error).__name__} on a batch of {source_label}: {error}") from error
    if not isinstance(result, pa.RecordBatch):
        raise DataError(
            f"transform gave {type(result).__name__} for {source_label}; it must give a pyarrow.RecordBatch"
        )
    return result


def identity(transform: Transform | None) -> str:
    """Return a digest that is equal for equal code and values. Where something cannot be seen, it differs each time,
    so the rows are not found again; this is logged.
    """
    if transform is None:
        return ""
    try:
        return digest(transform)
    except Unseen as error:
        log.warning(
            "transform = %r: what it does cannot be seen (%s), so its rows are made anew, whatever was prepared before",
            transform, error,
        )  # fmt: skip
        return f"unseen {uuid.uuid4().hex}"


def pickled(transform: Transform) -> bytes:
    """Pickles a transform for other processes, with all of the user's modules that it uses.

    Raises:
        SpecError: it cannot be pickled.
    """
    try:
        return dumps(transform)
    except Exception as error:
        raise SpecError(
            f"transform = {transform!r} cannot be pickled: {error}; make it a plain function that imports what it needs"
        ) from error


def validation_column(batch: Any, column: str, origin: RowOrigin) -> Array:
    """Return the column that says which rows are validation rows, as a Boolean array of shape (rows,)."""
    array = batch.column(batch.schema.get_field_index(column))
    bad = null_rows(array)
    if bad is not None:
        raise DataError(
            f"validation column {column!r} is null in {origin.at(int(np.argmax(bad)))}; fill it with transform="
        )
    if not pa.types.is_boolean(array.type):
        raise DataError(f"validation column {column!r} of {origin} must be of true and false, has type {array.type}")
    return np.asarray(array.to_numpy(zero_copy_only=False))
