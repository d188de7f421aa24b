"""Makes an archive of the classes that Spark loads (class data sharing of the JVM), with which a Java of the tests
starts in half of the processor time. For `conftest.py`, whose options let Java write it at its end:

    python tests/java_archive.py FILE
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import functions as f

import hopyard as hy


def run(folder: str) -> None:
    """Run some jobs of Spark, so that their classes are loaded; then end its Java."""
    spark = hy.spark.session(executors=1, cores=1)
    java = SparkContext._gateway.proc  # type: ignore[union-attr]
    spark.range(0, 100, 1, 2).withColumn("x", f.rand(0)).withColumn("key", f.col("id") % 3).write.parquet(folder)
    rows = spark.read.parquet(folder)
    means = rows.groupBy("key").agg(f.avg("x").alias("mean"))
    schema = "key long, id long, x double, mean double"
    rows.join(means, "key").orderBy("x").mapInArrow(lambda batches: batches, schema).collect()
    spark.createDataFrame([(1, [0.5], "a")], "n int, x array<double>, text string").collect()
    spark.sparkContext.parallelize([1, 2], 2).mapPartitions(list).collect()
    spark.stop()
    java.stdin.close()
    java.wait(60)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        run(f"{place}/rows")
    Path(f"{sys.argv[1]}.part").replace(sys.argv[1])
