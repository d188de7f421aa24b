"""Dataset.spark against what Spark itself would do: `df.write.parquet`, then bare pyarrow reading all of it.

Ours: one job writes the partitions, then this host fetches every partition (digests compared, rows finished, written as
memory-mapped columns) and goes over it once. Theirs: Spark writes Parquet, pyarrow decodes each file to NumPy. Neither
side caches the DataFrame; what it costs Spark to make the rows is in both. Medians of interleaved repeats; ratio = our
throughput / theirs.

    python benchmarks/spark_data.py [--rows 1000000] [--repeats 5] [--master local-cluster[2,1,2048]]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.dataset import Dataset
from hopyard.data.partitions.mapped import open_partition

COLUMNS = [f"f{i}" for i in range(10)]


def sources(spark: Any, folder: Path, rows: int) -> dict[str, tuple[Any, Any]]:
    """name → (DataFrame, features): 10 doubles; one array of 10 doubles. Both are read from Parquet files."""
    rng = np.random.default_rng(0)
    for number in range(4):
        values = rng.normal(size=(rows // 4, 10))
        columns: dict[str, Any] = {name: values[:, i] for i, name in enumerate(COLUMNS)}
        labels = rng.integers(0, 2, rows // 4)
        for kind in ("columns", "array"):
            (folder / kind).mkdir(exist_ok=True)
            if kind == "array":
                offsets = pa.array(np.arange(0, values.size + 1, 10, dtype=np.int32))
                columns = {"x": pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)))}
            pq.write_table(pa.table({**columns, "y": labels}), folder / kind / f"{number}.parquet")
    return {
        "10 doubles": (spark.read.parquet(str(folder / "columns")), COLUMNS),
        "array of 10 doubles": (spark.read.parquet(str(folder / "array")), "x"),
    }


def theirs_write(df: Any, out: Path) -> None:
    df.write.parquet(str(out))


def theirs_read(out: Path) -> float:
    total = 0.0
    for path in sorted(out.glob("*.parquet")):
        table = pq.read_table(path)
        for column in table.columns:
            for chunk in column.chunks:
                values = chunk.flatten() if isinstance(chunk, pa.ListArray) else chunk
                total += float(values.to_numpy().sum())
    return total


def ours_write(df: Any, features: Any, store: Path) -> Dataset:
    data = Dataset.spark(df, features=features, label="y", partitions=8, path=store)
    data.prepare()
    return data


def ours_read(data: Dataset, cache: Path) -> float:
    manifest, total = data.prepare(cache), 0.0
    for number in range(len(manifest.train)):
        columns = open_partition(manifest, "train", number)
        total += float(columns.inputs.sum()) + float(columns.targets.sum())
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--master", default="local-cluster[2,1,2048]")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(given.master).config("spark.ui.enabled", "false")
    spark = spark.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    folder = Path(tempfile.mkdtemp(prefix="hopyard-bench-"))
    try:
        print(f"{given.rows:,} rows on {given.master}; medians of {given.repeats}")
        for name, (df, features) in sources(spark, folder, given.rows).items():
            measured(name, df, features, folder, given.repeats)
    finally:
        spark.stop()
        shutil.rmtree(folder)


def measured(name: str, df: Any, features: Any, folder: Path, repeats: int) -> None:
    times: dict[str, list[float]] = {}
    made: list[Any] = []

    def clock(what: str, function: Callable[[], object]) -> None:
        start = time.perf_counter()
        made.append(function())
        times.setdefault(what, []).append(time.perf_counter() - start)

    for repeat in range(repeats + 1):
        clock("write, Spark to Parquet", lambda: theirs_write(df, folder / "out"))
        clock("read, bare pyarrow", lambda: theirs_read(folder / "out"))
        clock("write, hopyard", lambda: ours_write(df, features, folder / "store"))
        clock("read, hopyard", lambda: ours_read(made[-1], folder / "cache"))
        made.clear()
        for left in ("out", "store", "cache"):
            shutil.rmtree(folder / left)
        if not repeat:
            times.clear()  # warm JVM, workers and caches
    found = {what: statistics.median(values) for what, values in times.items()}
    for what, value in found.items():
        print(f"{name:20s} {what:28s} {value:7.3f} s")
    theirs = found["write, Spark to Parquet"] + found["read, bare pyarrow"]
    ours = found["write, hopyard"] + found["read, hopyard"]
    print(f"{name:20s} {theirs / ours:.2f} of Spark and pyarrow (target 0.8)")


if __name__ == "__main__":
    main()
