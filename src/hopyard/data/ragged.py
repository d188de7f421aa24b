"""Rows of any length: the values of all rows in one array, and where each row begins and ends there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.data.columns import aligned
from hopyard.formats.arrow import Array


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of which row i is `values[starts[i]:ends[i]]`. Rows are chosen as those of an array are, by an index or by
    `take`, and no value is copied.

    Attributes:
        values: array of shape (values,), which may have values of other rows too.
        starts, ends: int64 arrays of shape (rows,).
    """

    values: Array
    starts: Array
    ends: Array

    @classmethod
    def of(cls, values: Array, lengths: Array) -> Ragged:
        """Return rows that follow each other in `values`."""
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        return cls(values, offsets[:-1], offsets[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: Any) -> Ragged:
        return Ragged(self.values, self.starts[rows], self.ends[rows])

    def take(self, rows: Array, axis: int = 0) -> Ragged:
        """Return these rows, as `numpy.ndarray.take` does."""
        assert axis == 0
        return self[rows]

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def lengths(self) -> Array:
        """How many values each row has."""
        return self.ends - self.starts

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, in a file."""
        return int(self.lengths.sum() * self.dtype.itemsize) + self.starts.nbytes

    def flat(self) -> Array:
        """Return the values of all rows, one row after the other, as a new array."""
        lengths = self.lengths
        first = self.starts - (np.cumsum(lengths) - lengths)
        return np.asarray(self.values[np.repeat(first, lengths) + np.arange(lengths.sum())])

    def cut(self, length: int) -> Ragged:
        """Return the first `length` values of each row: these rows where none has more."""
        if not (self.lengths > length).any():
            return self
        lengths = np.minimum(self.lengths, length)
        return Ragged.of(Ragged(self.values, self.starts, self.starts + lengths).flat(), lengths)

    def padded(self) -> tuple[Array, Array]:
        """Return an aligned array of shape (rows, longest), with zeros after the values of each row; and a Boolean
        array of the same shape, where there are values."""
        lengths = self.lengths
        at = np.arange(lengths.max(initial=1))
        padded, mask = (aligned((len(self), len(at)), kind) for kind in (self.dtype, "bool"))
        np.less(at, lengths[:, None], out=mask)
        padded[...] = 0
        padded[mask] = self.flat()
        return padded, mask


def joined(parts: Sequence[Ragged], dtype: Any) -> Ragged:
    """Return the rows of all parts, one part after the other, with their values in a new array."""
    values = np.concatenate([np.zeros(0, dtype), *(part.flat() for part in parts)])
    return Ragged.of(values, np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)]))
