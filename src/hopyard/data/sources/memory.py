"""Sources of rows in memory: tables, arrays, and readers of record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from hopyard.data.columns import batch_bytes
from hopyard.data.manifest import SourceInfo
from hopyard.data.rows.content import Content
from hopyard.data.sources import Piece, Source
from hopyard.data.sources.streams import as_table, has_rows
from hopyard.errors import DataError, SpecError
from hopyard.formats.arrow import Array, plain_batch, plain_schema, to_arrow
from hopyard.text import unwritable

ROWS = 65_536
"""Most rows of a batch."""
BYTES = 8 << 20
"""About the most bytes of a batch of few columns: a few of them fit the last-level cache."""


@dataclass(frozen=True, slots=True)
class DetachedSource:
    """The identity, without the rows, of a source that stayed in another process."""

    volatile: ClassVar[bool] = False

    what: str
    key: str | None

    def identity(self) -> str | None:
        """Return the identity of that source."""
        return self.key or "?"

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """Raises DataError: the rows are not here."""
        raise DataError(
            f"the rows of {self.what} are in the memory of the process that named them, and their cache entry is not "
            "here (removed, by `hopyard clean` for example, damaged, or on another host): run the script that names "
            "them again (to go on with a run, with resume=True), call prepare() there with a cache that both can "
            "reach, or write the rows to Parquet and use Dataset.parquet"
        )

    def provenance(self) -> list[SourceInfo]:
        """Nothing."""
        return []

    def detached(self, identity: str | None) -> DetachedSource:
        """Itself."""
        return self


class Table:
    """An Arrow table in memory, whose layout does not matter. `decode`: dictionaries do not matter either, as no
    transform sees their codes."""

    volatile = False

    def __init__(self, table: Any, description: str, decode: bool = True) -> None:
        self._table, self._description, self._decode = table, description, decode

    def __repr__(self) -> str:
        return f"{self._description} of {self._table.num_rows} rows"

    def identity(self) -> str:
        """BLAKE3 of schema and rows, streamed."""
        return digest_of(self, plain_schema(self._table.schema, self._decode))

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """Slices of the table's chunks."""
        present = set(self._table.column_names)
        table = self._table if names is None else self._table.select([name for name in names if name in present])
        rows = batch_rows(table.nbytes, table.num_rows, table.num_columns)
        first = 0
        for batch in table.to_batches(max_chunksize=rows):
            yield plain_batch(batch, self._decode, dictionaries), self._description, first
            first += batch.num_rows

    def provenance(self) -> list[SourceInfo]:
        """One source."""
        return [SourceInfo(self._description, -1, self._table.num_rows)]

    def detached(self, identity: str | None) -> DetachedSource:
        """A source without the rows."""
        return DetachedSource(repr(self), identity or self.identity())


class Arrays:
    """NumPy arrays in memory, by column name; all of the same length."""

    volatile = False

    def __init__(self, arrays: Mapping[str, Array], description: str) -> None:
        self._arrays, self._description = dict(arrays), description
        for name in self._arrays:
            if fault := unwritable(name):
                raise SpecError(f"array {name!a}: {fault}")
        lengths = {name: len(array) if np.ndim(array) else None for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            details = ", ".join(f"{name!r} has {rows}" for name, rows in lengths.items())
            raise DataError(f"arrays must have one number of rows: {details}")
        self._rows = next(iter(lengths.values()), None) or 0
        heads = [to_arrow(array[:1] if np.ndim(array) else array, name) for name, array in self._arrays.items()]
        self.schema = pa.schema([(name, head.type) for name, head in zip(self._arrays, heads, strict=True)])

    def __repr__(self) -> str:
        return f"{self._description} of {self._rows} rows"

    def identity(self) -> str:
        """BLAKE3 of what Arrow makes of names and rows, streamed."""
        return digest_of(self, self.schema)

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """Slices of the arrays, without copies where Arrow allows it."""
        wanted = set(self._arrays if names is None else names)
        arrays = {name: array for name, array in self._arrays.items() if name in wanted}
        step = batch_rows(sum(array.nbytes for array in arrays.values()), self._rows, len(arrays))
        for start in range(0, self._rows, step):
            columns = [to_arrow(array[start : start + step], name) for name, array in arrays.items()]
            yield pa.RecordBatch.from_arrays(columns, names=list(arrays)), self._description, start

    def provenance(self) -> list[SourceInfo]:
        """One source."""
        return [SourceInfo(self._description, -1, self._rows)]

    def detached(self, identity: str | None) -> DetachedSource:
        """A source without the rows."""
        return DetachedSource(repr(self), identity or self.identity())


class BatchReader:
    """Record batches that can be read once; or, `again`, as often as an iterator of them can be made. `decode`: as of
    `Table`."""

    volatile = False

    def __init__(self, batches: Iterable[Any], description: str, again: bool = False, decode: bool = True) -> None:
        self._batches, self._description, self.again, self._decode = batches, description, again, decode
        self._read = False
        self._rows = 0

    def __repr__(self) -> str:
        return self._description

    def identity(self) -> None:
        """Known only after all rows were read."""
        return None

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """The batches as they come, large ones sliced."""
        if self._read and not self.again:
            raise DataError(
                f"{self._description} was read before and can be read only once; make the Dataset from it anew"
            )
        self._read, self._rows = True, 0
        for batch in self._batches:
            if not isinstance(batch, pa.RecordBatch) and not has_rows(batch):
                raise DataError(f"{self._description} must give record batches, gave a {type(batch).__name__}")
            for part in [batch] if isinstance(batch, pa.RecordBatch) else as_table(batch).to_batches():
                step = batch_rows(part.nbytes, part.num_rows, part.num_columns)
                for start in range(0, part.num_rows, step):
                    piece = plain_batch(part.slice(start, step), self._decode)
                    yield piece, self._description, self._rows + start
                self._rows += part.num_rows

    def provenance(self) -> list[SourceInfo]:
        """One source."""
        return [SourceInfo(self._description, -1, self._rows)]

    def detached(self, identity: str | None) -> DetachedSource:
        """A source without the rows."""
        return DetachedSource(self._description, identity)


def digest_of(source: Source, schema: pa.Schema) -> str:
    """Return the BLAKE3 of all rows of a source that may be read again."""
    content = Content(schema)
    for batch, _, _ in source.pieces(None, []):
        content.update(batch)
    return content.hexdigest()


def batch_rows(size: int, rows: int, columns: int) -> int:
    """Return how many rows make a batch, at most ROWS, given `rows` rows of `size` bytes in all."""
    return max(1, min(ROWS, batch_bytes(columns, BYTES) * rows // max(size, 1)))
