"""A script for sessions of Spark with any number of executors: fits on a DataFrame, in the forms that users give it.

At its end the session is stopped, and refuses what it is asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hopyard as hy
from hopyard.frameworks.linear import Linear
from light_java import warm_settings

FORMS = ["as it is", "repartition", "orderBy", "join"]


def fits(spark: Any, folder: Path, runs: Path, forms: list[str]) -> list[list[str]]:
    """Return the digests of the data set and of the net for each of the forms of the table in `folder`."""
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
    for name in forms:
        data = hy.Dataset.spark(
            frames[name],
            features=[f"x{n}" for n in range(6)],
            label="y",
            standardize=True,
            validation=0.25,
            partitions=3,
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


def named(spark: Any, folder: Path, store: Path) -> str:
    """Return where the rows of the table are to be found under a name."""
    return str(hy.Dataset.spark(spark.read.parquet(str(folder)), features="user", path=store, name="ours").url)


def stop(spark: Any, store: Path) -> None:
    """Stop the session, which nothing is done in any more."""
    df = spark.range(9)
    late = hy.Dataset.spark(df, features="id", path=store)
    spark.stop()
    for ask in (
        late.prepare,
        lambda: hy.Dataset.spark(df, features="id", path=store),
        lambda: hy.spark.HopyardEstimator(recipe=dict, config={}, featuresCol="id", labelCol="id").fit(df),
        lambda: hy.spark.map_batches(dict, df),
    ):
        try:
            ask()
        except hy.SpecError as error:
            assert "session of the DataFrame was stopped" in str(error), error
        else:
            raise AssertionError("a stopped session was taken")


def main() -> None:
    """Print the digests, a line for each form, by a session with the number of executors, the forms and the settings of
    the command line; then where a name leads to."""
    from pyspark.sql import SparkSession

    executors, forms, folder, runs, store = sys.argv[1:6]
    builder = SparkSession.builder.master(f"local-cluster[{executors},1,1024]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "6")
    for name, value in [*warm_settings().items(), *zip(sys.argv[6::2], sys.argv[7::2], strict=True)]:
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for digests in fits(spark, Path(folder), Path(runs), forms.split(",")):
        print(json.dumps(digests))
    print(named(spark, Path(folder), Path(store)))
    stop(spark, Path(store))
    print("all well")


if __name__ == "__main__":
    main()
