"""DataFrames by way of HDFS and S3: partitions for training, and TFRecord files."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import hopyard as hy
from hopyard.spark.tfrecords import load_tfrecords, save_tfrecords

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(params=["s3", "hdfs", "webhdfs"])
def url(request: pytest.FixtureRequest, spark: Any) -> Iterator[str]:
    kind = request.param
    server = request.getfixturevalue("s3" if kind == "s3" else "hdfs")
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update({name: os.environ[name] for name in server.environment})  # as executors have it in use
    yield f"{server.web if kind == 'webhdfs' else server.url}/{uuid.uuid4().hex}"
    environment.clear()
    environment.update(before)


def test_partitions_and_tfrecords(url: str, spark: Any, tmp_path: Path) -> None:
    df = spark.range(200).selectExpr("id AS n", "id * 0.5D AS x", "id % 2 AS y").repartition(3)
    options: dict[str, Any] = {"features": ["n", "x"], "label": "y", "partitions": 4, "validation": 0.2}
    here = hy.Dataset.spark(df, path=tmp_path / "rows", **options).prepare()
    there = hy.Dataset.spark(df, path=f"{url}/rows", **options)
    assert there.prepare().digest == here.digest
    assert there.url is not None
    assert hy.Dataset.open(there.url).prepare().digest == here.digest

    for _ in range(2):
        save_tfrecords(df, f"{url}/records", mode="overwrite")
        assert sorted(load_tfrecords(spark, f"{url}/records").collect()) == sorted(df.collect())
