"""From `hy.launch` to the first line of the last `main`, TensorFlow imported: 1 parameter server and 2 workers on Spark
executors of one core, beside `TorchDistributor` with three tasks and the same import, and beside three bare processes
that import TensorFlow at once. And how long a program that idles takes to stop.

Spark is up: its executors have run Python before. Their first job in Python takes seconds whatever it does, which is
printed, and not counted.

    python benchmarks/program_start.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["OMP_NUM_THREADS"] = "1"

import hopyard as hy

BARE = "import sys, time, tensorflow; open(sys.argv[1], 'w').write(str(time.time()))"


def arrives(folder: str, ctx: Any) -> None:
    import os
    import time
    from pathlib import Path

    import tensorflow  # noqa: F401

    Path(folder, f"{ctx.role}-{ctx.index}").write_text(str(time.time()))
    if os.environ.get("STAY") or ctx.role == "ps":
        time.sleep(1000)


def task(folder: str) -> None:
    import os
    import time
    from pathlib import Path

    import tensorflow  # noqa: F401

    Path(folder, os.environ["RANK"]).write_text(str(time.time()))


def last(folder: Path, began: float) -> float:
    """Seconds until the last of three arrived."""
    while len(files := [path for path in folder.iterdir() if path.read_text()]) < 3:
        time.sleep(0.01)
    return max(float(path.read_text()) for path in files) - began


def launched(spark: Any, folder: Path) -> tuple[float, float]:
    """(seconds until the last main has begun, seconds that the stop takes)"""
    engine = hy.Spark(spark, workers=3)
    began = time.time()
    roles = {"worker": 2, "ps": 1}
    program = hy.launch(
        arrives,
        str(folder),
        roles=roles,
        engine=engine,
        env={"STAY": "1"},
        directory=Path(tempfile.mkdtemp(), "program"),
    )
    start = last(folder, began)
    began = time.time()
    program.stop()
    return start, time.time() - began


def distributed(folder: Path) -> float:
    from pyspark.ml.torch.distributor import TorchDistributor

    began = time.time()
    TorchDistributor(num_processes=3, local_mode=False, use_gpu=False).run(task, str(folder))
    return last(folder, began)


def bare(folder: Path) -> float:
    began = time.time()
    processes = [subprocess.Popen([sys.executable, "-c", BARE, str(folder / str(n))]) for n in range(3)]
    for process in processes:
        process.wait()
    return last(folder, began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local-cluster[3,1,1024]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    bare(Path(tempfile.mkdtemp()))  # reads TensorFlow's files from the disk
    began = time.time()
    spark.sparkContext.parallelize(range(3), 3).map(lambda number: number).collect()
    print(f"the session's first job in Python, which does nothing: {time.time() - began:.2f} s (Spark's own)")
    spark.range(0, 3, 1, 3).mapInArrow(lambda batches: batches, "id long").collect()
    ours, stops, theirs, limits = [], [], [], []
    for _ in range(repeats):
        found = [Path(tempfile.mkdtemp()) for _ in range(3)]
        start, stop = launched(spark, found[0])
        other = distributed(found[1])
        limit = bare(found[2])
        print(
            f"hopyard {start:.2f} s, stop {stop:.2f} s | TorchDistributor {other:.2f} s | bare {limit:.2f} s",
            flush=True,
        )
        ours.append(start), stops.append(stop), theirs.append(other), limits.append(limit)
    spark.stop()
    start, other, limit = statistics.median(ours), statistics.median(theirs), statistics.median(limits)
    print(f"start / TorchDistributor: {start / other:.3f} (at most 0.5)")
    print(f"start - bare imports: {start - limit:+.2f} s (at most +1.5)")
    print(f"stop: {statistics.median(stops):.2f} s (less than 2)")


if __name__ == "__main__":
    main()
