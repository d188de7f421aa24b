"""What is done to a batch before it is encoded: the user's transform, and the choice of validation rows."""

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


def transformed(transform: Transform, batch: Any, where: str) -> Any:
    """What the user's function makes of a batch; DataError when it raises or gives something else."""
    try:
        made = transform(batch)
    except Exception as error:
        raise DataError(f"transform raised {type(error).__name__} on a batch of {where}: {error}") from error
    if not isinstance(made, pa.RecordBatch):
        raise DataError(f"transform gave {type(made).__name__} for {where}; it must give a pyarrow.RecordBatch")
    return made


def identity(transform: Transform | None) -> str:
    """A digest that is equal for equal code and values. Where something cannot be seen, it is another each time, so the
    rows are not found again: that is logged.
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
    """For processes elsewhere: with all of the user's modules that it uses.

    Raises:
        SpecError: it cannot be pickled.
    """
    try:
        return dumps(transform)
    except Exception as error:
        raise SpecError(
            f"transform = {transform!r} cannot be pickled: {error}; make it a plain function that imports what it needs"
        ) from error


def chosen_by(batch: Any, column: str, origin: RowOrigin) -> Array:
    """Boolean array of shape (rows,): the column that says which rows are validation rows."""
    array = batch.column(batch.schema.get_field_index(column))
    bad = null_rows(array)
    if bad is not None:
        raise DataError(
            f"validation column {column!r} is null in {origin.at(int(np.argmax(bad)))}; fill it with transform="
        )
    if not pa.types.is_boolean(array.type):
        raise DataError(f"validation column {column!r} of {origin} must be of true and false, has type {array.type}")
    return np.asarray(array.to_numpy(zero_copy_only=False))
