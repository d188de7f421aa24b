"""Parquet files, decoded row group by row group, one ahead of their consumer.

All files together are one table. A column that a file lacks comes from its folders (`year=2013/`, as Hive and
Spark write them), or is null there. A column that is null throughout a file, which writers give the type null, has the
type that it has in the others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from hopyard.data.columns import batch_bytes
from hopyard.data.manifest import SourceInfo
from hopyard.data.sources import Piece, paths
from hopyard.data.sources.memory import BYTES, ROWS
from hopyard.data.sources.paths import FoundFile, opened, read_ahead, reading, stamp
from hopyard.errors import DataError
from hopyard.filesystems import names_of
from hopyard.formats.arrow import as_type, is_text, is_untyped, merged, plain_batch, plain_type, require

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
        """BLAKE3 over path, stamp and footer of each file, and the columns that its folders name."""
        hasher = blake3()
        for path, folders in self.files:
            hasher.update(f"{path}\0{stamp(path)}\0".encode())
            hasher.update(_footer(path))
            if folders:
                hasher.update(f"\0{folders}\0".encode())
        return hasher.hexdigest()

    def schema(self) -> pa.Schema:
        """Return the columns of the first file, from its footer, and those of the folders."""
        schema = _schema(self.files[0].path)
        present = set(schema.names)
        for name, kind in _folder_types(self.files).items():
            schema = schema if name in present else schema.append(pa.field(name, kind))
        return schema

    def typed(self, schema: pa.Schema, names: Collection[str]) -> pa.Schema:
        """Return `schema`, that of the first file, with the types of other files for those of `names` that are null
        throughout the first."""
        fields = _fields(schema)
        columns = {name: _Column(fields[name][0], "") for name in names if len(fields.get(name, ())) == 1}
        self._find_types(columns)
        return pa.schema([columns[field.name].field if field.name in columns else field for field in schema])

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

    def _read(self, names: list[str] | None, dictionaries: Collection[str]) -> Iterator[Piece]:
        dictionaries = set(dictionaries)
        columns = self._columns(names, dictionaries)
        types = {name: column.field.type for name, column in columns.items()}
        for source_file in self.files:
            with _opened(source_file.path, dictionaries) as file:
                fields = _fields(file.metadata.schema.to_arrow_schema(), dictionaries)
                for column in columns.values():
                    column.check(fields, source_file, fills=names is None)
                present = [name for name in types if name in fields]
                row = 0
                for group in range(file.num_row_groups):
                    for batch in _group(file, group, present):
                        batch = plain_batch(batch, decode=False)  # noqa: PLW2901
                        yield _filled(batch, types, source_file.folders), source_file.path, row
                        row += batch.num_rows
                    self._provenance.append(
                        SourceInfo(source_file.path, group, file.metadata.row_group(group).num_rows)
                    )

    def _columns(self, names: list[str] | None, dictionaries: Collection[str]) -> dict[str, _Column]:
        """Return the columns to read: if `names` is None, those of all files and folders together; else those of
        `names` that the first file has, or folders.
        """
        columns: dict[str, _Column] = {}
        for path, _ in self.files if names is None else self.files[:1]:
            schema = _schema(path)
            fields = _fields(schema, dictionaries)
            present = [name for name in names or fields if name in fields]
            require(schema, present, path)
            for name in present:
                columns[name] = columns[name].merge(fields, path) if name in columns else _Column(fields[name][0], path)
        for name, kind in _folder_types(self.files).items():
            if name not in columns and (names is None or name in names):
                columns[name] = _Column(pa.field(name, kind), "the names of folders")
        if names is not None:
            self._find_types(columns, dictionaries)
        return columns

    def _find_types(self, columns: dict[str, _Column], dictionaries: Collection[str] = ()) -> None:
        """Look in the files after the first for the types of columns that are null throughout those before."""
        for path, _ in self.files[1:]:
            untyped = [name for name, column in columns.items() if is_untyped(column.field.type)]
            if not untyped:
                return
            fields = _fields(_schema(path), dictionaries)
            for name in untyped:
                columns[name] = columns[name].merge(fields, path)


Fields = Mapping[str, list[pa.Field]]
"""The fields of a schema by name. Arrow makes a list of all of them for each name that it looks up."""


def _schema(path: str) -> pa.Schema:
    with _opened(path) as file:
        return file.schema_arrow


def _fields(schema: pa.Schema, dictionaries: Collection[str] = ()) -> Fields:
    """Return the fields of a schema, those of `dictionaries` with the type of their values, however they are stored."""
    fields: dict[str, list[pa.Field]] = {}
    for field in schema:
        kind = plain_type(field.type, decode=field.name in dictionaries)
        fields.setdefault(field.name, []).append(field.with_type(kind))
    return fields


class _Column(NamedTuple):
    """A column of all files."""

    field: pa.Field
    path: str
    """The file that its type comes from."""

    def merge(self, fields: Fields, path: str) -> _Column:
        """Return the column with its type in another file, of which these are the fields, if it has no type yet."""
        name, kind = self.field.name, self.field.type
        if not is_untyped(kind) or name not in fields or (both := merged(kind, fields[name][0].type)) in (None, kind):
            return self
        return _Column(self.field.with_type(both), path)

    def check(self, fields: Fields, file: FoundFile, *, fills: bool) -> None:
        """Raise DataError where a file with these fields has it with another type, or lacks it and is in no folder that
        names it. `fills`: whether a transform sees the rows, so that the column may be null.
        """
        name, kind = self.field.name, self.field.type
        if name not in fields and (name in file.folders or (fills and self.field.nullable)):
            return
        if len(fields.get(name, ())) != 1:
            require(pa.schema([field for each in fields.values() for field in each]), [name], file.path)
        if merged(kind, fields[name][0].type) != kind:
            raise DataError(
                f"column {name!r} has type {fields[name][0].type} in {file.path} but {kind} in {self.path}; write the "
                "files with one schema"
            )


def _folder_types(files: Sequence[FoundFile]) -> dict[str, pa.DataType]:
    """Return the columns that folders name: whole numbers where all values are, else text."""
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
    """Return a batch with all columns, in one order: those that the file lacks have the folders' values, or null."""
    schema = batch.schema
    if schema.names == list(types) and schema.types == list(types.values()):
        return batch
    arrays = dict(zip(schema.names, batch.columns, strict=True))

    def column(name: str, kind: pa.DataType) -> Any:
        if name in arrays:
            return as_type(arrays[name], kind)
        if (value := folders.get(name)) is None:
            return pa.nulls(batch.num_rows, kind)
        return pa.repeat(pa.scalar(value).cast(kind), batch.num_rows)

    return pa.RecordBatch.from_arrays([column(*each) for each in types.items()], names=list(types))


def _group(file: Any, group: int, names: list[str]) -> Iterator[Any]:
    info = file.metadata.row_group(group)
    if info.num_rows == 0:
        return
    if info.total_byte_size <= GROUP_BYTES:
        yield from file.read_row_group(group, columns=names, use_threads=True).to_batches()
        return
    rows = max(1, min(ROWS, batch_bytes(len(names), 4 * BYTES) * info.num_rows // info.total_byte_size))
    yield from file.iter_batches(rows, row_groups=[group], columns=names, use_threads=True)


@contextmanager
def _opened(path: str, dictionaries: Collection[str] = ()) -> Iterator[Any]:
    """Opens a Parquet file; errors while it is read become a DataError."""
    with reading(path, "Parquet"), opened(path) as stream:
        metadata = pq.read_metadata(stream) if dictionaries else None
        fields = {} if metadata is None else _fields(metadata.schema.to_arrow_schema())
        with pq.ParquetFile(
            stream,
            metadata=metadata,
            read_dictionary=[name for name in dictionaries if name in fields and is_text(fields[name][0].type)] or None,
            memory_map=isinstance(stream, str),
            page_checksum_verification=True,
        ) as file:
            yield file


def _footer(path: str) -> bytes:
    """Return the serialized metadata at the end of a Parquet file, which ends with its length and "PAR1"."""
    with reading(path, "Parquet"), opened(path) as path_or_stream:
        stream = Path(path_or_stream).open("rb") if isinstance(path_or_stream, str) else path_or_stream  # noqa: SIM115
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
