"""A process of its own: a session is Connect or classic for the whole process. Started by `test_tfrecords.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    from pyspark.sql import SparkSession

    from hopyard.errors import DataError
    from hopyard.spark import load_tfrecords, save_tfrecords

    folder = Path(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    for name in ("spark.local.dir", "spark.sql.warehouse.dir", "spark.sql.artifact.dir"):
        builder = builder.config(name, str(folder / name))
    spark = builder.getOrCreate()
    assert not hasattr(type(spark), "_jvm")
    save_tfrecords(spark.range(0, 100, 1, 2), folder / "rows")
    found = load_tfrecords(spark, folder / "rows")
    assert found.dtypes == [("id", "bigint")]
    assert [row.id for row in found.orderBy("id").collect()] == list(range(100))
    try:
        save_tfrecords(spark.createDataFrame([([None],)], "x array<int>"), folder / "wrong")
    except DataError as error:
        assert "has a null in it" in str(error)
    assert not (folder / "wrong").exists()
    spark.stop()


if __name__ == "__main__":
    main()
