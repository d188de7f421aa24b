"""Rows from Spark into a program: beside a bare job that only counts them, and beside TensorFlowOnSpark's DataFeed.

    python benchmarks/feed.py [--rows 20000] [--repeats 5] [--peer PYTHON] [--only frame|rdd]

A cached DataFrame (784 distinct floats in an array, and a label) on two executors of one core each goes to two workers
that take batches of 256 as NumPy arrays and do nothing else. Limit: the same partitions through a `mapInArrow` that
counts (of an RDD: `mapPartitions`). Bare jobs for 10 s, one warm-up, then interleaved repeats; medians.

The peer needs an environment of its own:

    python3.11 -m venv peer && peer/bin/pip install tensorflowonspark==2.2.5 pyspark==3.5.9 tensorflow-cpu==2.21 \
        'setuptools<66' 'pandas<3' pyarrow
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

os.environ["PYSPARK_PYTHON"] = sys.executable

import hopyard as hy

WIDTH = 784
ALLOWED = {"frame": 0.8, "train": 0.5, "inference": 0.45}
PEER_ROWS = 4000
PEER = """
import sys, time
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from tensorflowonspark import TFCluster, TFNode
def fun(args, ctx):
    import numpy as np
    from tensorflowonspark import TFNode
    feed = TFNode.DataFeed(ctx.mgr, True)
    while not feed.should_stop():
        batch = feed.next_batch(256)
        if batch: np.array([row[0] for row in batch], dtype=np.float32)
conf = SparkConf().set("spark.task.maxFailures", "1").set("spark.ui.enabled", "false")
conf = conf.set("spark.driver.host", "127.0.0.1").set("spark.ui.showConsoleProgress", "false")
sc = SparkContext("local-cluster[2,1,2048]", "peer", conf=conf)
sc.setLogLevel("OFF"); spark = SparkSession(sc)
frames = {p: spark.read.parquet(sys.argv[1]).repartition(p).cache() for p in (2, 40)}
rows = {p: frame.count() for p, frame in frames.items()}
cluster = TFCluster.run(sc, fun, {}, 2, 0, input_mode=TFCluster.InputMode.SPARK, master_node="chief")
print("up", flush=True)
for line in sys.stdin:
    p = int(line); began = time.time(); cluster.train(frames[p].rdd, 1)
    print(rows[p] / (time.time() - began), flush=True)
cluster.shutdown(grace_secs=1); sc.stop()
"""


class Peer:
    """TensorFlowOnSpark in its own environment, up all the time; idle unless asked."""

    def __init__(self, python: str, folder: Path) -> None:
        rows = np.random.default_rng(1).random((PEER_ROWS, WIDTH), dtype=np.float32)
        table = pa.table({"x": list(rows), "y": np.arange(PEER_ROWS) % 10})
        pa.parquet.write_table(table, folder / "peer.parquet")
        script = folder / "peer.py"
        script.write_text(PEER)
        environment = {**os.environ, "PYSPARK_PYTHON": python, "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [python, str(script), str(folder / "peer.parquet")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            text=True,
        )
        self._answer("up")

    def rate(self, partitions: int) -> float:
        """Rows per second of `TFCluster.train(df.rdd)`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{partitions}\n")
        self._process.stdin.flush()
        return float(self._answer(""))

    def _answer(self, word: str) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.strip() == word or (not word and line.strip().replace(".", "").isdigit()):
                return line.strip()
        raise RuntimeError("the peer ended")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)


def counts(names: list[str], ctx: Any) -> None:
    for name in names:
        rows = 0
        for batch in ctx.feed(name).batches(256):
            rows += len(batch["x"])
        ctx.report({name: rows})


def fed(args: Any, ctx: Any) -> None:
    """As a program of TensorFlowOnSpark reads rows."""
    import numpy as np

    from hopyard.compat.tensorflowonspark import TFNode

    feed = TFNode.DataFeed(ctx.mgr, args == "train")
    while not feed.should_stop():
        batch = feed.next_batch(256)
        x = np.array([row[0] for row in batch], dtype=np.float32)
        if args == "infer" and batch:
            feed.batch_results(x.sum(1).tolist())


def frame(spark: Any, rows: int) -> Any:
    def made(batches: Any) -> Any:
        import numpy as np
        import pyarrow as pa

        for batch in batches:
            ids = batch.column(0).to_numpy()
            x = np.stack([np.random.default_rng(int(n)).random(WIDTH, dtype=np.float32) for n in ids])
            ends = pa.array(np.arange(0, len(ids) * WIDTH + 1, WIDTH, dtype=np.int32))
            columns = [pa.ListArray.from_arrays(ends, pa.array(x.reshape(-1))), pa.array(ids % 10)]
            yield pa.record_batch(columns, names=["x", "y"])

    found = spark.range(0, rows, 1, 2).mapInArrow(made, "x array<float>, y long").cache()
    found.count()
    return found


def counted(batches: Any) -> Any:
    import pyarrow as pa

    yield pa.record_batch([pa.array([sum(batch.num_rows for batch in batches)])], names=["n"])


def trained(cluster: Any, data: Any) -> None:
    cluster.train(data, 1)


def asked(cluster: Any, data: Any) -> None:
    cluster.inference(data).count()


def interleaved(
    repeats: int, ours: Callable[[], float], bare: Callable[[], float], peer: Peer | None, partitions: int
) -> tuple[list[float], list[float], list[float]]:
    """Rates of each, the warm-up first. Who begins changes, as whoever comes after the peer finds colder caches. The
    peer takes 20 s at 40 partitions and minutes at 400: there it is asked three times, and never."""
    rates: tuple[list[float], list[float], list[float]] = ([], [], [])
    asked = {2: repeats + 1, 40: 3}.get(partitions, 0) if peer is not None else 0
    for repeat in range(repeats + 1):
        turns = [(rates[0], ours), (rates[1], bare)]
        if peer is not None and repeat < asked:
            turns.append((rates[2], lambda: peer.rate(partitions)))
        first = repeat % len(turns)
        for found, rate in turns[first:] + turns[:first]:
            found.append(rate())
    return rates


def settle(bare: Callable[[], Any], seconds: float = 10.0) -> None:
    """Bare jobs until the JVMs have compiled what they use, which takes a core of two in the first seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        bare()


def timed(work: Callable[..., Any], *args: Any, **how: Any) -> float:
    began = time.perf_counter()
    work(*args, **how)
    return time.perf_counter() - began


def frames(spark: Any, base: Any, options: Any, peer: Peer | None) -> bool:
    good = True
    for partitions in (2, 40, 400):
        data = (base if partitions == 2 else base.repartition(partitions)).cache()
        data.count()
        settle(data.mapInArrow(counted, "n long").collect)
        names = [f"rows-{n}" for n in range(options.repeats + 1)]
        roles, engine = {"worker": 2}, hy.Spark(spark, workers=2, release_cores=True)
        program = hy.launch(counts, names, roles=roles, engine=engine, directory=place())
        following = iter(names)

        def ours(program: Any = program, data: Any = data, following: Any = following) -> float:
            return options.rows / timed(program.feed, data, name=next(following))

        def bare(data: Any = data) -> float:
            return options.rows / timed(data.mapInArrow(counted, "n long").collect)

        rates = interleaved(options.repeats, ours, bare, peer, partitions)
        program.wait(60)
        for name in names:
            assert sum(task["values"][name] for task in program.summary()["tasks"]) == options.rows
        good &= told(f"DataFrame, {partitions} partitions", *rates, ALLOWED["frame"], 20)
    return good


def rdds(spark: Any, base: Any, options: Any, peer: Peer | None) -> bool:
    from hopyard.compat.tensorflowonspark import TFCluster

    good = True
    mode = TFCluster.InputMode.SPARK
    for what in ("train", "infer"):
        for partitions in (2, 40):
            data = (base if partitions == 2 else base.repartition(partitions)).cache().rdd
            settle(data.mapPartitions(lambda it: [sum(1 for _ in it)]).collect)
            cluster = TFCluster.run(spark.sparkContext, fed, what, 2, 0, input_mode=mode)

            def ours(what: str = what, cluster: Any = cluster, data: Any = data) -> float:
                return options.rows / timed(trained if what == "train" else asked, cluster, data)

            def bare(data: Any = data) -> float:
                return options.rows / timed(data.mapPartitions(lambda it: [sum(1 for _ in it)]).collect)

            rates = interleaved(options.repeats, ours, bare, peer if what == "train" else None, partitions)
            cluster.shutdown()
            title = f"{'TFCluster.train' if what == 'train' else 'TFCluster.inference'}(rdd), {partitions} partitions"
            good &= told(title, *rates, ALLOWED["train" if what == "train" else "inference"], 5)
    return good


def told(title: str, ours: list[float], bare: list[float], theirs: list[float], least: float, times: float) -> bool:
    """Print the medians without the warm-up; whether they are what is promised."""
    rate, ratio = statistics.median(ours[1:]), statistics.median(a / b for a, b in zip(ours[1:], bare[1:], strict=True))
    line = f"{title}: {rate:,.0f} rows/s, {ratio:.2f} of a bare count (at least {least})"
    good = ratio >= least
    if any(theirs):
        peer = statistics.median(theirs[1:])
        line += f"; {rate / peer:.1f} times TensorFlowOnSpark's {peer:,.0f} (at least {times:.0f})"
        good &= rate / peer >= times
    print(line, flush=True)
    return good


def place() -> Path:
    return Path(tempfile.mkdtemp(), "program")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer", default="")
    parser.add_argument("--only", choices=["frame", "rdd"])
    options = parser.parse_args()
    from pyspark.sql import SparkSession

    folder = Path(tempfile.mkdtemp())
    builder = SparkSession.builder.master("local-cluster[2,1,2048]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "2000").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    base = frame(spark, options.rows)
    peer = Peer(options.peer, folder) if options.peer else None
    good = True
    if options.only != "rdd":
        good &= frames(spark, base, options, peer)
    if options.only != "frame":
        good &= rdds(spark, base, options, peer)
    if peer is not None:
        peer.close()
    spark.stop()
    return not good


if __name__ == "__main__":
    sys.exit(main())
