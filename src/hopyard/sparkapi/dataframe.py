"""Queries of Spark: columns of a DataFrame, the values of some, one job over its partitions.

It knows Spark's public API, the same for classic sessions and Spark Connect (`mapInArrow`, no RDD), and nothing of what
the job writes. It imports pyspark only in functions that get a DataFrame, whose session has imported it already.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from hopyard.errors import DataError, SpecError
from hopyard.formats.arrow import require
from hopyard.formats.vectors import without_vectors
from hopyard.sparkapi import is_stopped
from hopyard.text import shown

_MANY = 100
"""Modules that are imported at once with anything that is large."""
_modules = 0
"""How many modules this process had imported when `_freeze_imports` last left out their objects."""


def is_frame(value: Any) -> bool:
    """Whether it is a DataFrame of Spark, classic or Connect."""
    return type(value).__module__.startswith("pyspark.sql.") and hasattr(value, "mapInArrow")


def checked(df: Any, argument: str) -> Any:
    """Return `df` if it is a DataFrame whose rows can be read, else raises SpecError."""
    if not is_frame(df):
        hint = "; df.to_spark() gives one" if type(df).__module__.startswith("pyspark.pandas") else ""
        raise SpecError(f"{argument} must be a pyspark.sql.DataFrame, got {type(df).__name__}{hint}")
    alive(df)
    if df.isStreaming:
        raise SpecError(f"{argument}: a streaming DataFrame has no end; give a batch one, spark.read…")
    return df


def alive(df: Any) -> None:
    """Raise SpecError when the session of `df` was stopped."""
    if is_stopped(df.sparkSession):
        raise SpecError(
            "the Spark session of the DataFrame was stopped; make another with SparkSession.builder.getOrCreate(), and "
            "the DataFrame and the Dataset from it anew"
        )


def on_this_host(df: Any) -> bool:
    """Whether all executors run on the driver's host."""
    return str(df.sparkSession.conf.get("spark.master", "")).startswith("local")


def schema(df: Any) -> pa.Schema:
    """Return the Arrow schema of the batches that tasks get."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return without_vectors(to_arrow_schema(df.schema, timezone="UTC"))  # of which nothing but the type is used
    except Exception as error:
        raise DataError(
            f"the DataFrame has a column that Arrow lacks ({type(error).__name__}: {error}); select the columns that "
            "are needed, or cast it"
        ) from error


def struct_type(schema: Any, example: str) -> Any:
    """Return a StructType, which may be given as Spark's text for one. Raises SpecError, which shows the example."""
    from pyspark.sql.types import DataType, StructType

    try:
        parsed = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    except Exception as error:
        raise SpecError(f'schema = {schema!r} is no such text; "{example}" is') from error
    if not isinstance(parsed, StructType):
        raise SpecError(f'schema must be a StructType or text such as "{example}", got {shown(schema)}')
    return parsed


def types(df: Any) -> dict[str, str]:
    """Return column → Spark's name of its type, for all columns."""
    return {field.name: field.dataType.simpleString() for field in df.schema.fields}


def is_deterministic(df: Any) -> bool | None:
    """Whether the plan of a classic DataFrame gives the same rows each time; None for others, of which Spark says
    nothing.

    Spark marks the functions of its ML library (VectorAssembler's) as not deterministic, so that its optimizer does
    not copy them; they are. No public API tells any of it: where a version of Spark lacks this one, the result is None.
    """
    try:
        return not _draws(df._jdf.queryExecution().analyzed())
    except Exception:  # noqa: BLE001 - whatever py4j raises, and the AttributeError of a Connect client
        return None


def _draws(node: Any) -> bool:
    """Whether a plan or an expression, an object of Spark's JVM, is or has one that is not deterministic."""
    if node.deterministic():
        return False
    parts = _items(node.children())
    if node.getClass().getSimpleName() == "ScalaUDF":
        own = not node.udfDeterministic()
        return (own and not node.function().getClass().getName().startswith("org.apache.spark.ml.")) or any(
            map(_draws, parts)
        )
    if "expressions" in dir(node):
        parts += _items(node.expressions())
    causes = [part for part in parts if not part.deterministic()]
    return not causes or any(map(_draws, causes))


def _items(seq: Any) -> list[Any]:
    return [seq.apply(at) for at in range(seq.size())]


def narrowed(df: Any, names: list[str], source_label: str) -> Any:
    """Return only the columns `names` of `df`. Raises DataError unless each exists exactly once."""
    require_unique(df, names, source_label)
    return df.select([quoted(name) for name in names])


def require_unique(df: Any, names: Iterable[str], source_label: str) -> None:
    """Raise DataError unless each of `names` is one column of the DataFrame, to Spark too."""
    names = list(names)
    require(pa.schema([(name, pa.null()) for name in df.columns]), names, source_label)
    key = name_key(df)
    for name in names:
        alike = [column for column in df.columns if key(column) == key(name)]
        if len(alike) > 1:
            raise DataError(
                f"{source_label} has columns {', '.join(map(repr, alike))}, which are one to Spark: rename all but "
                "one, or set spark.sql.caseSensitive to true"
            )


def new_columns(df: Any, names: Iterable[str], argument: str) -> None:
    """Raise SpecError unless `names` can be appended to the columns of the DataFrame: each is new, to Spark too.

    Args:
        df: the DataFrame.
        names: names of the columns that are added.
        argument: what names them, for the message: "with predictionCol=".
    """
    key = name_key(df)
    existing = {key(name): name for name in df.columns}
    for name in names:
        if key(name) in existing:
            same = "" if existing[key(name)] == name else ", which is the same to Spark"
            raise SpecError(
                f"a new column is to be named {name!r}, and there is {existing[key(name)]!r} already{same}; choose "
                f"another name {argument}"
            )
        existing[key(name)] = name


def name_key(df: Any) -> Callable[[str], str]:
    """Return a function whose result is equal for names that are one to Spark: case counts only if
    spark.sql.caseSensitive is true."""
    sensitive = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"
    return str if sensitive else str.lower


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

    def work_by_name(batches: Any) -> Any:  # pickled by value
        try:
            yield from work(batch.rename_columns(names) for batch in batches)
        finally:
            _freeze_imports()

    return df.toDF(*[f"c{number}" for number in range(len(names))]).mapInArrow(work_by_name, schema)


def _freeze_imports() -> None:
    """Leave all objects that are there out of all searches for garbage, if many modules were imported since the last
    call.

    After each task Spark has its Python worker look for garbage in all that it holds. With PyTorch or TensorFlow
    imported that takes up to half a second, several times as long as a task of a few rows.
    """
    global _modules  # noqa: PLW0603 - the state of the process's garbage collector
    if len(sys.modules) >= _modules + _MANY:
        _modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def collected(df: Any) -> list[Any]:
    """Return the rows of `df`; raises SpecError in the place of errors of Spark whose cause is known."""
    try:
        return list(df.collect())
    except Exception as error:
        alive(df)
        if "No module named 'hopyard'" not in str(error):
            raise
        raise SpecError(  # hard to find in Java's stack traces
            "the executors' Python cannot import hopyard: install it there in the same version (spark.pyspark.python "
            "names their Python), or send an environment that has it with spark.archives"
        ) from error


def quoted(name: str) -> str:
    """Return a column's name as Spark's expressions take it."""
    return "`" + name.replace("`", "``") + "`"
