"""DataFrames to TFRecord files and back, in the executors, through Arrow: no Hadoop jar, no RDD, no TensorFlow.

Tasks write under temporary names, in a hidden folder; the driver gives their own to the files of those tasks whose
result counted.
"""

from __future__ import annotations

import os
import posixpath
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import pyarrow as pa

from hopyard import checks, filesystems
from hopyard.data.shared.storage import TaskFile, reaching
from hopyard.data.sources.tfrecord import batches, find
from hopyard.errors import DataError, SpecError
from hopyard.filesystems import absolute, names_of
from hopyard.formats.arrow import doubled
from hopyard.formats.example import Seen, encode, kind_of, listed, look, merge, schema
from hopyard.formats.tfrecord import framed, records
from hopyard.sparkapi import is_stopped
from hopyard.sparkapi.dataframe import checked
from hopyard.sparkapi.tasks import report_each

ROWS = 10_000
"""Most rows of a batch that a task gives to Spark."""
TASKS = 1000
"""Most tasks of a reading job; beyond that a task reads several files, one after another."""

_PROBE = "probe"
"""A file that the driver makes first: a task that does not see it writes nothing."""
_HIDDEN = "_temporary-"


class _Report(msgspec.Struct, frozen=True):
    """What a task reports to the driver."""

    number: int
    """Number of its partition."""
    name: str = ""
    """Name of the file that it wrote."""
    rows: int = 0
    seen: dict[str, Seen] = {}


def save_tfrecords(df: Any, path: str | os.PathLike[str], *, mode: Literal["error", "overwrite"] = "error") -> None:
    """Writes a DataFrame as TFRecord files of tf.train.Example: part-r-00000, …, one for each of its partitions.

    Whole numbers and booleans become int64 lists; float and double become float lists, whose values have 32 bits: a
    double keeps about 7 digits, and beyond 3.4e38 it becomes infinite; text (as UTF-8) and binary become bytes lists;
    arrays of these become lists of their length. A null is a feature without a value, which TensorFlow takes for one
    that is missing. Files get their names when all are written, at last _SUCCESS.

    Args:
        df: a DataFrame, classic or Connect.
        path: a directory, or its fsspec URL, that driver and executors share.
        mode: "error": the directory must be empty or not be there; "overwrite": what is in it is removed, after the
            new files were written, so `df` may come from it.

    Raises:
        SpecError: the directory has files, or executors do not see it; a value is not allowed.
        DataError: a column has a type that TFRecord lacks, or an array has a null in it; names the column.
        ResourceError: the directory has no room. In each case nothing is left behind.
    """
    checks.one_of("mode", mode, ("error", "overwrite"))
    url = absolute(checks.path("path", path, "a directory or its URL"))
    _writable(checked(df, "df"))
    target = Target(url, mode == "overwrite")
    try:
        target.make()
        reports = report_each(df, partial(_write, target.hidden), _Report)
        target.finish([(report.name, f"part-r-{report.number:05d}") for report in reports])
    finally:
        target.close()


def load_tfrecords(spark: Any, path: str | os.PathLike[str] | list[Any], binary_features: Sequence[str] = ()) -> Any:
    """The records of TFRecord files of tf.train.Example as a DataFrame; its columns are the features, sorted by name.

    One Spark job reads all records to find the columns: bigint, double (of the 32 bits that are stored), string or
    binary; an array of these if any record has other than one value. A feature that a record lacks is null there. The
    rows are read when the DataFrame is computed, a file by one task, in the order of the files' names.

    Args:
        spark: a session, classic or Connect.
        path: a directory, file or glob, their fsspec URL, or a list of these, that driver and executors share. Of
            directories and globs, what begins with "_" or "." is left out; names that end with ".gz" are decompressed.
        binary_features: features of bytes that are no text.

    Raises:
        SpecError: a value is not allowed, or names no feature of bytes.
        DataError: no file matches, or none has a record; a feature has two kinds; a file is damaged or no TFRecord
            file: names path, record and byte.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if not hasattr(spark, "createDataFrame"):
        raise SpecError(f"spark must be a SparkSession, got {type(spark).__name__}")
    if is_stopped(spark):
        raise SpecError("the Spark session was stopped; make another with SparkSession.builder.getOrCreate()")
    binary = listed(binary_features)
    paths = find(path)
    numbers = spark.range(0, len(paths), 1, min(len(paths), TASKS))
    features: dict[str, Seen] = {}
    rows = 0
    for report in report_each(numbers, partial(_look, paths), _Report):
        merge(features, report.seen)
        rows += report.rows
    if not rows:
        raise DataError(f"{names_of(paths)}: there are no records, so no columns are known")
    columns = schema(features, binary, names_of(paths))
    spark_columns = pa.schema([(field.name, doubled(field.type)) for field in columns])

    def read(record_batches: Iterator[Any]) -> Iterator[Any]:
        for file in _numbered(paths, record_batches):
            for batch in batches(file, columns, ROWS):
                yield batch.cast(spark_columns)

    return numbers.mapInArrow(read, from_arrow_schema(spark_columns))


def _numbered(paths: Sequence[str], record_batches: Iterable[Any]) -> Iterator[str]:
    """Yield the paths whose numbers a task is given."""
    for batch in record_batches:
        for number in batch.column(0).to_pylist():
            yield paths[number]


def _look(paths: Sequence[str], number: int, record_batches: Iterable[Any]) -> _Report:
    """Return the features of some files."""
    features: dict[str, Seen] = {}
    rows = sum(look(features, records(path), path) for path in _numbered(paths, record_batches))
    return _Report(number, rows=rows, seen=features)


def _write(url: str, number: int, record_batches: Iterable[Any]) -> _Report:
    """Writes all rows of a partition to one file."""
    rows = 0
    with TaskFile(url, f"{number:05d}-{secrets.token_hex(6)}", _PROBE) as file:
        file.write([])  # there is a file for a partition without rows too
        for batch in record_batches:
            try:
                file.write(map(framed, encode(batch)))
            except DataError as error:
                raise DataError(f"Spark partition {number}, rows from {rows}: {error}") from None
            rows += batch.num_rows
    return _Report(number, file.name, rows)


def _writable(df: Any) -> None:
    """Raise DataError for a column of a type that TFRecord lacks, before any row is read."""
    from pyspark.sql.pandas.types import to_arrow_type

    for field in df.schema.fields:
        try:
            kind = kind_of(to_arrow_type(field.dataType, timezone="UTC"))
        except Exception:  # noqa: BLE001 - a type that Arrow lacks too
            kind = None
        if kind is None:
            raise DataError(
                f"column {field.name!r} has type {field.dataType.simpleString()}, which TFRecord lacks; numbers, "
                f"booleans, text, binary, and arrays of these can be written: cast it (a vector: "
                f"pyspark.ml.functions.vector_to_array), or leave it out"
            )


class Target:
    """A directory at a path or URL that driver and executors share. One job writes to it, by one object of this class.

    Args:
        url: URL of the directory, which need not exist.
        overwrite: whether what is in it is removed when the new files get their names.

    Raises:
        SpecError: it is a file, or it holds something that may not be removed.
    """

    def __init__(self, url: str, overwrite: bool) -> None:
        self.url, self._overwrite = url, overwrite
        with reaching(url, "open"):
            self._system, root = filesystems.open_url(url)
            self._root = root.rstrip("/")
            self._new = not filesystems.is_there(self._system, self._root)
        self._hidden = f"{self._root}/{_HIDDEN}{secrets.token_hex(8)}"
        self._require_vacant()

    @property
    def hidden(self) -> str:
        """URL of the folder for tasks; `make` makes it."""
        return f"{self.url}/{posixpath.basename(self._hidden)}"

    def make(self) -> None:
        """Makes the hidden folder."""
        with reaching(self.url, "write to"):
            filesystems.Directory(self.hidden).make()
            self._system.pipe_file(f"{self._hidden}/{_PROBE}", b"")

    def finish(self, names: Sequence[tuple[str, str]]) -> None:
        """Gives files of the hidden folder their names: pairs of (hidden name, final name). At last makes _SUCCESS."""
        with reaching(self.url, "write to"):
            self._require_vacant()
            for entry in self._entries():
                self._system.rm(entry, recursive=True)
            for hidden, final in names:
                filesystems.rename(self._system, f"{self._hidden}/{hidden}", f"{self._root}/{final}")
            self._system.pipe_file(f"{self._root}/_SUCCESS", b"")

    def close(self) -> None:
        """Removes the hidden folder, and the directory if it is empty and was not there before."""
        with reaching(self.url, "write to"):
            self._system.invalidate_cache()
            if self._system.exists(self._hidden):
                self._system.rm(self._hidden, recursive=True)
            if self._new and self._system.exists(self._root) and not self._system.ls(self._root, detail=False):
                self._system.rmdir(self._root)

    def _require_vacant(self) -> None:
        with reaching(self.url, "read"):
            if self._system.isfile(self._root):
                raise SpecError(f"path = {self.url!r} is a file; name a directory that is empty or not there")
            names = [posixpath.basename(entry.rstrip("/")) for entry in self._entries()]
        if not self._overwrite and (names := [name for name in names if not name.startswith(_HIDDEN)]):
            raise SpecError(
                f"path = {self.url!r} holds {len(names)} files or folders, {sorted(names)[0]!r} and so on; name a "
                f'directory that is empty or not there, or remove what is in it with mode="overwrite"'
            )

    def _entries(self) -> list[str]:
        """Return all that is in the directory but the own hidden folder, never from a cache."""
        self._system.invalidate_cache()
        if not self._system.isdir(self._root):
            return []
        entries = [str(entry).rstrip("/") for entry in self._system.ls(self._root, detail=False)]
        own = posixpath.basename(self._hidden)
        return [entry for entry in entries if posixpath.basename(entry) != own and entry != self._root]
