"""A script for sessions of Spark with any number of executors: fits on a DataFrame, in the forms that users give it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hopyard as hy
from hopyard.frameworks.linear import Linear


def fits(spark: Any, folder: Path, runs: Path) -> list[list[str]]:
    """Return the digests of the data set and of the net for each form of the table in `folder`."""
    from pyspark.sql import functions as F

    df = spark.read.parquet(str(folder))
    small = df.groupBy("user").agg(F.avg("x0").alias("mean"))
    frames = {
        "as it is": df,
        "repartition": df.repartition(7),
        "orderBy": df.orderBy("x1"),
        "join": df.join(small, "user").select(*df.columns),
    }
    found = []
    for name, frame in frames.items():
        data = hy.Dataset.spark(
            frame, features=[f"x{n}" for n in range(6)], label="y", standardize=True, validation=0.25, partitions=3
        )
        run = hy.fit(
            lambda config: Linear(6, 2, lr=0.1, batch_size=16),
            {},
            data,
            epochs=2,
            engine=hy.Inline(),
            directory=runs / name,
        )
        found.append([data.prepare().digest, run.trials[0].digest])
    return found


def main() -> None:
    """Print them, a line for each form, by a session with the number of executors and the settings of the command
    line."""
    from pyspark.sql import SparkSession

    executors, folder, runs = sys.argv[1:4]
    builder = SparkSession.builder.master(f"local-cluster[{executors},1,1024]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "6")
    for name, value in zip(sys.argv[4::2], sys.argv[5::2], strict=True):
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for digests in fits(spark, Path(folder), Path(runs)):
        print(json.dumps(digests))


if __name__ == "__main__":
    main()
