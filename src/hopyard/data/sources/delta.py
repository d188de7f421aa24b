"""Delta tables at one version, which never changes: file by file, in the order of their paths, without deleted rows.

The library names the files of a version and their deletion vectors. Its own scan gives rows in any order, and its data
set of PyArrow refuses deletion vectors, so PyArrow reads the files here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from blake3 import blake3

from hopyard.checks import path, whole
from hopyard.data.manifest import SourceInfo
from hopyard.data.sources import Piece
from hopyard.data.sources.memory import ROWS
from hopyard.data.sources.paths import read_ahead
from hopyard.errors import DataError, SpecError, UsageError
from hopyard.filesystems import absolute, line_of
from hopyard.formats.arrow import Array, plain_batch, plain_schema
from hopyard.text import shown

_FEATURES = {
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantType",
    "variantType-preview",
}
"""Features of tables whose files can be read as they lie, once deleted rows are left out."""


class DeltaVersion:
    """One version of a Delta table. A pickle has its path, version and identity, and opens the table anew.

    Args:
        table: its path or URL, or a `deltalake.DeltaTable`.
        version: None: the newest, or that of the DeltaTable.
        identity: of the rows, where they were identified before.

    Raises:
        SpecError, DataError, UsageError: a value is not allowed; the version cannot be opened, or has features that
            cannot be read; `deltalake` is not installed.
    """

    volatile: ClassVar[bool] = False

    def __init__(self, table: Any, version: int | None = None, identity: str | None = None) -> None:
        self._identity = identity
        self._files: list[SourceInfo] = []
        self._table: Any = None
        self._storage_options: dict[str, str] | None = None
        if isinstance(table, (str, os.PathLike)):
            self._url = absolute(path("table", table, "a path, a URL or a deltalake.DeltaTable"))
            self.version = version if version is None else whole("version", version, 0)
        elif type(table).__module__.startswith("deltalake."):
            self._url, self.version = str(table.table_uri), int(table.version())  # itself, it may go to another one
            path("the DeltaTable's table_uri", self._url)
            self._storage_options = getattr(table, "_storage_options", None)
            if version not in (None, self.version):
                raise SpecError(
                    f"version = {version!r}, but the DeltaTable is at version {self.version}: leave version= out, or "
                    "give the path of the table"
                )
        else:
            raise SpecError(f"table must be a path, a URL or a deltalake.DeltaTable, got {shown(table)}")
        if identity is None:
            opened = self._opened()
            self.version = int(opened.version())
            self._check(opened)
            self.schema = plain_schema(pa.schema(opened.schema().to_arrow()))

    def __repr__(self) -> str:
        return f"{'the newest version' if self.version is None else f'version {self.version}'} of {self._url}"

    def identity(self) -> str:
        """BLAKE3 of the table's id, the version, its schema and its files. A copy of a table has its id too, and other
        files once both were written to."""
        if self._identity is None:
            self._identity = self._identity_of(self._opened())
        return self._identity

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """Batches of each file in turn."""
        self._files = []
        return read_ahead(self._read(names))

    def provenance(self) -> list[SourceInfo]:
        """Each file, with the rows that it has left."""
        return self._files

    def detached(self, identity: str | None) -> DeltaVersion:
        """The version, to be opened anew."""
        return DeltaVersion(self._url, self.version, identity or self.identity())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None, "_storage_options": None}  # they may have credentials

    def _opened(self) -> Any:
        """Return the table at this version."""
        if self._table is not None:
            return self._table
        try:
            from deltalake import DeltaTable
        except ImportError as error:
            raise UsageError(f"Delta tables need deltalake: pip install 'hopyard[delta]' ({error})") from None
        with self._reading("opened"):
            table = DeltaTable(self._url, version=self.version, storage_options=self._storage_options)
        if self._identity is not None and (now := self._identity_of(table)) != self._identity:
            raise DataError(
                f"{self!r} is another table than the one that was prepared (identity {now[:8]}, then "
                f"{self._identity[:8]}): it was made anew; make the Dataset again, for a new run"
            )
        self._table = table
        return table

    def _identity_of(self, table: Any) -> str:
        hasher = blake3(f"{table.metadata().id}\0{table.version()}\0{table.schema().to_json()}".encode())
        with self._reading("opened"):
            actions = pa.table(table.get_add_actions())
            for file, size in sorted(zip(*(actions[name].to_pylist() for name in ("path", "size_bytes")), strict=True)):
                hasher.update(f"\0{file}\0{size}".encode())
            for file, kept in sorted(_kept_rows(table).items(), key=lambda each: each[0]):
                hasher.update(f"\0{file}\0".encode() + kept.tobytes())
        return hasher.hexdigest()

    def _read(self, names: list[str] | None) -> Iterator[Piece]:
        import pyarrow.dataset as ds
        import pyarrow.fs
        from deltalake.fs import DeltaStorageHandler

        table = self._opened()
        schema = pa.schema(table.schema().to_arrow())
        columns = schema.names if names is None else [name for name in schema.names if name in names]
        files = pyarrow.fs.PyFileSystem(DeltaStorageHandler(table.table_uri, self._storage_options))
        form = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        )
        with self._reading("read"):
            actions = pa.table(table.get_add_actions()).sort_by("path").to_pylist()
            kept_rows = _kept_rows(table)
        if unknown := kept_rows.keys() - {action["path"] for action in actions}:
            raise DataError(f"{self!r} has a deletion vector for {min(unknown)}, which is none of its files")
        for action in actions:
            name = unquote(action["path"])
            fragment = form.make_fragment(name, files, _values(schema, action.get("partition", {})))
            kept, first, left = kept_rows.get(action["path"], np.ones(0, np.bool_)), 0, 0
            with self._reading("read"):
                for batch in fragment.to_batches(schema=schema, columns=columns, batch_size=ROWS):
                    rows, mask = batch.num_rows, kept[first : first + batch.num_rows]
                    if not mask.all():  # of the rows behind the last deleted one it says nothing
                        batch = batch.filter(pa.array(np.pad(mask, (0, rows - len(mask)), constant_values=True)))  # noqa: PLW2901
                    yield plain_batch(batch), f"{self._url}, file {name}", first
                    first += rows
                    left += batch.num_rows
            if len(kept) > first:
                raise DataError(f"{self!r}: the deletion vector of {name} has {len(kept)} rows, and the file {first}")
            self._files.append(SourceInfo(name, -1, left))

    def _check(self, table: Any) -> None:
        """Raise DataError where the files of a table cannot be read as they lie."""
        unknown = set(table.protocol().reader_features or ()) - _FEATURES
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            unknown.add("columnMapping")
        if unknown:
            raise DataError(
                f"{self!r} has the features {', '.join(sorted(unknown))}, which cannot be read file by file; give "
                f"Dataset.arrow(deltalake.DeltaTable(…, version={self.version}).scan(), key=…), whose rows come in any "
                "order"
            )

    @contextmanager
    def _reading(self, done: str) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except FileNotFoundError as error:
            raise DataError(
                f"{self!r} lacks a file, which VACUUM removed for example: {line_of(error)}; give a newer version=, or "
                "restore the file"
            ) from error
        except Exception as error:
            raise DataError(
                f"{self!r} cannot be {done}: {line_of(error)}; give the path of a Delta table, and a version= of it"
            ) from error


def _values(schema: pa.Schema, values: Mapping[str, Any]) -> Any:
    """Return the values of a file's partition columns as PyArrow's expression; None: there are none."""
    import pyarrow.compute as pc

    expression = None
    for name, value in values.items():
        column = pc.field(name)
        equal = column.is_null() if value is None else column == pa.scalar(value, schema.field(name).type)
        expression = equal if expression is None else expression & equal
    return expression


def _kept_rows(table: Any) -> dict[str, Array]:
    """Return file → boolean array of its rows, of files of which rows were deleted: whether a row is left."""
    kept = {}
    folder = f"{table.table_uri.rstrip('/')}/"
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for url, rows in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
            kept[url.removeprefix(folder)] = np.asarray(rows.values.to_numpy(zero_copy_only=False))
    return kept
