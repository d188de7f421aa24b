"""Which row of the source each row of a transform's result is: a number goes through the transform with every row.

The numbers are one more column. A transform may do anything to it, so nothing is believed that was not seen: numbers
are spread over 62 bits, so that one that was added to, scaled or rounded is no number of a row any more; and the first
batch goes through with and without them, and must give the same to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.encoding.transform import transformed
from hopyard.data.rows.content import Content
from hopyard.data.rows.hash import row_hashes
from hopyard.formats.arrow import Array

NAME = "__hopyard_row__"
"""The name of the column; with underscores behind it where the rows have such a column themselves."""
TYPES = (pa.timestamp("ns"), pa.int64())
"""Types for the column: the first that a transform leaves alone is taken. What is done to "all numbers" leaves times
alone; a function of numbers that is called with every column, such as `is_finite`, takes an integer."""

_MASK = (1 << 62) - 1
_SPREAD = 0x1E3779B97F4A7C15
"""Odd, so that multiplying by it modulo 2⁶² can be undone."""
_BACK = pow(_SPREAD, -1, 1 << 62)


class RowTracker:
    """Runs one transform and follows the rows through it. Owns what was found out about it, for all its batches.

    Args:
        transform: record batch → record batch. It is called once more for the first batch (twice, where it changes the
            column; and with the rows in reverse order, where it does not give it back), and never more than once for a
            later one that gives the column back.

    Attributes:
        warned: whether somebody was told that the column does not come back; the caller's to set.
        moves: whether it was seen to give rows in another order, without the column.
    """

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.warned = False
        self.moves = False
        self._transform = transform
        self._types: tuple[Any, ...] = TYPES
        """That may still pass; the one that did."""
        self._seen = False

    def __call__(self, batch: Any, first: int, read: Collection[str], where: str) -> tuple[Any, Array | None]:
        """What the transform makes of a batch, and the number of the row that each row of it was; None: unknown.

        Args:
            batch: at least one row.
            first: the number of its first row.
            read: the columns that the model reads.
            where: of the batch, for messages.

        Raises:
            DataError: the transform raised, or gave something else than a record batch.
        """
        if self._seen and self._types and (sent := self._send(self._types[0], batch, first)) is not None:
            return sent
        plain = transformed(self._transform, batch, where)
        if self._seen or not plain.num_rows:
            return plain, None if plain.num_rows else np.zeros(0, np.int64)
        self._seen = True
        for kind in TYPES:
            sent = self._send(kind, batch, first)
            if sent is not None and _alike(plain, sent[0], read):
                self._types = (kind,)
                return plain, sent[1]
        self._types = ()
        self.moves = self._seen_to_move(batch, plain, read)
        return plain, None

    def _seen_to_move(self, batch: Any, plain: Any, read: Collection[str]) -> bool:
        """Whether the batch in reverse order becomes the same rows, and not in reverse order. Where values depend on
        the other rows, or are random, nothing is seen."""
        names = [name for name in read if name in plain.schema.names]
        if plain.num_rows != batch.num_rows:
            return False
        try:
            made = self._transform(batch.take(pa.array(np.arange(batch.num_rows)[::-1])))
            one, other = row_hashes(plain, names, "it"), row_hashes(made, names, "it")
        except Exception:  # noqa: BLE001 - the plain batch is right
            return False
        same = np.array_equal(one[np.lexsort(one.T)], other[np.lexsort(other.T)])
        return same and not np.array_equal(one[::-1], other)

    def _send(self, kind: Any, batch: Any, first: int) -> tuple[Any, Array] | None:
        """The transform's result and its rows' numbers; None when they did not come back as they went."""
        name = NAME
        while name in batch.schema.names:
            name += "_"
        numbers = pa.array(_spread(first, batch.num_rows)).cast(kind)
        schema = batch.schema.append(pa.field(name, kind))
        try:
            made = self._transform(pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=schema))
        except Exception:  # noqa: BLE001 - it may be right without the column
            return None
        at = made.schema.get_field_index(name) if isinstance(made, pa.RecordBatch) else -1
        if at < 0 or made.schema.field(at).type != kind or made.column(at).null_count:
            return None
        found = made.column(at).cast(pa.int64()).to_numpy(zero_copy_only=False)
        rows = _gather(found)
        if len(rows) and not (
            found.min() >= 0 and found.max() <= _MASK and rows.min() >= first and rows.max() < first + batch.num_rows
        ):
            return None
        return made, rows


def _spread(first: int, rows: int) -> Array:
    """int64 in [0, 2⁶²): the numbers that travel for rows from `first` on, neighbours far apart, none of them 0."""
    numbers = np.arange(first + 1, first + 1 + rows, dtype=np.uint64)
    numbers *= np.uint64(_SPREAD)
    numbers &= np.uint64(_MASK)
    return numbers.view(np.int64)


def _gather(found: Array) -> Array:
    """The rows of such numbers; of others, rows that nobody sent."""
    rows = found.view(np.uint64) * np.uint64(_BACK)
    rows &= np.uint64(_MASK)
    rows -= np.uint64(1)
    return rows.view(np.int64)


def _alike(one: Any, other: Any, names: Collection[str]) -> bool:
    """Whether two batches have the same rows in these columns, as far as the first has them."""
    if one.num_rows != other.num_rows:
        return False
    for name in names:
        mine, theirs = one.schema.get_field_index(name), other.schema.get_field_index(name)
        if mine >= 0 and (theirs < 0 or not _equal(one.column(mine), other.column(theirs))):
            return False
    return True


def _equal(one: Any, other: Any) -> bool:
    """Whether two columns have the same type and values; NaN is equal to NaN."""
    digests = []
    for column in (one, other):
        content = Content()
        content.update(pa.RecordBatch.from_arrays([column], names=["column"]))
        digests.append(content.hexdigest())
    return digests[0] == digests[1]
