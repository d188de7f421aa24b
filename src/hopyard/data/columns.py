"""Rows as arrays: Columns, and memory that starts at a multiple of 64 bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopyard.formats.arrow import Array

COLUMN_BYTES = 4096
"""Average bytes of a column that are handled at once, where there are many columns."""

ALIGN = 64
"""Bytes. Misaligned inputs change the bits of torch's `linear` (10 to 20 of 56 shapes, at 4 or 8 bytes)."""


def aligned(shape: tuple[int, ...], dtype: str | np.dtype[Any]) -> Array:
    """Return an uninitialised C-contiguous array of `shape` whose first byte lies at a multiple of 64."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    raw = np.empty(size + ALIGN, np.uint8)
    skip = -raw.__array_interface__["data"][0] % ALIGN  # `ctypes.data` makes an object of three others first
    return raw[skip : skip + size].view(kind).reshape(shape)


@dataclass(slots=True)
class Columns:
    """All rows of one partition (or of what `predict` was given). Arrays are shared: copy before you write.

    Attributes:
        inputs: array of shape (rows, …), or a dict of such by input name, some of them Ragged.
        targets: array of shape (rows, …), a dict of such, or None.
        weights: float32 array of shape (rows,), or None.
        rows: how many.
        source_rows: how many rows `predict` or `evaluate` was given; None for a partition.
        places: int64 array of shape (rows,): the number of the source row of each row; −1 where it is not known. None
            where row i is row i.
        masks: input that is Ragged → the input of a batch that is its mask.
        pin: keeps the cache entry from eviction for as long as this object lives; None when there is no entry.
    """

    inputs: Any
    targets: Any
    weights: Any
    rows: int
    pin: object = field(default=None, repr=False)
    source_rows: int | None = None
    places: Array | None = None
    masks: dict[str, str] = field(default_factory=dict)


def own(part: Any) -> Any:
    """Return a copy of a dict of arrays, so that removing entries changes no other dict; anything else unchanged."""
    return dict(part) if isinstance(part, dict) else part


def pack(arrays: dict[str, Array], single: str) -> Any:
    """Return arrays as Columns has them: None if there are none, one array if its name is `single`, else the dict."""
    if not arrays:
        return None
    return arrays[single] if list(arrays) == [single] else arrays


def batch_bytes(columns: int, least: int) -> int:
    """Return about how many bytes of rows to handle at once: `least`, or more where there are many columns.

    Each batch costs some Python for each column. With batches of a fixed size, the more columns there are the more
    batches there would be, and the cost would grow with the square of the number of columns.
    """
    return max(least, COLUMN_BYTES * columns)
