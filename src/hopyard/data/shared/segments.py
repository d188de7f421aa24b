"""How rows lie in the files of a materialisation: segments, each with rows of all partitions, and their index.

One writer makes one segment, as a stream of chunks, so that it holds no more than a chunk of rows in memory:

    segment   chunk, chunk, …
    chunk     run of training partition 0, 1, …, run of validation partition 0, 1, …
    run       field by field, then the rows' names, C order; each begins at a multiple of 64 bytes. A field of rows of
              any length is two arrays: their lengths, then their values

A run's position follows from the numbers of rows and of such values, so the index needs no offsets. Rows are raw (see
`encoder`): the reader orders and finishes them. Knows neither Spark nor where files lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from hopyard.data.columns import ALIGN
from hopyard.data.encoding.schema import raw_shape
from hopyard.data.manifest import ArrayInfo, Field, FileName
from hopyard.data.ragged import Ragged, joined
from hopyard.data.rows.names import Names, added
from hopyard.formats.arrow import Array
from hopyard.spec import RowKind

LENGTH = ArrayInfo((), "int64")
"""The length of a row of any length."""
CHUNK = 64 << 20
"""Bytes of rows that a writer gathers before it writes them."""


class Segment(msgspec.Struct, frozen=True):
    """One file. Lists over runs have 2 · partitions entries: those for training, then those for validation."""

    name: FileName
    bytes: int
    chunks: list[list[int]]
    """Rows of each run of each chunk."""
    digests: list[str]
    """BLAKE3 of each run, over all chunks; empty where it has no rows."""
    sums: list[str]
    """The sum of the names of the rows of each run, in hexadecimal."""
    values: list[list[list[int]]] = []
    """Number of values by chunk, run and ragged field; empty without ragged fields."""

    def rows(self, run: int) -> int:
        """Rows of one run."""
        return sum(chunk[run] for chunk in self.chunks)


class Index(msgspec.Struct, frozen=True):
    """All segments of a materialisation, in any order: their rows are ordered by name."""

    partitions: int
    words: int
    """How many words a row's name has."""
    segments: list[Segment]

    def run(self, kind: RowKind, partition: int) -> int:
        """Return the number of a run."""
        return partition + (self.partitions if kind == "validate" else 0)


def infos(fields: list[Field], words: int) -> list[ArrayInfo]:
    """Return row shape and dtype of each field as it lies in a segment, and those of the names."""
    return [*(ArrayInfo(raw_shape(field), field.raw) for field in fields), ArrayInfo((words,), "uint64")]


def padded(size: int) -> int:
    """Return `size` rounded up to a multiple of 64."""
    return -(-size // ALIGN) * ALIGN


def run_bytes(layout: list[ArrayInfo], rows: int, values: Sequence[int] = ()) -> int:
    """Bytes of a run. `values`: how many values each field has whose rows have any length."""
    ragged = [info for info in layout if info.is_ragged]
    sizes = [rows * info.row_bytes for info in layout if not info.is_ragged]
    sizes += [rows * LENGTH.row_bytes for _ in ragged]
    sizes += [count * info.row_bytes for info, count in zip(ragged, values, strict=True)]
    return sum(map(padded, sizes))


def views(layout: list[ArrayInfo], rows: int, data: Array) -> list[Any]:
    """Return the fields of a run whose bytes are `data`, a uint8 array: each of shape (rows, *row shape), or Ragged."""
    arrays: list[Any] = []
    start = 0
    for info in layout:
        if info.is_ragged:
            lengths = _view(LENGTH, rows, data, start)
            start += padded(lengths.nbytes)
            values = _view(info, int(lengths.sum()), data, start)
            arrays.append(Ragged.of(values, lengths))
            start += padded(values.nbytes)
        else:
            arrays.append(_view(info, rows, data, start))
            start += padded(arrays[-1].nbytes)
    return arrays


def _view(info: ArrayInfo, rows: int, data: Array, start: int) -> Array:
    """Return `rows` rows in `data`, from byte `start` on; of rows of any length as many values."""
    array: Array = data[start : start + rows * info.row_bytes].view(info.dtype)
    return array.reshape(rows, *(axis for axis in info.shape if axis is not None))


def ranges(layout: list[ArrayInfo], segment: Segment, run: int) -> Iterator[tuple[int, int, int]]:
    """Yield (rows, first byte, end) of one run in each chunk that has rows of it."""
    start = 0
    for number, chunk in enumerate(segment.chunks):
        values = segment.values[number] if segment.values else [[]] * len(chunk)
        ends = np.cumsum([start, *map(run_bytes, [layout] * len(chunk), chunk, values)])
        if chunk[run]:
            yield chunk[run], int(ends[run]), int(ends[run + 1])
        start = int(ends[-1])


class Writer:
    """Sorts rows by their partitions and writes them, chunk by chunk.

    Args:
        fields: one for each raw array.
        partitions: how many there are of each kind.
        words: how many words a row's name has.
        write: is called with the bytes of each chunk, a uint8 array.
        limit: bytes of rows in a chunk.
    """

    def __init__(
        self,
        fields: list[Field],
        partitions: int,
        words: int,
        write: Callable[[Array], object],
        limit: int = CHUNK,
    ) -> None:
        self.bytes = 0
        self.chunks: list[list[int]] = []
        self.values: list[list[list[int]]] = []
        self.sums = [0] * (2 * partitions)
        self._layout, self._partitions, self._write, self._limit = infos(fields, words), partitions, write, limit
        self._hashes = [blake3() for _ in range(2 * partitions)]
        self._ragged = [at for at, info in enumerate(self._layout) if info.is_ragged]
        self._clear()

    def take(self, raw: list[Any], names: Names, is_validation: Array | None) -> None:
        """Adds one array of shape (rows, …) for each field. `is_validation`: which rows validate; None: none.

        The arrays are kept until their chunk is written: nobody may write to them.
        """
        arrays: list[Any] = [*raw, names.words]
        for run, part, total in names.runs(self._partitions, is_validation):
            self._pending[run].append((arrays, part))
            self._rows[run] += len(part)
            self.sums[run] = added(self.sums[run], total)
        self._buffered_bytes += sum(array.nbytes for array in arrays)
        if self._buffered_bytes >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that wait as one chunk."""
        values = [
            [sum(int(arrays[at][part].lengths.sum()) for arrays, part in pending) for at in self._ragged]
            for pending in self._pending
        ]
        sizes = list(map(run_bytes, [self._layout] * len(values), self._rows, values))
        ends = np.cumsum([0, *sizes])
        if not ends[-1]:
            return
        chunk = np.zeros(int(ends[-1]), np.uint8)
        for run, (start, stop) in enumerate(pairwise(ends.tolist())):
            if start < stop:
                data = chunk[start:stop]
                self._gather(run, data)
                self._hashes[run].update(data.data)
        self._write(chunk)
        self.chunks.append(self._rows)
        if self._ragged:
            self.values.append(values)
        self.bytes += len(chunk)
        self._clear()

    def digests(self) -> list[str]:
        """Return the BLAKE3 of each run; empty where it has no rows."""
        counts = np.sum(self.chunks, axis=0) if self.chunks else np.zeros(len(self._hashes))
        return [hasher.hexdigest() if rows else "" for hasher, rows in zip(self._hashes, counts, strict=True)]

    def _gather(self, run: int, data: Array) -> None:
        start = 0
        for number, info in enumerate(self._layout):
            if info.is_ragged:
                ragged = joined([arrays[number][part] for arrays, part in self._pending[run]], info.dtype)
                for each in (ragged.lengths, ragged.values):
                    data[start : start + each.nbytes] = each.view(np.uint8)
                    start += padded(each.nbytes)
                continue
            out, at = _view(info, self._rows[run], data, start), 0
            for arrays, part in self._pending[run]:
                arrays[number].take(part, axis=0, out=out[at : at + len(part)], mode="clip")
                at += len(part)
            start += padded(out.nbytes)

    def _clear(self) -> None:
        self._buffered_bytes = 0
        self._rows = [0] * (2 * self._partitions)
        self._pending: list[list[tuple[list[Any], Array]]] = [[] for _ in self._rows]
