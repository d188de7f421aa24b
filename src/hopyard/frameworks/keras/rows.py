"""The rows of a partition as Keras' loops take them: x, y and weights, their order, and the ends of batches.

This module knows no framework: NumPy in, NumPy out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.core.runs.order import shard
from hopyard.errors import SpecError
from hopyard.ports.training import PartitionBatches
from hopyard.spec import Batch

PART_BYTES = 1 << 28
"""A larger partition is passed to the compiled loop in several parts, each of whole batches, because a loop holds a
copy of its input."""

CALL_SECONDS = 10.0
"""About the longest time of one call over many batches: its progress cannot be seen from outside the process."""

Data = tuple[Any, ...]
"""The input of Keras' steps: (x,), (x, y) or (x, y, weights), each an array of shape (rows, …) or a dict of arrays."""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Consecutive batches: `data[order[ends[i - 1]:ends[i]]]` is batch i."""

    data: Data
    order: Any
    ends: Any


class Pace:
    """The number of batches in one call, so that the call takes about CALL_SECONDS. The first call has one batch,
    because its speed is not known yet, and it compiles too. Results do not depend on the number."""

    def __init__(self) -> None:
        self.batches = 1

    def record(self, batches: int, seconds: float) -> None:
        """Records that a call over `batches` took `seconds`."""
        target = max(1, int(CALL_SECONDS * batches / max(seconds, 1e-9)))
        if target < self.batches:
            self.batches = target
        elif batches >= self.batches:
            self.batches = min(target, 8 * batches)


class RowBatches:
    """The rows of a partition, as batches.

    Args:
        partition: the partition.
        arrange: returns inputs and targets in the form that the model takes.
        class_weight: class → weight of its rows, on top of the rows' own weights.
    """

    def __init__(
        self,
        partition: PartitionBatches,
        arrange: Callable[[Any, Any], tuple[Any, Any]],
        class_weight: Mapping[int, float] | None,
    ) -> None:
        columns = partition.columns
        x, y = arrange(columns.inputs, columns.targets)
        weights = weigh(y, columns.weights, class_weight)
        self.data: Data = (x, y, weights) if weights is not None else (x, y) if y is not None else (x,)
        self.rows = partition.rows
        self._order = partition.order
        self._ends = np.cumsum(np.asarray(partition.sizes, np.int64))

    def example(self) -> Data:
        """Return the data of the first rows, as many as the first batch with rows has."""
        rows = max(int(self._ends[np.argmax(self._ends > 0)]), 1)
        first: Data = map_arrays(lambda array: array[:rows], self.data)
        return first

    @property
    def count(self) -> int:
        """The number of batches, those without rows counted."""
        return len(self._ends)

    def segment(self, first: int, end: int) -> RowBatches:
        """Return the batches from `first` to `end` - 1, gathered; those without rows are left out."""
        ends = self._ends[first:end]
        start = int(self._ends[first - 1]) if first else 0
        if first == 0 and end == self.count:
            return self._copy(self.data, self._order, ends[np.diff(ends, prepend=0) > 0])
        part = self._gathered(start, int(ends[-1]))
        return self._copy(part, None, (ends - start)[np.diff(ends, prepend=start) > 0])

    def stretches(self) -> Iterator[RowBatches | None]:
        """Yield all batches: those that follow each other and have rows together, and None for each that has none."""
        first = 0
        for empty in [*np.flatnonzero(np.diff(self._ends, prepend=0) == 0).tolist(), None]:
            end = self.count if empty is None else empty
            if end > first:
                yield self.segment(first, end)
            if empty is not None:
                yield None
            first = end + 1

    def in_pieces(self, pieces: int) -> tuple[RowBatches, list[bool]]:
        """Return the pieces of all batches, as batches, and of each whether it is the last one of its batch. Those of
        a batch differ by one row at most."""
        ends: list[int] = []
        lasts: list[bool] = []
        start = 0
        for end in self._ends.tolist():
            bounds = {start + shard(end - start, pieces, piece)[1] for piece in range(pieces)} - {start}
            ends += sorted(bounds)
            lasts += [False] * (len(bounds) - 1) + [True]
            start = end
        return self._copy(self.data, self._order, np.asarray(ends, np.int64)), lasts

    def first_row(self) -> RowBatches:
        """Return a row of the data, as one batch."""
        return self._copy(map_arrays(lambda array: array[:1], self.data), None, np.asarray([1], np.int64))

    def _copy(self, data: Data, order: Any, ends: Any) -> RowBatches:
        batches = copy.copy(self)
        batches.data, batches._order, batches._ends = data, order, ends
        batches.rows = int(ends[-1]) if len(ends) else 0
        return batches

    def half(self, number: int) -> RowBatches:
        """Return the first half of the rows (0), or the second (1), as one batch."""
        rows = slice(0, self.rows // 2) if number == 0 else slice(self.rows // 2, self.rows)
        half = map_arrays(lambda array: array[rows], self.data)
        return self._copy(half, None, np.asarray([rows.stop - rows.start], np.int64))

    def parts(self) -> Iterator[BatchRange]:
        """Yield the rows as one part, or as several where they are large."""
        size = sum(array.nbytes for array in leaves(self.data))
        count = -(-size // PART_BYTES)
        if count <= 1:
            yield BatchRange(self.data, np.arange(self.rows) if self._order is None else self._order, self._ends)
            return
        for ends in np.array_split(self._ends, min(count, len(self._ends))):
            yield self._part(int(np.searchsorted(self._ends, ends[0])), len(ends))

    def batch_by_batch(self) -> Iterator[BatchRange]:
        """Yield a part for each batch."""
        for batch in range(len(self._ends)):
            yield self._part(batch, 1)

    def batches(self) -> Iterator[Data]:
        """Yield the data of each batch."""
        for part in self.batch_by_batch():
            yield part.data

    def _part(self, first: int, count: int) -> BatchRange:
        """Return `count` batches from the `first` on, gathered."""
        start = int(self._ends[first - 1]) if first else 0
        ends = self._ends[first : first + count]
        return BatchRange(self._gathered(start, int(ends[-1])), np.arange(ends[-1] - start), ends - start)

    def _gathered(self, start: int, end: int) -> Data:
        """Return rows in their order."""
        index: Any = slice(start, end) if self._order is None else self._order[start:end]
        rows: Data = map_arrays(lambda array: array[index], self.data)
        return rows


class SingleBatch:
    """A Batch as a partition of one batch."""

    order: Any = None

    def __init__(self, batch: Batch) -> None:
        self.rows = batch.rows
        self.sizes: Sequence[int] = [batch.rows]
        self.columns: Any = batch
        self.seed = batch.seed

    def __iter__(self) -> Iterator[Batch]:
        batch: Batch = self.columns
        yield batch


def leaves(data: Any) -> list[Any]:
    """Return the arrays in a structure of tuples and dicts."""
    if data is None:
        return []
    if isinstance(data, dict):
        return [leaf for value in data.values() for leaf in leaves(value)]
    return [leaf for value in data for leaf in leaves(value)] if isinstance(data, tuple) else [data]


def map_arrays(function: Any, data: Any) -> Any:
    """Return the structure with `function` applied to every array."""
    if data is None:
        return None
    if isinstance(data, dict):
        return {name: map_arrays(function, value) for name, value in data.items()}
    return tuple(map_arrays(function, value) for value in data) if isinstance(data, tuple) else function(data)


def weigh(targets: Any, weights: Any, class_weight: Mapping[int, float] | None) -> Any:
    """Return the rows' weights times those of their classes, float32 of shape (rows,); classes without one weigh 1.

    Raises:
        SpecError: there are several outputs, or no label.
    """
    if class_weight is None:
        return weights
    if targets is None or isinstance(targets, (dict, tuple)):
        count = "none" if targets is None else len(targets)
        raise SpecError(f"class_weight: the data must have exactly one label, has {count}")
    classes = targets.argmax(-1) if targets.ndim > 1 and targets.shape[-1] > 1 else targets.reshape(len(targets))
    classes = np.round(classes)  # as Keras does: 0.9 is of class 1
    factors = np.ones(len(targets), np.float32)
    for label, weight in class_weight.items():
        factors[classes == label] = weight
    return factors if weights is None else factors * weights
