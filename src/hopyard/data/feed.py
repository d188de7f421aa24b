"""One partition, batch by batch: gathers rows into aligned buffers that are used again for each batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hopyard.data.assign import permutation
from hopyard.data.columns import Array, Columns, aligned
from hopyard.errors import SpecError
from hopyard.spec import Batch


def sizes(rows: int, batch_size: int) -> list[int]:
    """Rows of each batch. A last batch of one row joins the one before it (batch norm fails on a single row)."""
    full, rest = divmod(rows, batch_size)
    cut = [batch_size] * full
    if rest == 1 and full:
        cut[-1] += 1
    elif rest:
        cut.append(rest)
    return cut


class PartitionFeed:
    """The rows of `columns` in the order that `shuffle` fixes; a `ports.Feed`.

    Args:
        columns: from `cache.open_partition` or `encode.apply`.
        batch_size: rows of a batch, at least 1.
        shuffle: seed of the visit order (`core.order.shuffle_seed`); None: as stored.
        seed: what each Batch carries for whatever the model draws.

    Batches are always copies, also when rows are visited as stored: a model that changes its batch in place then
    changes nothing that is seen again. The buffers belong to the feed: one iteration at a time.

    Raises:
        SpecError: `batch_size` is not a whole number of at least 1.
    """

    def __init__(self, columns: Columns, batch_size: int, shuffle: int | None = None, seed: int | None = None) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
            raise SpecError(f"batch_size = {batch_size!r}: a whole number of at least 1 is needed")
        self.columns: Any = columns
        self.rows = columns.rows
        self.sizes: Sequence[int] = sizes(columns.rows, int(batch_size))
        self.order: Any = None if shuffle is None else permutation(shuffle, columns.rows)
        self.seed = seed
        self._buffers: list[Any] | None = None

    def __iter__(self) -> Iterator[Batch]:
        whole = (self.columns.inputs, self.columns.targets, self.columns.weights)
        if self._buffers is None:
            most = max(self.sizes, default=0)
            self._buffers = [_like(part, most) for part in whole]
        start = 0
        for rows in self.sizes:
            order = slice(start, start + rows) if self.order is None else self.order[start : start + rows]
            inputs, targets, weights = (
                _gather(part, order, buffer, rows) for part, buffer in zip(whole, self._buffers, strict=True)
            )
            yield Batch(inputs, targets, weights, rows, self.seed)
            start += rows


def _like(part: Any, rows: int) -> Any:
    if part is None:
        return None
    if isinstance(part, dict):
        return {name: _like(array, rows) for name, array in part.items()}
    return aligned((rows, *part.shape[1:]), part.dtype)


def _gather(part: Any, order: Array | slice, buffer: Any, rows: int) -> Any:
    if part is None:
        return None
    if isinstance(part, dict):
        return {name: _gather(array, order, buffer[name], rows) for name, array in part.items()}
    out = buffer[:rows]
    if isinstance(order, slice):
        np.copyto(out, part[order])
    else:
        part.take(order, axis=0, out=out, mode="clip")  # "raise" would gather into a buffer of its own first
    return out
