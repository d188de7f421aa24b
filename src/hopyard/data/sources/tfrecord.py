"""Finds files of tf.train.Example records, reads them once to learn their columns, and decodes them in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from blake3 import blake3

from hopyard.data.manifest import SourceInfo
from hopyard.data.sources import Piece, paths
from hopyard.data.sources.memory import BYTES, ROWS
from hopyard.data.sources.paths import read_ahead, stamp
from hopyard.errors import DataError
from hopyard.filesystems import names_of
from hopyard.formats.example import Seen, decode, listed, look, schema
from hopyard.formats.tfrecord import records


def find(source: Any) -> list[str]:
    """Return the TFRecord files of a path, glob, directory, fsspec URL, or a list of these. Raises as `paths.find`."""
    return [file.path for file in paths.find(source, "TFRecord")]


def batches(path: str, columns: pa.Schema, rows: int = ROWS, size: int = BYTES) -> Iterator[Any]:
    """Yield the records of a file as batches of `columns`, each of at most `rows` rows and about `size` bytes."""
    pending: list[bytes] = []
    first = total = 0
    for data in records(path):
        pending.append(data)
        total += len(data)
        if len(pending) >= rows or total >= size:
            yield decode(pending, columns, path, first)
            first, total, pending = first + len(pending), 0, []
    if pending:
        yield decode(pending, columns, path, first)


class TFRecordFiles:
    """TFRecord files, by path or URL. Cheap to pickle; read as often as needed, and once more for their columns."""

    volatile = True

    def __init__(self, paths: list[str], binary: Sequence[str] = ()) -> None:
        self.paths, self.binary = paths, listed(binary)
        self._provenance: list[SourceInfo] = []
        self._stamped_schema: tuple[list[str], pa.Schema] | None = None
        """(stamps of the files, the columns that they then had)."""

    def __repr__(self) -> str:
        return names_of(self.paths)

    def identity(self) -> str:
        """BLAKE3 over path and stamp of each file, and which features are binary."""
        hasher = blake3(repr(sorted(self.binary)).encode())
        for path, file_stamp in zip(self.paths, self._stamps(), strict=True):
            hasher.update(f"{path}\0{file_stamp}\0".encode())
        return hasher.hexdigest()

    def schema(self) -> pa.Schema:
        """Return the columns of all records. Reads all files, unless that was done and they have not changed.

        Raises:
            DataError: a file is damaged, there are no records, or a feature has two kinds.
        """
        stamps = self._stamps()
        if self._stamped_schema is None or self._stamped_schema[0] != stamps:
            features: dict[str, Seen] = {}
            if not sum(look(features, records(path), path) for path in self.paths):
                raise DataError(f"{self!r}: there are no records, so no columns are known")
            self._stamped_schema = stamps, schema(features, self.binary, repr(self))
        return self._stamped_schema[1]

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """Batches of each file in order."""
        self._provenance = []
        return read_ahead(self._read(names))

    def provenance(self) -> list[SourceInfo]:
        """Each file."""
        return self._provenance

    def detached(self, identity: str | None) -> TFRecordFiles:
        """Itself: paths only."""
        return TFRecordFiles(self.paths, self.binary)

    def _read(self, names: list[str] | None) -> Iterator[Piece]:
        columns = self.schema()
        if names is not None:
            wanted = set(names)
            columns = pa.schema([field for field in columns if field.name in wanted])
        for path in self.paths:
            row = 0
            for batch in batches(path, columns):
                yield batch, path, row
                row += batch.num_rows
            self._provenance.append(SourceInfo(path, -1, row))

    def _stamps(self) -> list[str]:
        return [stamp(path) for path in self.paths]
