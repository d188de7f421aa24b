"""Missing values and rare categories of a DataFrame: what executors find is what a file of the same rows gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import hopyard as hy
from holed_rows import OPTIONS, ROWS, frame
from hopyard.data.new_rows import apply
from hopyard.errors import DataError

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.long]  # the first test of a process starts Spark


@pytest.fixture
def rows(tmp_path: Path) -> pa.Table:
    table = pa.Table.from_pandas(frame(), preserve_index=False)
    pq.write_table(table, tmp_path / "rows.parquet")
    return table


def known(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rome is Roma, and has no age."""
    roman = pc.fill_null(pc.equal(batch["city"], "rome"), False)
    city = pc.if_else(roman, "roma", batch["city"])
    age = pc.if_else(roman, None, batch["age"])
    names = batch.schema.names
    return batch.set_column(names.index("city"), "city", city).set_column(names.index("age"), "age", age)


@pytest.mark.parametrize("validation", [0.3, "held"])
@pytest.mark.parametrize("transform", [None, known])
def test_as_from_a_file(spark: Any, tmp_path: Path, rows: pa.Table, validation: Any, transform: Any) -> None:
    options = {**OPTIONS, "validation": validation, "transform": transform, "key": "n", "standardize": ["age"]}
    df = spark.read.parquet(str(tmp_path / "rows.parquet")).repartition(5)
    data = hy.Dataset.spark(df, path=tmp_path / "store", **options)
    made, wanted = data.prepare(), hy.Dataset.arrow(rows, **options).prepare(tmp_path / "cache")
    assert (made.fills, made.vocabularies) == (wanted.fills, wanted.vocabularies)
    assert made.vocabularies["city"] == ["bern", "oslo", "rome" if transform is None else "roma"]
    assert made.digest == wanted.digest
    again = hy.Dataset.open(str(data.url)).prepare()
    seen = apply(again, rows, transform).inputs
    np.testing.assert_array_equal(seen, apply(wanted, rows, transform).inputs)
    assert seen.shape == (ROWS, 6) and np.isfinite(seen).all()


def test_with_a_second_frame(spark: Any, tmp_path: Path, rows: pa.Table) -> None:
    df = spark.read.parquet(str(tmp_path / "rows.parquet"))
    options = {**OPTIONS, "partitions": 2}
    del options["validation"]
    made = hy.Dataset.spark(
        df.where("not held"), validation=df.where("held"), path=tmp_path / "store", **options
    ).prepare()
    wanted = hy.Dataset.arrow(rows, **OPTIONS).prepare(tmp_path / "cache")
    assert (made.fills, made.vocabularies) == (wanted.fills, wanted.vocabularies)
    assert (made.train_rows, made.validate_rows) == (wanted.train_rows, wanted.validate_rows)


def test_values_of_validation_rows_are_categories_where_there_are_no_others(
    spark: Any, tmp_path: Path, rows: pa.Table
) -> None:
    """Also where values are counted, for the most frequent one."""
    df = spark.read.parquet(str(tmp_path / "rows.parquet"))
    options = {**OPTIONS, "encode": {"city": "one-hot"}, "key": "n"}
    made = hy.Dataset.spark(df, path=tmp_path / "store", **options).prepare()
    wanted = hy.Dataset.arrow(rows, **options).prepare(tmp_path / "cache")
    assert "paris" in made.vocabularies["city"]
    assert (made.vocabularies, made.digest) == (wanted.vocabularies, wanted.digest)


def test_no_training_row_has_a_value(spark: Any, tmp_path: Path) -> None:
    df = spark.createDataFrame([(None, None, 0), (None, None, 1)], "a double, c string, y int")
    for options, said in (
        (
            {"features": ["a"], "impute": {"a": "mean"}},
            "column 'a': .*every training row",
        ),
        ({"features": "c", "encode": {"c": "index"}, "impute": {"c": "most_frequent"}}, "column 'c': .*most frequent"),
    ):
        with pytest.raises(DataError, match=said):
            hy.Dataset.spark(df, label="y", partitions=1, path=tmp_path / "store", **options).prepare()  # type: ignore[arg-type]
