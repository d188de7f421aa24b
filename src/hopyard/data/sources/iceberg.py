"""Iceberg tables at one snapshot, which never changes: file by file, in the order of paths, without deleted rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from hopyard.checks import path, whole
from hopyard.data.manifest import SourceInfo
from hopyard.data.sources import Piece
from hopyard.data.sources.paths import read_ahead
from hopyard.errors import DataError, SpecError, UsageError
from hopyard.filesystems import absolute, line_of
from hopyard.formats.arrow import plain_batch, plain_schema
from hopyard.text import shown


class IcebergSnapshot:
    """One snapshot of an Iceberg table. A pickle has the location of the table's metadata, and opens the table anew.

    Args:
        table: a `pyiceberg` table, "catalog.namespace.table", or the path or URL of a metadata file: a `pathlib.Path`,
            or text with a "/" in it or ".metadata.json" at its end.
        snapshot: its id; None: the newest, with the columns that the table has now.

    Raises:
        SpecError, DataError, UsageError: a value is not allowed; table or snapshot cannot be opened; `pyiceberg` is not
            installed.
    """

    volatile: ClassVar[bool] = False

    def __init__(self, table: Any, snapshot: int | None = None) -> None:
        self._files: list[SourceInfo] = []
        self._name = table if isinstance(table, str) else ""
        with self._reading("opened"):
            self._table: Any = _opened(table)
            self._name = self._name or ".".join(self._table.name())
            self._metadata_location = str(self._table.metadata_location)
            path("the table's metadata_location", self._metadata_location)
            metadata = self._table.metadata
            self._uuid = str(metadata.table_uuid)
            current = metadata.current_snapshot()
            chosen = current if snapshot is None else metadata.snapshot_by_id(whole("snapshot", snapshot))
            if chosen is None:
                known = (
                    ", ".join(str(each.snapshot_id) for each in metadata.snapshots[-5:]) or "none, as it has no rows"
                )
                raise DataError(f"the Iceberg table {self._name} has no snapshot {snapshot}; the last are {known}")
            self.snapshot = int(chosen.snapshot_id)
            renamed_since = snapshot is not None and chosen.schema_id is not None
            self._schema_id = int(chosen.schema_id if renamed_since else metadata.current_schema_id)
            self.schema = plain_schema(self._table.schemas()[self._schema_id].as_arrow())

    def __repr__(self) -> str:
        return f"snapshot {self.snapshot} of the Iceberg table {self._name}"

    def identity(self) -> str:
        """The table's UUID, the snapshot and its schema."""
        return f"iceberg {self._uuid} {self.snapshot} {self._schema_id}"

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """Batches of each file in turn."""
        self._files = []
        return read_ahead(self._read(names))

    def provenance(self) -> list[SourceInfo]:
        """Each file, with the rows that it has left."""
        return self._files

    def detached(self, identity: str | None) -> IcebergSnapshot:
        """Itself: a pickle has no rows."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}  # it has a catalog, which may have credentials

    def _read(self, names: list[str] | None) -> Iterator[Piece]:
        with self._reading("read"):
            if self._table is None:
                self._table = _opened(self._metadata_location)
                if (uuid := str(self._table.metadata.table_uuid)) != self._uuid:
                    raise DataError(
                        f"{self._metadata_location} is of the table {uuid}, and was of {self._uuid}: it was made anew; "
                        "make the Dataset again, for a new run"
                    )
            from pyiceberg.expressions import AlwaysTrue
            from pyiceberg.io.pyarrow import ArrowScan

            table = self._table
            schema = table.schemas()[self._schema_id]
            if names is not None:
                schema = schema.select(*[field.name for field in schema.fields if field.name in names])
            tasks = sorted(
                table.scan(snapshot_id=self.snapshot).plan_files(), key=lambda task: str(task.file.file_path)
            )
            scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
            for task in tasks:
                file, row = str(task.file.file_path), 0
                for batch in scan.to_record_batches([task]):  # of all tasks at once, it would run ahead without limit
                    yield plain_batch(batch), file, row
                    row += batch.num_rows
                self._files.append(SourceInfo(file, -1, row))

    @contextmanager
    def _reading(self, done: str) -> Iterator[None]:
        name = self._name or "that was given"
        try:
            yield
        except (DataError, SpecError, UsageError):
            raise
        except FileNotFoundError as error:
            raise DataError(
                f"the Iceberg table {name} cannot be {done}: a file is not there: {line_of(error)}; where its snapshot "
                "expired and its files were removed, give a newer snapshot="
            ) from error
        except Exception as error:
            raise DataError(f"the Iceberg table {name} cannot be {done}: {line_of(error)}") from error


def _opened(table: Any) -> Any:
    """Return the pyiceberg table that the user names, or gives."""
    if hasattr(table, "metadata_location") and hasattr(table, "scan"):
        return table
    if not isinstance(table, (str, os.PathLike)):
        raise SpecError(
            'table must be a pyiceberg table, "catalog.namespace.table", or the path of its metadata file, got '
            f"{shown(table)}"
        )
    text = path("table", table, "a pyiceberg table, its name or the path of its metadata file")
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise UsageError(f"Iceberg tables need pyiceberg: pip install 'hopyard[iceberg]' ({error})") from None
    if isinstance(table, os.PathLike) or "/" in text or text.endswith(".metadata.json"):
        return StaticTable.from_metadata(absolute(text))
    catalog, _, name = text.partition(".")
    if not name:
        raise SpecError(f'table = {shown(text)}: must be "catalog.namespace.table", or the path of a metadata file')
    return load_catalog(catalog).load_table(name)
