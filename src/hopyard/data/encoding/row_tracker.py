"""Finds the source row of each row of a transform's result: a number goes through the transform with every row.

The numbers are one more column. A transform may do anything to it, so it is checked: the numbers are spread over 62
bits, so that one that was added to, scaled or rounded is not the number of a row any more; and the first batch goes
through with and without them, and must give the same to the model.
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
"""The name of the column, with more underscores at its end if the rows have such a column themselves."""
TYPES = (pa.timestamp("ns"), pa.int64())
"""Types for the column: the first that a transform leaves alone is used. What is done to "all numbers" leaves times
alone; a function of numbers that is called with every column, such as `is_finite`, takes an integer."""

_MASK = (1 << 62) - 1
_SPREAD = 0x1E3779B97F4A7C15
"""Odd, so that multiplying by it modulo 2⁶² can be undone."""
_BACK = pow(_SPREAD, -1, 1 << 62)


class RowTracker:
    """Runs one transform and follows the rows through it. Owns what is known about it, for all its batches.

    Args:
        transform: record batch → record batch. It is called once more for the first batch (twice, where it changes the
            column; and with the rows shuffled, where it does not give it back), and never more than once for a
            later one that gives the column back.

    Attributes:
        transform: the same.
        warned: whether a warning that the column does not come back was logged; the caller sets it.
        moves: whether the transform returned rows in another order, without the column.
    """

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.warned = False
        self.moves = False
        self.transform = transform
        self._types: tuple[Any, ...] = TYPES
        """Types that may still pass the check; after it, the one that did."""
        self._checked = False

    def __call__(self, batch: Any, first: int, read: Collection[str], source_label: str) -> tuple[Any, Array | None]:
        """Return the transform's result for a batch, and the number of the source row of each row; None: unknown.

        Args:
            batch: at least one row.
            first: the number of its first row.
            read: the columns that the model reads.
            source_label: where the batch is from, for messages.

        Raises:
            DataError: the transform raised, or returned something else than a record batch.
        """
        if self._checked and self._types and (result := self._run_numbered(self._types[0], batch, first)) is not None:
            return result
        plain = transformed(self.transform, batch, source_label)
        if self._checked or not plain.num_rows:
            return plain, None if plain.num_rows else np.zeros(0, np.int64)
        self._checked = True
        for kind in TYPES:
            result = self._run_numbered(kind, batch, first)
            if result is not None and _same_rows(plain, result[0], read):
                self._types = (kind,)
                return plain, result[1]
        self._types = ()
        self.moves = self._moves_rows(batch, plain, read)
        return plain, None

    def _moves_rows(self, batch: Any, plain: Any, read: Collection[str]) -> bool:
        """Whether the transform reorders rows: a shuffled batch gives the same rows, but not in the shuffled order.

        False where values depend on other rows, or are random. A regular order, such as the reverse, would miss
        transforms that commute with it. In a batch of two rows, a swap is not seen.
        """
        present = set(plain.schema.names)
        names = [name for name in read if name in present]
        if plain.num_rows != batch.num_rows:
            return False
        try:
            order = np.random.default_rng(0).permutation(batch.num_rows)
            result = self.transform(batch.take(pa.array(order)))
            hashes, shuffled = row_hashes(plain, names, "it"), row_hashes(result, names, "it")
        except Exception:  # noqa: BLE001 - the plain batch is right
            return False
        same = np.array_equal(hashes[np.lexsort(hashes.T)], shuffled[np.lexsort(shuffled.T)])
        return same and not np.array_equal(hashes[order], shuffled)

    def _run_numbered(self, kind: Any, batch: Any, first: int) -> tuple[Any, Array] | None:
        """Return the transform's result and its rows' numbers; None when the numbers did not come back unchanged."""
        name = NAME
        while name in batch.schema.names:
            name += "_"
        numbers = pa.array(_spread(first, batch.num_rows)).cast(kind)
        schema = batch.schema.append(pa.field(name, kind))
        try:
            result = self.transform(pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=schema))
        except Exception:  # noqa: BLE001 - it may be right without the column
            return None
        column = result.schema.get_field_index(name) if isinstance(result, pa.RecordBatch) else -1
        if column < 0 or result.schema.field(column).type != kind or result.column(column).null_count:
            return None
        values = result.column(column).cast(pa.int64()).to_numpy(zero_copy_only=False)
        rows = _row_numbers(values)
        if len(rows) and not (
            values.min() >= 0 and values.max() <= _MASK and rows.min() >= first and rows.max() < first + batch.num_rows
        ):
            return None
        columns = [*result.columns[:column], *result.columns[column + 1 :]]
        return pa.RecordBatch.from_arrays(columns, schema=result.schema.remove(column)), rows


def _spread(first: int, rows: int) -> Array:
    """Return int64 in [0, 2⁶²): the numbers to send for rows from `first` on, neighbours far apart, none of them 0."""
    numbers = np.arange(first + 1, first + 1 + rows, dtype=np.uint64)
    numbers *= np.uint64(_SPREAD)
    numbers &= np.uint64(_MASK)
    return numbers.view(np.int64)


def _row_numbers(numbers: Array) -> Array:
    """Return the rows of numbers of `_spread`; for other numbers, rows that were not sent."""
    rows = numbers.view(np.uint64) * np.uint64(_BACK)
    rows &= np.uint64(_MASK)
    rows -= np.uint64(1)
    return rows.view(np.int64)


def _same_rows(first: Any, second: Any, names: Collection[str]) -> bool:
    """Whether two batches have the same rows in these columns, as far as the first has them: of equal types and values,
    NaN equal to NaN."""
    names = [name for name in names if first.schema.get_field_index(name) >= 0]
    if first.num_rows != second.num_rows or any(second.schema.get_field_index(name) < 0 for name in names):
        return False
    digests = []
    for batch in (first, second):
        content = Content()
        content.update(pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=names))
        digests.append(content.hexdigest())
    return digests[0] == digests[1]
