"""Any function of arrays over the blocks of a DataFrame: columns in as NumPy arrays, columns out.

Source: Databricks TensorFrames, `map_blocks`, 2016. We differ: the program is a plain function, the blocks are the
record batches of Arrow, and the schema of what it gives is found by trying it on a few rows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pyarrow as pa

from hopyard.checks import closest
from hopyard.driver.pickling import dump
from hopyard.errors import DataError, SpecError
from hopyard.spark.inference.arrays import column, to_column
from hopyard.spark.inference.scoring import partition
from hopyard.sparkapi.dataframe import mapped, new_columns, once, quoted

TRIED = 8
"""Rows on which a function is tried to find what it gives."""

Function = Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Blocks:
    """What executors do with each block."""

    code: bytes
    """The function's pickle, with modules of the user by value, as for recipes: executors have no copy of them."""
    columns: tuple[str, ...]
    """That the function is given."""
    keep: bool
    types: dict[str, Any] | None
    """Name → Arrow type of what it gives, in the order of the schema; None: as it comes."""

    def over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """What it makes of the blocks of one Spark partition."""
        fn = cloudpickle.loads(self.code)
        for number, batch in enumerate(batches):
            if batch.num_rows:
                try:
                    yield self._made(fn, batch)
                except DataError as error:
                    raise DataError(f"map_batches, Spark partition {partition()}, block {number}: {error}") from None

    def _made(self, fn: Function, batch: Any) -> Any:
        found = fn({name: column(batch.column(name), name) for name in self.columns})
        if not isinstance(found, Mapping) or not found:
            raise DataError(f"the function must give a dict from column to array, gave {type(found).__name__}")
        arrays = {str(name): to_column(values, str(name)) for name, values in found.items()}
        if self.types is not None:
            arrays = _fitted(arrays, self.types)
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
    """A function of arrays over the blocks of a DataFrame; a lazy transformation.

    Args:
        fn: gets a dict from column to NumPy array of shape (rows, …): numbers and booleans (rows,), array columns
            (rows, n, …) (all rows need one length), vectors of pyspark.ml (rows, n), dates and times datetime64, of
            timestamps in UTC, text and binary as objects. Returns a dict of such arrays, which may have another number
            of rows; datetime64 becomes timestamp_ntz, or a timestamp where `schema` says so. A block has at
            most spark.sql.execution.arrow.maxRecordsPerBatch rows (10,000) of one Spark partition; arrays may be
            read-only.
        df: a DataFrame, classic or Connect.
        schema: of what `fn` returns, a StructType or text such as "score double, vector array<float>". None: found by a
            Spark job that runs `fn` on the first rows, at most 8.
        columns: that `fn` is given; None: all.
        keep: True: what `fn` returns stands behind the columns of `df`, row by row.

    Raises:
        SpecError: an argument is not allowed, or there are no rows to try `fn` on. What is wrong with rows is found
            when they are computed; the message names the column and the Spark partition.
    """
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType, StructType

    if not callable(fn):
        raise SpecError(f"fn must be a function from a dict of arrays to a dict of arrays, got {fn!r}")
    if not hasattr(df, "mapInArrow"):
        raise SpecError(f"df must be a Spark DataFrame, got {type(df).__name__}")
    if isinstance(columns, str):
        raise SpecError(f"columns must be a list of names such as [{columns!r}], got {columns!r}")
    chosen = tuple(df.columns if columns is None else columns)
    if not chosen and not keep:
        raise SpecError("columns must name at least one column, or be None for all, got []")
    for name in chosen:
        if df.columns.count(name) != 1:
            raise SpecError(
                f"columns names {name!r}, which is {df.columns.count(name)} times in the DataFrame"
                f"{closest(name, df.columns)}"
            )
    if not keep:
        once(df, chosen, "the DataFrame")
    code = dump(fn, "fn")
    source = df if keep else df.select(*[quoted(name) for name in chosen])
    if schema is None:
        given = _tried(Blocks(code, chosen, keep=False, types=None), source)
    else:
        try:
            given = DataType.fromDDL(schema) if isinstance(schema, str) else schema
        except Exception as error:
            raise SpecError(f'schema = {schema!r} is no such text; "score double, vector array<float>" is') from error
        if not isinstance(given, StructType):
            raise SpecError(f'schema must be a StructType or text such as "score double", got {schema!r}')
    if keep:
        new_columns(df, [field.name for field in given.fields], "in what fn returns")
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    types = {field.name: to_arrow_type(field.dataType, timezone=zone) for field in given.fields}
    blocks = Blocks(code, chosen, keep, types)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return blocks.over(batches)

    whole = StructType([*df.schema.fields, *given.fields]) if keep else given
    return mapped(source, run, whole)


def _tried(blocks: Blocks, source: Any) -> Any:
    """The schema of what the function gives for the first rows, found where it will run: in an executor."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for made in blocks.over(batches):
            data = base64.b64encode(cloudpickle.dumps(made.schema)).decode()
            yield pa.RecordBatch.from_pydict({"schema": [data]})

    found = mapped(source.limit(TRIED), run, "schema string").first()
    if found is None:
        raise SpecError(
            "the DataFrame has no rows to try the function on; say what it gives with schema=, for example "
            '"score double"'
        )
    return from_arrow_schema(cloudpickle.loads(base64.b64decode(found[0])))


def _fitted(arrays: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    """In the order and types of the schema.

    Raises:
        DataError: a column is missing or too much, or its values do not fit the type.
    """
    if arrays.keys() != types.keys():
        raise DataError(f"the function gave the columns {sorted(arrays)}, the schema has {sorted(types)}")
    made = {}
    for name, kind in types.items():
        try:
            made[name] = arrays[name] if arrays[name].type == kind else arrays[name].cast(kind)
        except pa.ArrowException as error:
            raise DataError(f"column {name!r} has type {arrays[name].type}, the schema has {kind}: {error}") from error
    return made
