"""The rows of a partition as Keras' loops take them: x, y and weights, the order, and where batches end.

Knows no framework: NumPy in, NumPy out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.errors import SpecError
from hopyard.ports import PartitionBatches
from hopyard.spec import Batch

PART_BYTES = 1 << 28
"""A partition larger than this is given to the compiled loop in several parts, each of whole batches: a loop holds a
copy of what it is given."""

CALL_SECONDS = 10.0
"""About how long a call may take that goes over many batches: who watches the process sees no progress inside it."""

Data = tuple[Any, ...]
"""What Keras' steps take: (x,), (x, y) or (x, y, weights), each an array of shape (rows, …) or a dict of such."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive batches: `data[order[ends[i - 1]:ends[i]]]` is batch i."""

    data: Data
    order: Any
    ends: Any


class Pace:
    """How many batches a call goes over, so that it takes about CALL_SECONDS. The first call goes over one, as nothing
    is known, and compiles besides. What is computed does not depend on it."""

    def __init__(self) -> None:
        self.batches = 1

    def record(self, batches: int, seconds: float) -> None:
        """A call went over so many batches."""
        wanted = max(1, int(CALL_SECONDS * batches / max(seconds, 1e-9)))
        if wanted < self.batches:
            self.batches = wanted
        elif batches >= self.batches:
            self.batches = min(wanted, 8 * batches)


class RowBatches:
    """What is to be gone over.

    Args:
        partition: its batches.
        arrange: inputs and targets in the form that the model wants.
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
        """The data of the first rows, as many as a batch has."""
        first: Data = map_arrays(lambda array: array[: int(self._ends[0])], self.data)
        return first

    def half(self, which: int) -> RowBatches:
        """The first half of the rows, or the second, as one batch."""
        cut = slice(0, self.rows // 2) if which == 0 else slice(self.rows // 2, self.rows)
        made = copy.copy(self)
        made.data = map_arrays(lambda array: array[cut], self.data)
        made.rows = cut.stop - cut.start
        made._order, made._ends = None, np.asarray([made.rows], np.int64)
        return made

    def parts(self) -> Iterator[Part]:
        """The whole as one part, or as several where it is large."""
        size = sum(array.nbytes for array in leaves(self.data))
        count = -(-size // PART_BYTES)
        if count <= 1:
            yield Part(self.data, np.arange(self.rows) if self._order is None else self._order, self._ends)
            return
        for ends in np.array_split(self._ends, min(count, len(self._ends))):
            yield self._cut(int(np.searchsorted(self._ends, ends[0])), len(ends))

    def batch_by_batch(self) -> Iterator[Part]:
        """A part for each batch."""
        for batch in range(len(self._ends)):
            yield self._cut(batch, 1)

    def batches(self) -> Iterator[Data]:
        """The data of each batch."""
        for part in self.batch_by_batch():
            yield part.data

    def _cut(self, first: int, count: int) -> Part:
        """`count` batches from the `first` on, gathered."""
        start = int(self._ends[first - 1]) if first else 0
        ends = self._ends[first : first + count]
        index: Any = slice(start, int(ends[-1])) if self._order is None else self._order[start : ends[-1]]
        return Part(map_arrays(lambda array: array[index], self.data), np.arange(ends[-1] - start), ends - start)


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
    """The arrays in a structure of tuples and dicts."""
    if data is None:
        return []
    if isinstance(data, dict):
        return [leaf for value in data.values() for leaf in leaves(value)]
    return [leaf for value in data for leaf in leaves(value)] if isinstance(data, tuple) else [data]


def map_arrays(change: Any, data: Any) -> Any:
    """The structure with every array changed."""
    if data is None:
        return None
    if isinstance(data, dict):
        return {name: map_arrays(change, value) for name, value in data.items()}
    return tuple(map_arrays(change, value) for value in data) if isinstance(data, tuple) else change(data)


def weigh(targets: Any, weights: Any, class_weight: Mapping[int, float] | None) -> Any:
    """The rows' weights times those of their classes, float32 of shape (rows,); classes without one weigh 1.

    Raises:
        SpecError: there are several outputs, or no label.
    """
    if class_weight is None:
        return weights
    if targets is None or isinstance(targets, (dict, tuple)):
        given = "none" if targets is None else len(targets)
        raise SpecError(f"class_weight: the data must have exactly one label, has {given}")
    classes = targets.argmax(-1) if targets.ndim > 1 and targets.shape[-1] > 1 else targets.reshape(len(targets))
    classes = np.round(classes)  # as Keras does: 0.9 is of class 1
    made = np.ones(len(targets), np.float32)
    for label, weight in class_weight.items():
        made[classes == label] = weight
    return made if weights is None else made * weights
