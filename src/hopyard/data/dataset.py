"""Data sets as the user names them: rows, columns, and how they are cut. Nothing is read before `prepare`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import pyarrow as pa

from hopyard.checks import column_name, expanded, fraction, path, scalar, whole
from hopyard.data.encoding.schema import infer_fields
from hopyard.data.encoding.transform import Transform
from hopyard.data.from_spark.source import DataFrameSource, MaterializedSource, from_spark, refuse
from hopyard.data.keywords import CACHE_BYTES, takes
from hopyard.data.manifest import Column, Manifest
from hopyard.data.options import Assign, BuildOptions, columns, ragged_columns
from hopyard.data.partitions.cache import default_root
from hopyard.data.partitions.prepare import InputRows, LocalRows
from hopyard.data.sources import Source, parquet, tfrecord
from hopyard.data.sources.delta import DeltaVersion
from hopyard.data.sources.iceberg import IcebergSnapshot
from hopyard.data.sources.memory import Arrays, Table
from hopyard.data.sources.of import from_arrow, from_items, from_numpy, from_pandas, is_pandas, refuse_text
from hopyard.errors import SpecError
from hopyard.filesystems import absolute
from hopyard.formats.arrow import plain_schema
from hopyard.sparkapi.dataframe import checked, is_frame
from hopyard.text import html_table, shown


class SplitOptions(TypedDict, total=False):
    """Keywords of every constructor. `data.keywords` has their defaults, and says what they mean."""

    partitions: int
    standardize: bool | list[str]
    transform: Transform | None
    seed: int
    cache_bytes: int


class ArrayOptions(SplitOptions, total=False):
    """Keywords for rows that this process reads."""

    validation: float | str | Dataset
    assign: Assign


class ColumnOptions(TypedDict, total=False):
    """Keywords for rows whose columns have names."""

    label: Any
    weight: str | None
    key: str | list[str] | None
    encode: Mapping[str, Any] | None
    impute: Mapping[str, Any] | None
    ragged: str | Sequence[str] | Mapping[str, str | None] | None
    max_length: int | None


class ItemOptions(ArrayOptions, ColumnOptions):
    """Keywords for items, which may have names or not."""


class TableOptions(ItemOptions):
    """Keywords for files and tables."""

    features: Any


class FrameOptions(SplitOptions, ColumnOptions):
    """Keywords for DataFrames of Spark."""

    features: Any


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows for training and validation, cut once into partitions. Make it with one of the class methods.

    Which row goes where depends on (seed, row number) alone: a keyed hash of (seed, n) picks the validation rows, n
    counting rows after the transform; of what remains, the j-th row goes to partition j mod P. Partitions differ by at
    most one row. With key=, and always for a Spark DataFrame, whose rows have no number, a row's name is used
    instead: a keyed hash of its key, or of its features, after the transform. It picks the validation rows and the
    partition, and orders the rows, so neither files nor the order of rows matter, and partitions differ as independent
    draws do. Rows of equal keys, or of equal features, go together; but where a DataFrame has at most 1024 different
    rows, copies of wholly equal ones are drawn one by one, and where it has few groups of equal features with many
    labels each, all of a row draws it. Without key=, another choice of features is another split.

    Rows in memory are not copied: they are those of the first run, or `prepare`; leave them as they are once given.

    A pickle of it is small: files are pickled as paths; rows in memory are not, and the copy finds them in the cache.

    Example:
        >>> import pandas as pd, hopyard as hy
        >>> table = pd.DataFrame({"age": [31.0, None, 58.0], "city": ["Ulm", "Bern", "Ulm"], "left": [0, 1, 0]})
        >>> data = hy.Dataset.pandas(table, features=["age", "city"], label="left", partitions=1,
        ...                          encode={"city": "one-hot"}, impute={"age": "mean"})
        >>> data.prepare().rows
        3
    """

    rows: LocalRows | DataFrameSource | MaterializedSource
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache_bytes", whole("cache_bytes", self.cache_bytes, 0))

    @classmethod
    @takes(ArrayOptions)
    def numpy(
        cls, x: Any, y: Any = None, *, weight: Any = None, key: Any = None, **options: Unpack[ArrayOptions]
    ) -> Dataset:
        """Arrays in memory. A transform sees columns "inputs", "targets", "weight", "key" or the dicts' names;
        "targets.name" or "weight.weight" where an input has that name.

        Args:
            x: array of shape (rows, …), or a dict of named arrays. float64 becomes float32, other types stay.
            y: array, dict or None. Whole numbers become int64, others float32.
            weight: array of shape (rows,), or None.
            key: array of shape (rows,), or None: rows of one key go to validation together, and to one partition.

        Raises:
            SpecError, DataError: a value, a shape or a length is not allowed.
        """
        arrays, inputs, targets, weights, keys = from_numpy(x, y, weight, key)
        source = Arrays(arrays, "arrays in memory")
        if options["transform"] is None:
            refuse_text(source.schema, [] if key is None else [keys])
        return cls._of(source, source.schema, features=inputs, label=targets, weight=weights, key=keys, **options)

    @classmethod
    @takes(TableOptions)
    def parquet(cls, source: str | os.PathLike[str] | list[Any], **options: Unpack[TableOptions]) -> Dataset:
        """Parquet files. All together are one table: folders below a directory or behind a wildcard that name a column,
        such as `year=2013/` (what `df.write.partitionBy` makes), give it, as whole numbers or as text. Where there is a
        transform, columns that some of the files lack are null there; without one, each file needs what is read. A
        column that is null throughout a file has the type that it has in the others.

        Args:
            source: a path, glob, directory or fsspec URL, or a list of these. In directories and globs, names that
                begin with "_" or "." are left out.

        Raises:
            SpecError, DataError: a value is not allowed, no file matches, or a column is not there.
        """
        files = parquet.ParquetFiles(parquet.find(source))
        schema = files.schema()
        if options["transform"] is None:
            schema = files.typed(schema, _own_options(options, schema.names).spec.names)
        return cls._of(files, schema, **options)

    @classmethod
    @takes(TableOptions)
    def tfrecord(
        cls,
        source: str | os.PathLike[str] | list[Any],
        *,
        binary_features: Sequence[str] = (),
        **options: Unpack[TableOptions],
    ) -> Dataset:
        """TFRecord files of tf.train.Example; they are read twice when the cache is made, first to find the columns.

        A feature is a column of int64, float32 or text, or of lists of these if any record has other than one value;
        one that a record lacks is null there. Names that end with ".gz" are decompressed.

        Args:
            source: a path, glob, directory or fsspec URL, or a list of these. In directories and globs, names that
                begin with "_" or "." are left out.
            binary_features: features of bytes that are not text.

        Raises:
            SpecError, DataError: a value is not allowed, or no file matches. A file that is damaged or no TFRecord
                file, and a column that is not there, are found by `prepare`.
        """
        return cls._of(tfrecord.TFRecordFiles(tfrecord.find(source), binary_features), None, **options)

    @classmethod
    @takes(TableOptions)
    def arrow(cls, source: Any, **options: Unpack[TableOptions]) -> Dataset:
        """Anything that speaks Arrow (`__arrow_c_stream__`). Equal rows are equal data, whatever library holds them:
        views, large text and dictionaries are text. A transform is given text, or a dictionary.

        Args:
            source: a table or data frame (PyArrow, Polars, pandas); a query or data set (DuckDB, Ibis, Daft,
                `pyarrow.dataset`); a reader or an iterable of batches, which is read once. Only tables and frames
                are in memory as a whole. A query that is run again must give the same rows in the same order.

        Raises:
            SpecError, DataError: a value is not allowed; it cannot be read as Arrow.
        """
        if is_pandas(source):
            return cls.pandas(source, **options)
        return cls._of(*from_arrow(source, options["transform"] is None), **options)

    @classmethod
    @takes(TableOptions)
    def delta(cls, table: Any, *, version: int | None = None, **options: Unpack[TableOptions]) -> Dataset:
        """A Delta table at one version, by the package `deltalake` (extra `delta`).

        Args:
            table: a path or URL, or a `deltalake.DeltaTable`, whose `storage_options` stay in this process.
            version: default: the newest, or that of the DeltaTable. `hy.resume` keeps the version of the run.

        Raises:
            SpecError, DataError, UsageError: a value is not allowed; there is no such table or version, or it has
                features that are not read, such as column mapping; a column is not there; the package is missing.
        """
        source = DeltaVersion(table, version)
        return cls._of(source, source.schema, **options)

    @classmethod
    @takes(TableOptions)
    def iceberg(cls, table: Any, *, snapshot: int | None = None, **options: Unpack[TableOptions]) -> Dataset:
        """An Iceberg table at one snapshot, by the package `pyiceberg` (extra `iceberg`).

        Args:
            table: a table of `pyiceberg`, "catalog.namespace.table" with a catalog of its configuration, or the path or
                URL of a metadata file. Credentials of a catalog stay in this process.
            snapshot: the id. Default: the newest, with the columns that the table has now. `hy.resume` keeps the
                snapshot of the run.

        Raises:
            SpecError, DataError, UsageError: a value is not allowed; there is no such table or snapshot; a column is
                not there; the package is missing.
        """
        source = IcebergSnapshot(table, snapshot)
        return cls._of(source, source.schema, **options)

    @classmethod
    @takes(TableOptions)
    def pandas(cls, frame: Any, **options: Unpack[TableOptions]) -> Dataset:
        """Rows from pandas.

        Args:
            frame: a DataFrame; its index is not used. Columns that nothing names may hold anything, where there is no
                transform=.
        """
        build = _own_options(options, [str(name) for name in getattr(frame, "columns", ())])
        table = from_pandas(frame, build.spec.names if options["transform"] is None else None)
        source = Table(table, "data frame in memory", options["transform"] is None)
        return cls._of(source, table.schema, **options)

    @classmethod
    @takes(ItemOptions)
    def torch(cls, items: Any, *, features: Any = None, **options: Unpack[ItemOptions]) -> Dataset:
        """Any map-style data set (`len(it)`, `it[i]`), read once: what it does at random is then done once as well.

        Args:
            items: each item is x, (x, y) or (x, y, weight), where x and y are tensors, arrays, numbers or dicts;
                or a dict of columns, which `features`, `label` and `weight` then name.
            features: as of the other constructors, where the items are dicts.
        """
        lists = ragged_columns(options["ragged"])
        source, features, label, weight = from_items(items, features, options["label"], options["weight"], lists)
        options.update({"label": label, "weight": weight})
        return cls._of(source, None, features=features, **options)

    @classmethod
    @takes(FrameOptions)
    def spark(
        cls,
        df: Any,
        *,
        validation: Any = 0.0,
        path: str | os.PathLike[str] | None = None,
        name: str | None = None,
        **options: Unpack[FrameOptions],
    ) -> Dataset:
        """A Spark DataFrame, of a classic session or Spark Connect; its rows never pass through the driver.

        `prepare` runs one job that writes all partitions once, to a folder in `path` (`.url`); each host then fetches
        the partitions that it works on. Another job comes first where `encode` lists no values, and one more where few
        rows are different. Rows go by their names (see the class): the number of executors, Spark's partitions, files
        and the order of rows do not matter.

        Args:
            df: columns of numbers, booleans, text (with encode=), arrays of one length (of any, with ragged=), and
                `ml.linalg` vectors, which are lists of numbers here. Anything else, such as binary files and images,
                by transform=, which is given all columns and runs in the executors.
            validation: a fraction, the name of a column of true and false, or a second DataFrame.
            path: a path or fsspec URL that driver and executors share. Default: the user's cache directory, for
                sessions whose executors run on this host.
            name: "flights-v1" for example: what was written under this name in `path` is found again, by any session,
                and no job runs. You vouch that the rows behind a name are the same: give changed rows another name.
                With other arguments, an edited transform too, the same name stands for one more folder; a DataFrame
                whose columns that are read have other types is refused. None: written anew for each Dataset.

        Raises:
            SpecError, DataError: a value is not allowed, a column is not there; the session was stopped.
        """
        frames = [checked(df, "df"), *([checked(validation, "validation")] if is_frame(validation) else [])]
        validation = _column_or_share(validation, lambda: df.columns)
        build = _build_options(options, validation, "a DataFrame", second=len(frames) > 1, assign="round_robin")
        source = from_spark(frames, build, options["transform"], path=path, name=name, cache=str(default_root()))
        return cls(source, options["cache_bytes"])

    @classmethod
    def open(cls, url: str | os.PathLike[str], *, cache_bytes: int = CACHE_BYTES) -> Dataset:
        """Opens what Dataset.spark wrote, from any process that can read it.

        Args:
            url: its `.url`: a path or fsspec URL, the same for all hosts.
            cache_bytes: the cache evicts what was used longest ago beyond this.

        Raises:
            DataError: there is no data set.
        """
        source = MaterializedSource(absolute(path("url", url, "a path or URL")))
        source.prepare(whole("cache_bytes", cache_bytes, 0))
        return cls(source, cache_bytes)

    @classmethod
    @takes(TableOptions)
    def _of(cls, source: Source, schema: pa.Schema | None, **options: Unpack[TableOptions]) -> Dataset:
        """Return a Dataset of rows that this process reads. `schema`: that before any transform, if it is known."""
        build = _own_options(options, [] if schema is None else schema.names)
        validation = options["validation"]
        second = _validating(validation.rows, build) if isinstance(validation, Dataset) else None
        fields = []
        if schema is not None and options["transform"] is None:
            plain = plain_schema(schema)
            empty = pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in plain.types], schema=plain)
            fields = infer_fields(empty, build.spec, repr(source))
        types = {column.name: _type_of(column) for field in fields for column in field.columns}
        rows = InputRows(source, options["transform"], types)
        return cls(LocalRows(rows, build, second), options["cache_bytes"])

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: each column with its use and encoding. Reads no row."""
        rows = self.rows
        if isinstance(rows, MaterializedSource):
            return html_table(f"Dataset at {rows.url}", [["prepare() gives its columns"]])
        what, types = (rows.source, rows.rows.types) if isinstance(rows, LocalRows) else (rows, rows.columns[0])
        options, spec = rows.options, rows.options.spec
        lines = [
            [name, use, types.get(name, ""), "" if use == "key" else spec.treatment(name)]
            for use, names in spec.uses
            for name in names
        ]
        more = [[f"… and {len(lines) - COLUMNS_SHOWN} more", "", "", ""]] if len(lines) > COLUMNS_SHOWN else []
        share = f" of {options.fraction:g} of the rows" if options.fraction else ""
        title = f"Dataset of {what!r}, partitions={options.partitions}, "
        title += f"with validation{share}" if options.validates else "without validation"
        return html_table(title, [["column", "use", "type", "encoding"], *lines[:COLUMNS_SHOWN], *more])

    @property
    def transform(self) -> Transform | None:
        """The user's transform, if any."""
        return self.rows.transform

    @property
    def url(self) -> str | None:
        """The path or URL where a data set of Dataset.spark or Dataset.open is, or will be."""
        return self.rows.url

    def prepare(self, cache: Path | str | None = None) -> Manifest:
        """Makes the partitions, or finds them in the cache; the entry stays for as long as the Manifest object lives.

        Args:
            cache: directory on a local disk; default: the user's cache directory.

        Raises:
            DataError: the rows cannot be used; names the column, how many, the first row and its source.
            ResourceError: the disk is full, or the directory cannot be written; nothing is left behind.
        """
        root = None if cache is None else expanded(path("cache", cache))
        return self.rows.prepare(self.cache_bytes, root)

    def __copy__(self) -> Dataset:
        return self

    def __deepcopy__(self, memo: Any) -> Dataset:
        """Return itself: nothing in it changes, and a copy by pickle would lose rows in memory."""
        return self


COLUMNS_SHOWN = 30
"""The most columns that a notebook shows."""
_COLUMNS = ("features", "label", "weight", "encode", "standardize", "key", "impute", "ragged", "max_length")
"""The keywords that name columns."""


def _validating(rows: LocalRows | DataFrameSource | MaterializedSource, first: BuildOptions) -> InputRows:
    """Return rows as validation rows of a data set with the options `first`. Raise SpecError unless they can be."""
    if not isinstance(rows, LocalRows):
        refuse(rows.url)
    for name in ("inputs", "targets", "weight", "encode", "key", "impute", "ragged", "max_length"):
        mine, theirs = (getattr(spec, name) or None for spec in (first.spec, rows.options.spec))
        if mine != theirs:
            raise SpecError(f"validation= is a Dataset with other columns: {name} {theirs!r}, here {mine!r}")
    if rows.options.validates:
        raise SpecError("validation= is a Dataset that has a validation= itself; leave that out")
    return rows.rows


def _type_of(column: Column) -> str:
    """Return the type of a column's values, and the shape of a row that has several, for a reader."""
    arrow, _, dtype = column.type.rpartition(":")
    shape = f" {list(column.shape)}" if column.shape and 0 not in column.shape else ""
    return f"{arrow if column.encode else dtype}{shape}"


def _own_options(options: TableOptions, names: Sequence[str]) -> BuildOptions:
    """Return the options of rows that this process reads; `names`: their columns, as far as they are known."""
    second = isinstance(options["validation"], Dataset)
    validation = _column_or_share(options["validation"], lambda: names)
    return _build_options(options, validation, "a Dataset", second=second, assign=options["assign"])


def _column_or_share(validation: Any, names: Callable[[], Sequence[str]]) -> Any:
    """Return `validation=` with an integer other than 0 as text, where a column has that name; 0 is the fraction."""
    number = scalar(validation)
    if not isinstance(number, int) or isinstance(number, bool) or not number:
        return validation
    name = column_name(number)
    return name if name in names() else validation


def _build_options(
    options: TableOptions | FrameOptions,
    validation: Any,
    alternative: str,
    *,
    second: bool,
    assign: Assign,
) -> BuildOptions:
    """Return the options of the keywords; `second`: whether `validation` is `alternative`, a source of its own."""
    if (transform := options["transform"]) is not None and not callable(transform):
        raise SpecError(f"transform must be a function of a record batch, or None, got {shown(transform)}")
    validation = validation if second else scalar(validation)
    column = validation if isinstance(validation, str) else None
    share = 0.0
    if column is None and not second:
        share = fraction("validation", validation, f"the name of a column of true and false, or {alternative}")
    named: Mapping[str, Any] = {name: options[name] for name in _COLUMNS}  # type: ignore[literal-required]
    spec = columns(**named, validation=column)
    validates = bool(share) or column is not None or second
    return BuildOptions(spec, options["partitions"], assign, validates, share, options["seed"])
