"""Applies any function of arrays to the blocks of a DataFrame: it gets columns as NumPy arrays and returns columns.

Source: Databricks TensorFrames, `map_blocks`, 2016. We differ: the program is a plain function, the blocks are the
record batches of Arrow, and the schema of its result is found by trying it on a few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
import pyarrow as pa

from hopyard.checks import column_names, flag, no_such
from hopyard.driver.pickling import dump
from hopyard.errors import DataError, SpecError
from hopyard.formats.arrow import Array
from hopyard.formats.vectors import column_to_numpy
from hopyard.spark.inference.arrays import LazyColumns, to_column
from hopyard.sparkapi.dataframe import alive, mapped, new_columns, quoted, require_unique, struct_type
from hopyard.sparkapi.tasks import partition
from hopyard.text import shown

SAMPLE_ROWS = 8
"""Rows on which a function is tried to find the schema of its result."""

Function = Callable[[Any], Mapping[str, Any]]
"""From a dict of arrays to a dict of arrays; whichever way `fn` writes its argument's type."""


@dataclass(frozen=True, slots=True)
class BlockFunction:
    """A function, as executors apply it to each block."""

    code: bytes
    """The function's pickle, with modules of the user by value, as for recipes: executors have no copy of them."""
    columns: tuple[str, ...]
    """Columns that the function gets."""
    lazy: bool
    """Whether it gets each of them only when it asks for it."""
    keep: bool
    types: dict[str, Any] | None
    """Name → Arrow type of the function's columns, in the order of the schema; None: as they come."""

    def apply(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the result for each block of one Spark partition."""
        fn = cloudpickle.loads(self.code)
        for number, batch in enumerate(batches):
            if batch.num_rows:
                try:
                    yield self._apply_to_block(fn, batch)
                except DataError as error:
                    raise DataError(f"map_batches, Spark partition {partition()}, block {number}: {error}") from None

    def _apply_to_block(self, fn: Function, batch: Any) -> Any:
        makers = {name: partial(_array, batch, name) for name in self.columns}
        block = LazyColumns(makers) if self.lazy else {name: make() for name, make in makers.items()}
        try:
            result = fn(block)
        except KeyError as error:
            if error.args[:1] and str(error.args[0]) not in makers:
                error.add_note(f"map_batches: the function gets the columns {', '.join(map(repr, makers))}")
            raise
        if not isinstance(result, Mapping) or not result:
            raise DataError(f"the function must give a dict from column to array, gave {type(result).__name__}")
        arrays = {str(name): to_column(values, str(name)) for name, values in result.items()}
        if self.types is not None:
            arrays = _cast_to_schema(arrays, self.types)
        rows = {name: len(array) for name, array in arrays.items()}
        if len(set(rows.values())) > 1 or (self.keep and set(rows.values()) != {batch.num_rows}):
            raise DataError(
                f"the function gave columns of these lengths: {rows}; "
                + (f"with keep=True all need {batch.num_rows}" if self.keep else "all need one length")
            )
        if not self.keep:
            return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        schema = batch.schema
        for name, array in arrays.items():
            if name.lower() in map(str.lower, schema.names):  # Spark does not tell apart what differs by case alone
                raise DataError(f"the function gave a column {name!r}, which is there already; give it another name")
            schema = schema.append(pa.field(name, array.type))
        return pa.RecordBatch.from_arrays([*batch.columns, *arrays.values()], schema=schema)


def map_batches(
    fn: Function, df: Any, schema: Any = None, *, columns: Sequence[str] | None = None, keep: bool = False
) -> Any:
    """Applies a function of arrays to the blocks of a DataFrame; a lazy transformation.

    Args:
        fn: gets a dict from column to NumPy array of shape (rows, …): numbers and booleans (rows,), array columns
            (rows, n, …) (all rows need one length), vectors of pyspark.ml (rows, n), decimals float64 (cast them to
            string where every digit counts), dates and times datetime64, of timestamps in UTC, text and binary as
            objects, None where null; other columns that it reads may hold no null. Returns a dict of such arrays, which
            may have another number of rows; datetime64 becomes timestamp_ntz, or a timestamp where `schema` says so. A
            block has at most spark.sql.execution.arrow.maxRecordsPerBatch rows (10,000) of one Spark partition; arrays
            may be read-only.
        df: a DataFrame, classic or Connect.
        schema: schema of what `fn` returns, a StructType or text such as "score double, vector array<float>". None: a
            Spark job finds it by running `fn` on the first rows, at most 8.
        columns: columns that `fn` gets; None: all, each of them decoded when `fn` first reads it. Then nulls, and types
            that are no arrays, in columns that it never reads are no error; `dict(block)` decodes all.
        keep: True: what `fn` returns is appended to the columns of `df`, row by row.

    Raises:
        SpecError: an argument is not allowed, or there are no rows to try `fn` on. What is wrong with rows is found
            when they are computed; the message names the column and the Spark partition.

    Example:
        >>> import hopyard as hy
        >>> df = spark.createDataFrame([(1.0,), (2.0,)], "x double")
        >>> hy.spark.map_batches(lambda rows: {"double": 2 * rows["x"]}, df).collect()
        [Row(double=2.0), Row(double=4.0)]
    """
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    if not callable(fn):
        raise SpecError(f"fn must be a function from a dict of arrays to a dict of arrays, got {shown(fn)}")
    if not hasattr(df, "mapInArrow"):
        raise SpecError(f"df must be a Spark DataFrame, got {type(df).__name__}")
    alive(df)
    keep = flag("keep", keep)
    listed = df.columns if columns is None else column_names(columns)
    if listed is None:
        raise SpecError(f"columns must be a list of names, or None for all, got {shown(columns)}")
    names = tuple(listed)
    if not names and not keep:
        raise SpecError("columns must name at least one column, or be None for all, got []")
    if unknown := [name for name in dict.fromkeys(names) if name not in df.columns]:
        raise SpecError(f"columns = {shown(columns)}: the DataFrame has {no_such('column', unknown, df.columns)}")
    if twice := next((name for name in names if df.columns.count(name) > 1), None):
        raise SpecError(
            f"{df.columns.count(twice)} columns of the DataFrame are named {twice!r}: rename all but one, or name "
            "others by columns="
        )
    if not keep:
        require_unique(df, names, "the DataFrame")
    code = dump(fn, "fn")
    source = df if keep else df.select(*[quoted(name) for name in names])
    if schema is None and df.isStreaming:
        raise SpecError('df is a stream, on whose first rows fn cannot be tried: give schema=, such as "score double"')
    if schema is None:
        result_schema = _result_schema(BlockFunction(code, names, columns is None, keep=False, types=None), source)
    else:
        result_schema = struct_type(schema, "score double, vector array<float>")
    if keep:
        new_columns(df, [field.name for field in result_schema.fields], "in what fn returns")
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    types = {field.name: to_arrow_type(field.dataType, timezone=zone) for field in result_schema.fields}
    blocks = BlockFunction(code, names, columns is None, keep, types)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return blocks.apply(batches)

    full_schema = StructType([*df.schema.fields, *result_schema.fields]) if keep else result_schema
    return mapped(source, run, full_schema)


def _array(batch: Any, name: str) -> Array:
    return column_to_numpy(batch.column(name), name, "the block", "or do not read the column")


def _result_schema(blocks: BlockFunction, source: Any) -> Any:
    """Return the schema of the function's result for the first rows, computed where it will run: in an executor."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for result in blocks.apply(batches):
            yield pa.RecordBatch.from_pydict({"schema": [result.schema.serialize().to_pybytes()]})

    rows = mapped(source.limit(SAMPLE_ROWS), run, "schema binary").collect()  # first() would end the worker
    if not rows:
        raise SpecError(
            "the DataFrame has no rows to try the function on; say what it gives with schema=, for example "
            '"score double"'
        )
    return from_arrow_schema(pa.ipc.read_schema(pa.py_buffer(bytes(rows[0][0]))))


def _cast_to_schema(arrays: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays in the order and types of the schema.

    Raises:
        DataError: a column is missing or too much, or its values do not fit the type.
    """
    if arrays.keys() != types.keys():
        raise DataError(f"the function gave the columns {sorted(arrays)}, the schema has {sorted(types)}")
    columns = {}
    for name, kind in types.items():
        try:
            columns[name] = arrays[name] if arrays[name].type == kind else arrays[name].cast(kind)
        except pa.ArrowException as error:
            raise DataError(f"column {name!r} has type {arrays[name].type}, the schema has {kind}: {error}") from error
    return columns
