"""TFRecord files under the names of TensorFlowOnSpark."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from hopyard.compat.tensorflowonspark import dfutil
from hopyard.errors import SpecError

ROW = ("text", 7, [1, 2, 3], -1.5, [0.25, -0.5], bytearray(b"\xff\x00"), True)
NAMES = ["a", "b", "c", "d", "e", "f", "g"]


def test_rows_come_back_as_they_were(spark: Any, tmp_path: Path) -> None:
    df = spark.createDataFrame([ROW], NAMES)
    dfutil.saveAsTFRecords(df, str(tmp_path / "t"))
    again = dfutil.loadTFRecords(spark.sparkContext, str(tmp_path / "t"), binary_features=["f"])
    assert again.collect()[0].asDict() == dict(zip(NAMES, [*ROW[:-1], 1], strict=True))
    assert dfutil.isLoadedDF(again)
    assert not dfutil.isLoadedDF(df)
    assert not dfutil.isLoadedDF(again.filter("b > 0"))


def test_a_directory_that_has_files_is_not_written_to(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(SpecError):
        dfutil.saveAsTFRecords(spark.range(1), str(tmp_path))


TYPES = ["string", "bigint", "array<bigint>", "double", "array<double>", "binary", "boolean"]


def test_rows_become_examples_and_rows_again_without_a_session() -> None:
    pytest.importorskip("pyspark")
    dtypes = list(zip(NAMES, TYPES, strict=True))
    pairs = dfutil.toTFExample(dtypes)(iter([ROW, ROW]))
    assert [rest for _, rest in pairs] == [None, None]
    assert dfutil.toTFExample(dtypes)(iter([])) == []
    rows = dfutil.fromTFExample(iter(pairs), ["f"])
    assert [row.asDict() for row in rows] == [dict(zip(NAMES, [*ROW[:-1], 1], strict=True))] * 2


def test_the_columns_of_a_row_go_by_name() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql import Row

    pairs = dfutil.toTFExample([("a", "bigint"), ("b", "bigint")])([Row(b=2, a=1), Row(a=3, b=4, more="x")])
    assert [row.asDict() for row in dfutil.fromTFExample(pairs)] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_decimals_are_floats() -> None:
    pytest.importorskip("pyspark")
    pairs = dfutil.toTFExample([("a", "decimal(3,1)"), ("b", "array<decimal(3,1)>")])(
        [(Decimal("1.5"), [Decimal(2)] * 2)]
    )
    assert dfutil.fromTFExample(pairs)[0].asDict() == {"a": 1.5, "b": [2.0, 2.0]}


@pytest.mark.tensorflow
def test_the_schema_of_an_example_of_tensorflow() -> None:
    pytest.importorskip("pyspark")
    tf = pytest.importorskip("tensorflow")
    data = dfutil.toTFExample(list(zip(NAMES, TYPES, strict=True)))([ROW])[0][0]
    found = dfutil.infer_schema(tf.train.Example.FromString(bytes(data)), ["f"])
    assert [(field.name, field.dataType.simpleString()) for field in found] == [
        *(("a", "string"), ("b", "bigint"), ("c", "array<bigint>"), ("d", "double"), ("e", "array<double>")),
        *(("f", "binary"), ("g", "bigint")),
    ]


def test_a_type_that_tfrecord_lacks_is_named() -> None:
    with pytest.raises(SpecError, match="column 'm' has type map<string,int>"):
        dfutil.toTFExample([("m", "map<string,int>")])
