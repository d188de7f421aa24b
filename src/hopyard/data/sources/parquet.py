"""Parquet files, decoded row group by row group, one ahead of who consumes them.

All files together are one table. What one of them lacks, its folders may say (`year=2013/`, as Hive and Spark write
them), or it is null there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from hopyard.data.manifest import SourceInfo
from hopyard.data.sources import paths
from hopyard.data.sources.paths import FoundFile, opened, read_ahead, reading, stamp
from hopyard.data.sources.source import BYTES, ROWS, Piece
from hopyard.errors import DataError
from hopyard.filesystems import names_of
from hopyard.formats.arrow import require

GROUP_BYTES = 64 << 20
"""Row groups up to this size are decoded whole, the fastest way; larger ones in batches, so memory stays bounded."""


def find(source: Any) -> list[FoundFile]:
    """The Parquet files of a path, a glob, a directory, an fsspec URL, or a list of these. Raises as `paths.find`."""
    return paths.find(source, "Parquet", (".parquet", ".parq", ".pq"))


class ParquetFiles:
    """Parquet files, by path or URL. Cheap to pickle; read as often as needed."""

    volatile = True

    def __init__(self, files: Sequence[FoundFile]) -> None:
        self.files = files
        self._provenance: list[SourceInfo] = []

    def __repr__(self) -> str:
        return names_of([file.path for file in self.files])

    def identity(self) -> str:
        """BLAKE3 over path, stamp and footer of each file, and what its folders say."""
        hasher = blake3()
        for path, folders in self.files:
            hasher.update(f"{path}\0{stamp(path)}\0".encode())
            hasher.update(_footer(path))
            if folders:
                hasher.update(f"\0{folders}\0".encode())
        return hasher.hexdigest()

    def schema(self) -> pa.Schema:
        """The columns of the first file, from its footer, and those of the folders."""
        with _opened(self.files[0].path, []) as file:
            schema = file.schema_arrow
        for name, kind in _folder_types(self.files).items():
            schema = schema if name in schema.names else schema.append(pa.field(name, kind))
        return schema

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """Row groups (or batches of large ones) in order."""
        self._provenance = []
        return read_ahead(self._read(names, dictionaries))

    def provenance(self) -> list[SourceInfo]:
        """Each row group of each file."""
        return self._provenance

    def detached(self, identity: str | None) -> ParquetFiles:
        """Itself: paths only."""
        return ParquetFiles(self.files)

    def _read(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        columns = self._columns(names, dictionaries)
        types = {name: column.field.type for name, column in columns.items()}
        for found in self.files:
            with _opened(found.path, dictionaries) as file:
                there = file.schema_arrow
                for column in columns.values():
                    column.check(there, found, fills=names is None)
                wanted = [name for name in types if name in there.names]
                row = 0
                for group in range(file.num_row_groups):
                    for batch in _group(file, group, wanted):
                        yield _filled(batch, types, found.folders), found.path, row
                        row += batch.num_rows
                    self._provenance.append(SourceInfo(found.path, group, file.metadata.row_group(group).num_rows))

    def _columns(self, names: list[str] | None, dictionaries: list[str]) -> dict[str, _Column]:
        """The columns that are read: those of all files and folders together, where `names` is None; else those of
        `names` that the first file has, or folders.
        """
        columns: dict[str, _Column] = {}
        for path, _ in self.files if names is None else self.files[:1]:
            with _opened(path, dictionaries) as file:
                there = file.schema_arrow
            wanted = [name for name in names or there.names if name in there.names]
            require(there, wanted, path)
            for name in wanted:
                if name not in columns or pa.types.is_null(columns[name].field.type):
                    columns[name] = _Column(there.field(name), path)
        for name, kind in _folder_types(self.files).items():
            if name not in columns and (names is None or name in names):
                columns[name] = _Column(pa.field(name, kind), "the names of folders")
        return columns


class _Column(NamedTuple):
    """A column of all files."""

    field: pa.Field
    path: str
    """The first file that has it."""

    def check(self, there: pa.Schema, file: FoundFile, *, fills: bool) -> None:
        """Raises DataError where a file, whose schema is `there`, has it with another type, or lacks it and is in no
        folder that names it. `fills`: whether a transform sees the rows, so that the column may be null.
        """
        name, kind = self.field.name, self.field.type
        if name not in there.names and (name in file.folders or (fills and self.field.nullable)):
            return
        require(there, [name], file.path)
        mine = there.field(name).type
        if mine != kind and not (fills and pa.types.is_null(mine)):
            raise DataError(
                f"column {name!r} has type {mine} in {file.path} but {kind} in {self.path}; write the files with one "
                "schema"
            )


def _folder_types(files: Sequence[FoundFile]) -> dict[str, pa.DataType]:
    """The columns that folders name: whole numbers where all are, else text."""
    values: dict[str, list[str]] = {}
    for _, folders in files:
        for name, value in folders.items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return {name: _type_of(texts) for name, texts in values.items()}


def _type_of(texts: list[str]) -> pa.DataType:
    if not texts or not all(re.fullmatch(r"-?[0-9]{1,18}", text) for text in texts):
        return pa.string()
    return pa.int32() if all(abs(int(text)) < 1 << 31 for text in texts) else pa.int64()


def _filled(batch: Any, types: Mapping[str, pa.DataType], folders: Mapping[str, str | None]) -> Any:
    """A batch with all columns, in one order: those that the file lacks hold what its folders say, or null."""
    if batch.schema.names == list(types) and batch.schema.types == list(types.values()):
        return batch

    def column(name: str, kind: pa.DataType) -> Any:
        if name in batch.schema.names and batch.column(name).type == kind:
            return batch.column(name)
        if (value := folders.get(name)) is None:
            return pa.nulls(batch.num_rows, kind)
        return pa.repeat(pa.scalar(value).cast(kind), batch.num_rows)

    return pa.RecordBatch.from_arrays([column(*each) for each in types.items()], names=list(types))


def _group(file: Any, group: int, wanted: list[str]) -> Iterator[Any]:
    info = file.metadata.row_group(group)
    if info.num_rows == 0:
        return
    if info.total_byte_size <= GROUP_BYTES:
        yield from file.read_row_group(group, columns=wanted, use_threads=True).to_batches()
        return
    rows = max(1, min(ROWS, 4 * BYTES * info.num_rows // info.total_byte_size))
    yield from file.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=True)


@contextmanager
def _opened(path: str, dictionaries: list[str]) -> Iterator[Any]:
    """A Parquet file; what is raised while it is read becomes a DataError."""
    with reading(path, "Parquet"), opened(path) as stream:
        metadata = pq.read_metadata(stream) if dictionaries else None
        there = [] if metadata is None else metadata.schema.to_arrow_schema().names
        with pq.ParquetFile(
            stream,
            metadata=metadata,
            read_dictionary=[name for name in dictionaries if name in there] or None,
            memory_map=isinstance(stream, str),
            page_checksum_verification=True,
        ) as file:
            yield file


def _footer(path: str) -> bytes:
    """The serialized metadata at the end of a Parquet file, which ends with its length and "PAR1"."""
    with reading(path, "Parquet"), opened(path) as place:
        stream = Path(place).open("rb") if isinstance(place, str) else place  # noqa: SIM115
        with closing(stream):
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 8))
            tail = stream.read(8)
            length = int.from_bytes(tail[:4], "little")
            if size < 12 or tail[4:] not in (b"PAR1", b"PARE") or length > size - 12:
                raise DataError(
                    f"{path} is no Parquet file, or was cut off: it has {size} bytes and no footer at its end"
                )
            stream.seek(size - 8 - length)
            return bytes(stream.read(length))
