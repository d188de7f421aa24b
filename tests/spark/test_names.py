"""Names of columns, as Spark compares them: "a" and "A" are one, unless spark.sql.caseSensitive is true. No Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from hopyard.data.manifest import Column, Field
from hopyard.errors import DataError, SpecError
from hopyard.spark.inference.map_batches import map_batches
from hopyard.spark.inference.predict import check, with_scores
from hopyard.sparkapi.dataframe import narrowed, new_columns


class Frame:
    """As much of a DataFrame as is asked for its names."""

    def __init__(self, *columns: str, sensitive: str | None = None) -> None:
        from pyspark.sql.types import LongType, StructField, StructType

        self.columns = list(columns)
        self.schema = StructType([StructField(name, LongType()) for name in columns])
        conf = {} if sensitive is None else {"spark.sql.caseSensitive": sensitive}
        conf["spark.sql.session.timeZone"] = "UTC"
        running = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
        self.sparkSession = SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(_jsc=running))

    def select(self, *names: Any) -> Frame:
        chosen = names[0] if isinstance(names[0], list) else names
        return Frame(*[name.strip("`") for name in chosen])

    def toDF(self, *names: str) -> Frame:
        return Frame(*names)

    def mapInArrow(self, work: Any, schema: Any) -> Any:
        return schema.names


def model(*names: str) -> Any:
    columns = [Column(name, "int64:int64", ()) for name in names]
    fields = [Field("inputs", "inputs", True, columns, "float32", "float32")]
    return SimpleNamespace(
        files={}, about=SimpleNamespace(manifest=SimpleNamespace(fields=fields, column_names=lambda role: list(names)))
    )


ALIKE = r"the DataFrame has columns 'age', 'Age', which are one to Spark: rename all but one"


def test_a_feature_that_is_there_twice_by_case() -> None:
    df = Frame("age", "size", "Age")
    for refuses in (
        lambda: check(df, model("size", "age")),
        lambda: narrowed(df, ["age"], "the DataFrame"),
        lambda: map_batches(lambda block: block, df, "n long", columns=["age"]),
        lambda: map_batches(lambda block: block, df, "n long"),
    ):
        with pytest.raises(DataError, match=ALIKE):
            refuses()
    check(df, model("size"))  # what is not asked for may be there as often as it likes
    check(Frame("age", "Age", sensitive="true"), model("age"))
    with pytest.raises(DataError, match="has no column 'AGE'; did you mean"):
        check(Frame("AgE", sensitive="true"), model("AGE"))


def test_a_new_column_that_is_there_by_case() -> None:
    import pyarrow as pa

    one = pa.array([1.0])
    with pytest.raises(SpecError, match=r"'Age', .*'age' already"):
        with_scores(Frame("age"), model("age"), None, {"Age": one})  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="named 'P', and there is 'p' already"):
        with_scores(Frame("age"), model("age"), None, {"p": one, "P": one})  # type: ignore[arg-type]
    sensitive = Frame("age", sensitive="true")
    found = with_scores(sensitive, model("age"), None, {"Age": one, "p": one, "P": one})  # type: ignore[arg-type]
    assert found == ["age", "Age", "p", "P"]
    with pytest.raises(SpecError, match="named 'age', and there is 'age' already"):
        new_columns(sensitive, ["age"], "with x=")


def test_function_results_follow_the_columns() -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    def fn(block: Any) -> Any:
        return block

    def schema(*names: str) -> Any:
        return StructType([StructField(name, LongType()) for name in names])

    with pytest.raises(SpecError, match=r"'AGE', .*'age' already"):
        map_batches(fn, Frame("age"), schema("AGE"), keep=True)
    with pytest.raises(SpecError, match="named 'N', and there is 'n' already"):
        map_batches(fn, Frame("age"), schema("n", "N"), keep=True)
    assert map_batches(fn, Frame("age", sensitive="true"), schema("AGE"), keep=True) == ["age", "AGE"]
