"""ragged= of Dataset.spark: the rows that a table, a data frame or files give by the same key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopyard as hy
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.data.partitions.mapped import fetched_bytes, open_partition
from hopyard.errors import DataError

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

OPTIONS: dict[str, Any] = {
    "features": {"ids": "ids", "x": ["x"], "scores": "scores"}, "label": "y", "key": "n", "partitions": 2, "seed": 1,
    "validation": 0.3, "ragged": {"ids": "ids_mask", "scores": None}, "max_length": 6,
}  # fmt: skip


def table(rows: int = 120) -> pa.Table:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, rows).tolist()
    return pa.table({
        "n": range(rows), "x": rng.normal(size=rows), "y": rng.integers(0, 2, rows),
        "ids": [rng.integers(1, 99, length).tolist() for length in lengths],
        "scores": [rng.normal(size=length).tolist() for length in lengths],
        "text": [" ".join("ab"[:2] * (length // 8 + 1) for _ in range(length)) for length in lengths],
    })  # fmt: skip


def batches(manifest: Any) -> list[Any]:
    parts = [("train", at) for at in range(len(manifest.train))]
    parts += [("validate", at) for at in range(len(manifest.validate))]
    return [
        {name: array.tobytes() for name, array in batch.inputs.items()}
        for kind, at in parts
        for batch in PartitionLoader(open_partition(manifest, kind, at), 7, 3)  # type: ignore[arg-type]
    ]


def test_rows_are_those_of_every_source(spark: Any, tmp_path: Path) -> None:
    rows = table()
    pq.write_table(rows, tmp_path / "rows.parquet")
    mine = hy.Dataset.arrow(rows, **OPTIONS).prepare(tmp_path / "mine")
    df = spark.read.parquet(str(tmp_path / "rows.parquet"))
    for number, frame in enumerate((df.repartition(3), df.orderBy("x").coalesce(1))):
        data = hy.Dataset.spark(frame, path=tmp_path / "store", **OPTIONS)
        manifest = data.prepare(tmp_path / f"cache {number}")
        assert manifest.digest == mine.digest and manifest.bytes == mine.bytes
        assert batches(manifest) == batches(mine)
        assert fetched_bytes(manifest) == manifest.bytes  # so that the cache finds each partition again
        again = hy.Dataset.open(data.url or "").prepare(tmp_path / f"cache {number}")
        assert batches(again) == batches(mine) and fetched_bytes(again) == 0


def test_a_tokenizer_runs_on_executors(spark: Any, tmp_path: Path) -> None:
    vocabulary = {"ab": 3}

    def tokenize(batch: Any) -> Any:
        ids = [[vocabulary.get(word, 1) for word in text.split()] for text in batch["text"].to_pylist()]
        return batch.set_column(batch.schema.get_field_index("ids"), "ids", pa.array(ids))

    rows = table(40)
    df = spark.createDataFrame(rows.to_pandas())
    options = {**OPTIONS, "transform": tokenize}
    mine = hy.Dataset.arrow(rows, **options).prepare(tmp_path / "mine")
    assert hy.Dataset.spark(df, path=tmp_path / "store", **options).prepare().digest == mine.digest


def test_a_row_without_tokens_is_refused(spark: Any, tmp_path: Path) -> None:
    df = spark.range(0, 9, 1, 1).selectExpr("id AS n", "IF(id = 4, array(), array(id)) AS ids", "id AS x")
    options: dict[str, Any] = {"features": {"ids": "ids"}, "label": "x", "ragged": ["ids"], "path": tmp_path}
    with pytest.raises(DataError, match=r"'ids': 1 of its rows are empty, .*the first is row 4 of Spark partition 0"):
        hy.Dataset.spark(df, **options).prepare()
    with pytest.raises(DataError, match=r"'x' .* has type int64: its rows must be lists"):
        hy.Dataset.spark(df, **{**options, "features": {"ids": "ids", "x": "x"}, "label": "n", "ragged": ["x"]})
