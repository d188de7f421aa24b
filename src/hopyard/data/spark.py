"""What is asked of Spark: columns of a DataFrame, the values of some, one job over its partitions.

Knows Spark's public API, the same for classic sessions and Spark Connect (`mapInArrow`, no RDD), and nothing of what
the job writes. pyspark is imported by whoever has a DataFrame already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec
import pyarrow as pa
from blake3 import blake3

from hopyard.data.encoder import ONE_HOT_LIMIT
from hopyard.data.files import stamp
from hopyard.data.frame import Task, Told
from hopyard.data.manifest import Value
from hopyard.data.names import ColumnSpec, require
from hopyard.data.plans import text, unseen
from hopyard.data.vectors import without_vectors
from hopyard.errors import DataError, SpecError
from hopyard.sessions import is_connect, is_stopped

log = logging.getLogger(__name__)


def is_frame(value: Any) -> bool:
    """Whether it is a DataFrame of Spark, classic or Connect."""
    return type(value).__module__.startswith("pyspark.sql.") and hasattr(value, "mapInArrow")


def checked(df: Any, argument: str) -> Any:
    """`df`, if it is a DataFrame that rows can be taken from. Raises SpecError."""
    if not is_frame(df):
        hint = "; df.to_spark() gives one" if type(df).__module__.startswith("pyspark.pandas") else ""
        raise SpecError(f"{argument} = {type(df).__name__}: a pyspark.sql.DataFrame is needed{hint}")
    alive(df)
    if df.isStreaming:
        raise SpecError(f"{argument}: a streaming DataFrame has no end; give a batch one, spark.read…")
    return df


def alive(df: Any) -> None:
    """Raises SpecError when the session of `df` was stopped."""
    if is_stopped(df.sparkSession):
        raise SpecError(
            "the Spark session of the DataFrame was stopped; make another with SparkSession.builder.getOrCreate(), and "
            "the DataFrame and the Dataset from it anew"
        )


def on_this_host(df: Any) -> bool:
    """Whether all executors run on the driver's host."""
    return str(df.sparkSession.conf.get("spark.master", "")).startswith("local")


def schema(df: Any) -> pa.Schema:
    """The Arrow schema of the batches that tasks get."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return without_vectors(to_arrow_schema(df.schema, timezone="UTC"))  # of which nothing but the type is used
    except Exception as error:
        raise DataError(
            f"the DataFrame has a column that Arrow lacks ({type(error).__name__}: {error}); select the columns that "
            "are needed, or cast it"
        ) from error


def narrowed(df: Any, names: list[str], where: str) -> Any:
    """Only the columns `names`. Raises DataError unless each is there once."""
    once(df, names, where)
    return df.select([quoted(name) for name in names])


def once(df: Any, names: Iterable[str], where: str) -> None:
    """Raises DataError unless each of `names` is one column of the DataFrame, to Spark too."""
    names = list(names)
    require(pa.schema([(name, pa.null()) for name in df.columns]), names, where)
    same = as_spark_compares(df)
    for name in names:
        alike = [other for other in df.columns if same(other) == same(name)]
        if len(alike) > 1:
            raise DataError(
                f"{where} has columns {', '.join(map(repr, alike))}, which are one to Spark: rename all but one, "
                "or set spark.sql.caseSensitive to true"
            )


def new_columns(df: Any, names: Iterable[str], argument: str) -> None:
    """Raises SpecError unless `names` can stand behind the columns of the DataFrame: each is new, to Spark too.

    Args:
        df: the DataFrame.
        names: of what is added.
        argument: where they are named, for the message: "with predictionCol=".
    """
    same = as_spark_compares(df)
    there = {same(name): name for name in df.columns}
    for name in names:
        if same(name) in there:
            raise SpecError(
                f"a new column is to be named {name!r}, and there is {there[same(name)]!r} already, which is the same "
                f"to Spark; choose another name {argument}"
            )
        there[same(name)] = name


def as_spark_compares(df: Any) -> Callable[[str], str]:
    """Names of columns are one to Spark where this gives one text: case counts only if spark.sql.caseSensitive."""
    sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    return str if sensitive else str.lower


def listed(spec: ColumnSpec, frames: list[Any], task: Task | None) -> tuple[ColumnSpec, list[Told]]:
    """`spec` with the values of all columns to be encoded: where none were given, the sorted ones of all rows; and what
    the tasks told that found them.

    Args:
        spec: as the user wrote it.
        frames: of all rows.
        task: with the transform, where there is one: columns are then what it makes of them.
    """
    open_ = {name: how for name, how in spec.encode.items() if how.values is None}
    found: dict[str, set[Value]] = {name: set() for name in open_}
    all_told: list[Told] = []
    for df in frames if open_ else []:
        if task is None:
            for name, how in open_.items():
                values = df.select(quoted(name)).distinct()
                rows = collected(values.limit(ONE_HOT_LIMIT + 1) if how.kind == "one-hot" else values)
                found[name].update(row[0] for row in rows)
            continue
        for told in tell(df, task, "values"):
            told.check()
            all_told.append(told)
            for name in open_:
                found[name].update(told.values[name])
    closed = {
        name: msgspec.structs.replace(how, values=sorted(value for value in found[name] if _is(value)))
        for name, how in open_.items()
    }
    return msgspec.structs.replace(spec, encode={**spec.encode, **closed}), all_told


def tell(df: Any, task: Task, what: Literal["run", "values"]) -> list[Told]:
    """Runs a task on every partition of `df`: one job, of which only what tasks tell comes here; in their order."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    def work(batches: Any) -> Any:  # goes by value: this module is not imported there
        import pyarrow
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        told = getattr(task, what)(context.partitionId(), batches)
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array([told], pyarrow.binary())], ["told"])

    alive(df)
    rows = collected(mapped(df, work, StructType([StructField("told", BinaryType())])))
    return sorted((msgspec.msgpack.decode(bytes(row[0]), type=Told) for row in rows), key=lambda told: told.number)


def mapped(df: Any, work: Any, schema: Any) -> Any:
    """`df.mapInArrow(work, schema)` for columns of any name: Spark itself takes a dot or a backtick in one for syntax.

    Raises:
        DataError: two columns have one name.
    """
    names = list(df.columns)
    for name in names:
        if names.count(name) > 1:
            raise DataError(
                f"the DataFrame has {names.count(name)} columns named {name!r}: rename all but one, or select those "
                "that are needed"
            )

    def named(batches: Any) -> Any:  # goes by value
        return work(batch.rename_columns(names) for batch in batches)

    return df.toDF(*[f"c{number}" for number in range(len(names))]).mapInArrow(named, schema)


def collected(df: Any) -> list[Any]:
    """Its rows; raises SpecError in the place of errors of Spark whose cause is known."""
    try:
        return list(df.collect())
    except Exception as error:
        known = _known(df, error)
        if known is None:
            raise
        raise known from error


def _known(df: Any, error: Exception) -> SpecError | None:
    """SpecError where the cause of `error` is known, and would be hard to find in Java's stack traces."""
    alive(df)
    if "No module named 'hopyard'" in str(error):
        return SpecError(
            "the executors' Python cannot import hopyard: install it there in the same version (spark.pyspark.python "
            "names their Python), or send an environment that has it with spark.archives"
        )
    return None


def quoted(name: str) -> str:
    """A column's name as Spark's expressions take it."""
    return "`" + name.replace("`", "``") + "`"


def _is(value: Any) -> bool:
    """Neither null nor NaN: these are faults, which the rows' own job counts."""
    return value is not None and value == value  # noqa: PLR0124


def identity(df: Any) -> str | None:
    """A digest that is equal for equal rows: of the plan, and of path, size and time of the files that it reads.

    A classic plan over files is known again in another session; any other for as long as the session's JVM lives. None
    where nobody tells: what the plan runs or reads cannot be seen, or the files cannot be asked for their time.
    """
    try:
        if unseen(df):
            return None
        plan = None if is_connect(df.sparkSession) else text(df)
        told = plan or f"{df.semanticHash()} {_jvm(df)}"
        hasher = blake3(f"{told}\0{schema(df)}".encode())
        for path in sorted(df.inputFiles()):
            hasher.update(f"{path}\0{_stamp(path, plan is not None)}\0".encode())
    except Exception as error:  # noqa: BLE001 - no public API: another Spark may lack any of it
        log.debug("the plan of the DataFrame cannot be told: %s", error)
        return None
    return str(hasher.hexdigest())


def _jvm(df: Any) -> str:
    """Names the JVM in which a hash of objects in it was made: others may give the same to something else."""
    return str(df.sparkSession.conf.get("spark.app.id", ""))


def _stamp(path: str, timed: bool) -> str:
    """Size and time of a file. Where this process has no driver for its file system: nothing, if the plan is `timed`,
    which holds both already."""
    try:
        return stamp(path)
    except (DataError, ImportError, ValueError):
        if not timed:
            raise
        return ""
