"""Sorts any number of rows by their names: rows that do not fit in memory wait in files.

    words-0, words-1, …   one word of each row's name
    rows                  the rows, each in one piece, as they came; of those of any length, where they are in
    values-0, …           the values of such an array

A row takes 32 bytes of memory while the words are sorted, and is then read from the mapped file. Knows nothing of what
the rows mean.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopyard.data.manifest import ArrayInfo
from hopyard.data.ragged import Ragged, joined
from hopyard.formats.arrow import Array

MEMORY = 96 << 20
"""Bytes of rows that stay in memory."""
_STEP = 1 << 20
"""Default of `step`, and the number of rows whose ties are broken at once."""


class RowSorter:
    """Takes rows with their names and yields them in the order of the names. Owns its files.

    Args:
        infos: row shape and dtype of each array.
        words: how many words a name has.
        folder: a directory for the files named above, none of which is there yet; created when it is needed.
        memory: bytes of rows that stay in memory.
        step: about the bytes of rows that are yielded at once.
    """

    def __init__(
        self, infos: list[ArrayInfo], words: int, folder: Path, memory: int = MEMORY, *, step: int = _STEP
    ) -> None:
        self.rows = 0
        self._folder, self._memory, self._step_bytes = folder, memory, step
        self._ragged = {at: info.dtype for at, info in enumerate(infos) if info.is_ragged}
        self._values = dict.fromkeys(self._ragged, 0)
        """How many values of each Ragged array are in files."""
        self._record = np.dtype([
            (str(at), *(("int64", (2,)) if at in self._ragged else (info.dtype, info.shape)))
            for at, info in enumerate(infos)
        ])  # fmt: skip
        self._words = words
        self._batches: list[tuple[list[Any], Array]] = []
        self._bytes = self._all_bytes = 0
        self._spilled = False

    def take(self, arrays: list[Any], names: Array) -> None:
        """Adds arrays of shape (rows, …), or Ragged, and uint64 names (rows, words). Nobody may write to them."""
        self._batches.append((arrays, names))
        size = sum(array.nbytes for array in arrays)
        self._bytes += size + names.nbytes
        self._all_bytes += size
        self.rows += len(names)
        if self._bytes > self._memory:
            self._spill()

    def blocks(self) -> Iterator[list[Any]]:
        """Yield all rows in order, once, as arrays of about `step` bytes of rows."""
        if self._spilled:
            self._spill()
            yield from self._from_files()
            return
        if not self._batches:
            return
        names = np.concatenate([names for _, names in self._batches])
        arrays = [
            joined(parts, self._ragged[at]) if at in self._ragged else np.concatenate(parts)
            for at, parts in enumerate(zip(*(arrays for arrays, _ in self._batches), strict=True))
        ]
        self._batches = []
        order = ordered([names[:, word] for word in range(self._words)])
        step = self._step
        for start in range(0, len(order), step):
            yield [array.take(order[start : start + step], axis=0) for array in arrays]

    def close(self) -> None:
        """Removes the files."""
        self._batches = []
        if self._spilled:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _step(self) -> int:
        return max(1, self._step_bytes * self.rows // max(1, self._all_bytes))

    def _spill(self) -> None:
        self._folder.mkdir(exist_ok=True)
        self._spilled = True
        for arrays, names in self._batches:
            for word in range(self._words):
                _append(self._folder / f"words-{word}", np.ascontiguousarray(names[:, word]))
            records = np.empty(len(names), self._record)
            for at, array in enumerate(arrays):
                records[str(at)] = self._spilled_values(at, array) if at in self._ragged else array
            _append(self._folder / "rows", records)
        self._batches, self._bytes = [], 0

    def _spilled_values(self, at: int, rows: Ragged) -> Array:
        """Append the values of array `at` to their file. Return where each row begins and ends there."""
        flat = joined([rows], self._ragged[at])
        _append(self._folder / f"values-{at}", flat.values)
        places = np.stack([flat.starts, flat.ends], axis=1) + self._values[at]
        self._values[at] += len(flat.values)
        return places

    def _from_files(self) -> Iterator[list[Any]]:
        order = ordered([np.memmap(self._folder / f"words-{word}", np.uint64, "r") for word in range(self._words)])
        rows = np.memmap(self._folder / "rows", self._record, "r")
        values = {at: np.memmap(self._folder / f"values-{at}", kind, "r") for at, kind in self._ragged.items()}
        for start in range(0, self.rows, self._step):
            part = rows[order[start : start + self._step]]
            yield [
                Ragged(values[at], *part[name].T) if at in values else np.ascontiguousarray(part[name])
                for at, name in enumerate(self._record.names or ())
            ]


def ordered(words: Sequence[Array], rows: Array | None = None) -> Array:
    """Return an int64 array: which row is first, second, … by the first word, then the second, and so on.

    Args:
        words: uint64 arrays of shape (all rows,).
        rows: the rows to sort; None: all.

    The high bits of the first word are sorted with the row's number in the low bits, much faster than by `argsort`;
    then ties are broken.
    """
    first = words[0] if rows is None else words[0][rows]
    if len(words) > 1 and len(first) and first.min() == first.max():
        return ordered(words[1:], rows)
    low = np.uint64((1 << max(1, (len(first) - 1).bit_length())) - 1)
    packed = first & ~low
    packed |= np.arange(len(first), dtype=np.uint64)
    del first
    packed.sort()
    ends = _ties(packed, low)
    packed &= low
    order = packed.view(np.int64) if rows is None else rows[packed.view(np.int64)]
    at = 0
    while at < len(ends):
        start = ends[at, 0]
        upto = max(at + 1, int(np.searchsorted(ends[:, 1], start + _STEP, "right")))
        lengths = ends[at:upto, 1] - ends[at:upto, 0]
        span = order[start : ends[upto - 1, 1]]
        if len(span) > _STEP and len(span) < len(order):
            span[:] = ordered(words, span)
        else:
            inside = np.repeat(ends[at:upto, 0] - start - np.cumsum(lengths) + lengths, lengths)
            inside += np.arange(len(inside))
            tied, group = span[inside], np.repeat(np.arange(len(lengths)), lengths)
            span[inside] = tied[np.lexsort([*(word[tied] for word in reversed(words)), group])]
        at = upto
    return order


def _ties(packed: Array, low: Any) -> Array:
    """Return an int64 array of shape (groups, 2): begin and end of each group that differs in the low bits only."""
    equal = np.zeros(len(packed) + 1, np.bool_)  # whether each one is equal to the one before
    for start in range(1, len(packed), _STEP):
        part = packed[start - 1 : start + _STEP] & ~low
        equal[start : start + len(part) - 1] = part[1:] == part[:-1]
    starts = np.flatnonzero(~equal[:-1] & equal[1:])
    return np.stack([starts, np.flatnonzero(equal[:-1] & ~equal[1:]) + 1], axis=1)


def _append(path: Path, rows: Array) -> None:
    with path.open("ab") as file:
        rows.tofile(file)
