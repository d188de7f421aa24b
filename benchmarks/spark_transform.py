"""`hopyard.spark.predict` on a DataFrame against its limit: a `mapInArrow` by hand, with the model in memory.

A Parquet file of 20 columns of doubles, a torch perceptron, two executors of one core and one thread each; all columns
are kept and the outputs added, and the result goes nowhere (`noop`). By hand: columns are stacked to float32, the whole
Arrow batch goes through the module, nothing is checked. Medians of interleaved repeats; ratio = our throughput /
theirs.

    python benchmarks/spark_transform.py [--rows 400000] [--repeats 7]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hopyard as hy
from hopyard.spark.inference.predict import predict

FEATURES = [f"f{i}" for i in range(20)]


def perceptron() -> Any:
    import torch

    return torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    )


def recipe(config: dict[str, Any]) -> Any:
    import torch

    net = perceptron()
    return hy.torch.Model(
        net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01), loss=torch.nn.functional.cross_entropy
    )


def by_hand(df: Any, weights: dict[str, np.ndarray]) -> Any:
    """What one would write."""
    names = FEATURES

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import torch

        torch.set_num_threads(1)
        net = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
        )
        net.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
        net.eval()
        for batch in batches:
            x = np.stack([batch.column(name).to_numpy() for name in names], axis=1).astype(np.float32)
            with torch.inference_mode():
                made = net(torch.from_numpy(x)).numpy()
            offsets = pa.array(np.arange(len(made) + 1, dtype=np.int32) * made.shape[1])
            column = pa.ListArray.from_arrays(offsets, pa.array(made.reshape(-1)))
            yield pa.RecordBatch.from_arrays([*batch.columns, column], names=[*batch.schema.names, "prediction"])

    from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

    return df.mapInArrow(run, StructType([*df.schema.fields, StructField("prediction", ArrayType(FloatType()))]))


def session(folder: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.files.maxPartitionBytes": str(16 << 20),
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def seconds(df: Any) -> float:
    start = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hopyard-bench-"))
    spark = session(folder)
    try:
        rng = np.random.default_rng(0)
        small = {name: rng.standard_normal(2000) for name in FEATURES} | {"y": rng.integers(0, 2, 2000)}
        data = hy.Dataset.arrow(pa.table(small), features=FEATURES, label="y", partitions=2)
        run = hy.fit(recipe, {}, data, epochs=1, engine=hy.Inline(), directory=folder / "run")
        table = pa.table({name: rng.standard_normal(given.rows) for name in FEATURES})
        pq.write_table(table, folder / "rows.parquet", row_group_size=50_000)
        df = spark.read.parquet(str(folder / "rows.parquet"))
        weights = {name: value.numpy() for name, value in run.best.model().state_dict().items()}
        ours, theirs = predict(run, df), by_hand(spark.read.parquet(str(folder / "rows.parquet")), weights)
        head = [np.array([row.prediction for row in one.limit(100).collect()]) for one in (ours, theirs)]
        assert np.allclose(*head, atol=1e-5)
        times: dict[str, list[float]] = {"hopyard": [], "by hand": []}
        for repeat in range(given.repeats + 1):
            for name, frame in (("hopyard", ours), ("by hand", theirs)):
                took = seconds(frame)
                if repeat:  # the first one brings workers up
                    times[name].append(took)
        found = {name: statistics.median(values) for name, values in times.items()}
        print(f"{given.rows:,} rows of {len(FEATURES)} features, {df.rdd.getNumPartitions()} Spark partitions")
        for name, value in found.items():
            print(
                f"{name:10s} {value:7.3f} s  {given.rows / value / 1e6:6.2f} M rows/s  (least {min(times[name]):.3f} s)"
            )
        print(f"ratio {found['by hand'] / found['hopyard']:.2f} (target 0.8)")
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
