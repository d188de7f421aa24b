"""DataFrames as TFRecord files and back, by `hopyard.spark.save_tfrecords` and `load_tfrecords`: no Hadoop jar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from hopyard.errors import SpecError
from hopyard.formats.arrow import doubled
from hopyard.formats.example import Seen, decode, encode, look, schema
from hopyard.spark.tfrecords import load_tfrecords, save_tfrecords

loadedDF: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""DataFrame that `loadTFRecords` returned → its directory."""
_TYPES = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "boolean"), pa.int64()),
    **dict.fromkeys(("float", "double"), pa.float32()),
    "string": pa.string(),
    "binary": pa.binary(),
}


def isLoadedDF(df: Any) -> bool:
    """Whether `loadTFRecords` returned this very DataFrame: one that is made from it is another."""
    return df in loadedDF


def saveAsTFRecords(df: Any, output_dir: str) -> None:
    """Writes a DataFrame as TFRecord files of tf.train.Example, one for each partition; `output_dir` must be new."""
    save_tfrecords(df, output_dir)


def loadTFRecords(sc: Any, input_dir: str, binary_features: Sequence[str] = ()) -> Any:
    """Return the records of TFRecord files as a DataFrame, with the schema of all records, not of the first.

    Args:
        sc: a SparkContext, or a session.
        input_dir: folder of the files.
        binary_features: features of bytes that are no text.
    """
    from pyspark.sql import SparkSession

    session = sc if hasattr(sc, "range") and hasattr(sc, "createDataFrame") else SparkSession(sc)
    df = load_tfrecords(session, input_dir, list(binary_features))
    loadedDF[df] = input_dir
    return df


def toTFExample(dtypes: Sequence[tuple[str, str]]) -> Callable[[Iterable[Any]], list[tuple[bytearray, None]]]:
    """Return a function for `rdd.mapPartitions` over Rows: (bytes of an Example, None) for each.

    Args:
        dtypes: `df.dtypes`: (column, type).
    """
    fields = [(name, _type(name, kind)) for name, kind in dtypes]

    def work(rows: Iterable[Any]) -> list[tuple[bytearray, None]]:
        arrow_schema = pa.schema(fields)
        columns = list(zip(*[_values(row, arrow_schema.names) for row in rows], strict=True)) or [()] * len(fields)
        arrays = [
            pa.array(_plain(column), field.type, from_pandas=True)
            for column, field in zip(columns, arrow_schema, strict=True)
        ]
        return [(bytearray(data), None) for data in encode(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema))]

    return work


def infer_schema(example: Any, binary_features: Sequence[str] = ()) -> Any:
    """Return the Spark schema of one tf.train.Example."""
    from pyspark.sql.pandas.types import from_arrow_schema

    fields = _schema(example.SerializeToString(), binary_features)
    return from_arrow_schema(pa.schema([(field.name, doubled(field.type)) for field in fields]))


def fromTFExample(iter: Iterable[Any], binary_features: Sequence[str] = ()) -> list[Any]:
    """Return a Row for each, with its features by name; for `rdd.mapPartitions` over (bytes of an Example, …)."""
    from pyspark.sql import Row

    rows = []
    for number, item in enumerate(iter):
        data = bytes(item[0])
        batch = decode([data], _schema(data, binary_features), "the RDD", number)
        values = batch.to_pylist()[0]
        rows.append(Row(**{name: bytearray(v) if isinstance(v, bytes) else v for name, v in values.items()}))
    return rows


def _schema(data: bytes, binary: Sequence[str]) -> pa.Schema:
    features: dict[str, Seen] = {}
    look(features, [data], "the Example")
    return schema(features, [name for name in binary if name in features], "the Example")


def _values(row: Any, names: Sequence[str]) -> Sequence[Any]:
    """Return the values of these columns: of a Row by name, whatever their order in it, else by position."""
    return [row[name] for name in names] if hasattr(row, "__fields__") else row


def _plain(column: Iterable[Any]) -> list[Any]:
    """Return values as Arrow takes them: no bytearray, whole numbers for booleans, floats for decimals."""
    converters: dict[type, Callable[[Any], Any]] = {bytearray: bytes, bool: int, Decimal: float}

    def convert(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [convert(part) for part in value]
        return converters.get(type(value), lambda same: same)(value)

    return [convert(value) for value in column]


def _type(name: str, kind: str) -> Any:
    if kind.startswith("array<"):
        return pa.list_(_type(name, kind[6:-1]))
    if kind.startswith("decimal"):
        return pa.float32()
    if kind not in _TYPES:
        raise SpecError(f"column {name!r} has type {kind}, which TFRecord lacks: cast it to numbers, text or binary")
    return _TYPES[kind]
