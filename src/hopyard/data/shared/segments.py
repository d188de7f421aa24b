"""How rows lie in the files of a materialisation: segments, each with rows of all partitions, and their index.

One writer makes one segment, as a stream of chunks, so that it holds no more than a chunk of rows in memory:

    segment   chunk, chunk, …
    chunk     run of training partition 0, 1, …, run of validation partition 0, 1, …
    run       field by field, then the rows' names, C order; each begins at a multiple of 64 bytes

A run's position follows from the numbers of rows, so the index needs no offsets. Rows are raw (see `encoder`): the
reader orders and finishes them. Knows neither Spark nor where files lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import numpy as np
from blake3 import blake3

from hopyard.data.columns import ALIGN
from hopyard.data.encoding.schema import raw_shape
from hopyard.data.manifest import ArrayInfo, Field, FileName
from hopyard.data.rows.names import Names, added
from hopyard.formats.arrow import Array
from hopyard.spec import RowKind

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


def run_bytes(layout: list[ArrayInfo], rows: int) -> int:
    """Bytes of a run."""
    return sum(padded(rows * info.row_bytes) for info in layout)


def views(layout: list[ArrayInfo], rows: int, data: Array) -> list[Array]:
    """Return the fields of a run whose bytes are `data`, a uint8 array: each of shape (rows, *row shape)."""
    arrays, start = [], 0
    for info in layout:
        size = rows * info.row_bytes
        arrays.append(data[start : start + size].view(info.dtype).reshape(rows, *info.shape))
        start += padded(size)
    return arrays


def ranges(layout: list[ArrayInfo], segment: Segment, run: int) -> Iterator[tuple[int, int, int]]:
    """Yield (rows, first byte, end) of one run in each chunk that has rows of it."""
    start = 0
    for chunk in segment.chunks:
        ends = np.cumsum([start, *(run_bytes(layout, rows) for rows in chunk)])
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
        self.sums = [0] * (2 * partitions)
        self._layout, self._partitions, self._write, self._limit = infos(fields, words), partitions, write, limit
        self._hashes = [blake3() for _ in range(2 * partitions)]
        self._row_bytes = sum(info.row_bytes for info in self._layout)
        self._clear()

    def take(self, raw: list[Array], names: Names, is_validation: Array | None) -> None:
        """Adds one array of shape (rows, …) for each field. `is_validation`: which rows validate; None: none.

        The arrays are kept until their chunk is written: nobody may write to them.
        """
        arrays = [*raw, names.words]
        for run, part, total in names.runs(self._partitions, is_validation):
            self._pending[run].append((arrays, part))
            self._rows[run] += len(part)
            self.sums[run] = added(self.sums[run], total)
        self._buffered_bytes += len(names) * self._row_bytes
        if self._buffered_bytes >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that wait as one chunk."""
        sizes = [run_bytes(self._layout, rows) for rows in self._rows]
        ends = np.cumsum([0, *sizes])
        if not ends[-1]:
            return
        chunk = np.empty(int(ends[-1]), np.uint8)
        for run, (start, stop) in enumerate(pairwise(ends.tolist())):
            if start < stop:
                data = chunk[start:stop]
                self._gather(run, data)
                self._hashes[run].update(data.data)
        self._write(chunk)
        self.chunks.append(self._rows)
        self.bytes += len(chunk)
        self._clear()

    def digests(self) -> list[str]:
        """Return the BLAKE3 of each run; empty where it has no rows."""
        counts = np.sum(self.chunks, axis=0) if self.chunks else np.zeros(len(self._hashes))
        return [hasher.hexdigest() if rows else "" for hasher, rows in zip(self._hashes, counts, strict=True)]

    def _gather(self, run: int, data: Array) -> None:
        rows, start = self._rows[run], 0
        for number, (info, out) in enumerate(zip(self._layout, views(self._layout, rows, data), strict=True)):
            at = 0
            for arrays, part in self._pending[run]:
                arrays[number].take(part, axis=0, out=out[at : at + len(part)], mode="clip")
                at += len(part)
            end = start + padded(rows * info.row_bytes)
            data[start + rows * info.row_bytes : end] = 0
            start = end

    def _clear(self) -> None:
        self._buffered_bytes = 0
        self._rows = [0] * (2 * self._partitions)
        self._pending: list[list[tuple[list[Array], Array]]] = [[] for _ in self._rows]
