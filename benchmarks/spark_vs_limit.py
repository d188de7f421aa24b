"""Two Spark executors against two local processes, and how soon workers are up against Spark's own TorchDistributor.

    python benchmarks/spark_vs_limit.py [--repeats 3] [--only torch|keras|start]

The same selection (the nets, rows and configurations of `efficiency.py` and `keras_vs_limit.py`) by
`hy.Local(workers=2)` and by `hy.Spark(spark, workers=2)` on `local-cluster[2,1,1024]`, in turn: executors are processes
of their own, on this machine. The clock of both runs from the moment when all agents are up (the last `Joined`) until
the run has finished; the final States must have equal digests. Ratio: Spark ÷ local.

Start: from the call until every worker has imported torch, and the same of
`TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(function that imports torch)`, until both of its
processes have it. The session is up and warm (a Python job was run) before both.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import efficiency
import hopyard as hy
import keras_vs_limit
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Began, Finished, Joined
from hopyard.store.journal import read
from hopyard.store.layout import Layout

WORKERS = 2
ALLOWED = {"torch": 1.10, "keras": 1.10, "start": 0.5}


@contextlib.contextmanager
def session() -> Iterator[Any]:
    """Two executors of one core each, warm."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local-cluster[{WORKERS},1,1024]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for _ in range(3):
        spark.range(0, WORKERS, 1, WORKERS).mapInArrow(lambda batches: batches, "id long").collect()
    yield spark
    spark.stop()


def measured(engine: Any, recipe: Callable[..., Any], configs: Any, epochs: int, metric: str, data: Any) -> Any:
    """(seconds from all agents up to the end, seconds until they are up, digests of the final States)."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = hy.select(
            recipe,
            None,
            data,
            search=hy.Configs(configs),
            epochs=epochs,
            metric=metric,
            mode="min",
            engine=engine,
            directory=Path(folder) / "run",
        )
        lines = list(read(Layout(run.directory).journal, CODEC))
        began = next(line.at for line in lines if isinstance(line, Began))
        ups = [line.at for line in lines if isinstance(line, Joined)]
        assert len(ups) == WORKERS, "a worker was lost, or came too late to take part"
        (end,) = [line.at for line in lines if isinstance(line, Finished)]
        return end - max(ups), max(ups) - began, [trial.digest for trial in run.trials]


def compare(name: str, engines: dict[str, Any], repeats: int, *job: Any) -> float:
    """Median of the ratios Spark ÷ local."""
    ratios = []
    for repeat in range(repeats):
        found = {where: measured(engine, *job) for where, engine in engines.items()}
        assert found["local"][2] == found["spark"][2], "the digests differ: not the same work"
        ratios.append(found["spark"][0] / found["local"][0])
        print(
            f"{name}, repeat {repeat}: local {found['local'][0]:.2f} s (up after {found['local'][1]:.2f}), Spark "
            f"{found['spark'][0]:.2f} s (up after {found['spark'][1]:.2f}), ratio {ratios[-1]:.3f}; equal digests",
            flush=True,
        )
    return statistics.median(ratios)


def start(spark: Any, repeats: int) -> float:
    """Median of the ratios of how long it takes until two workers have torch."""
    from pyspark.ml.torch.distributor import TorchDistributor

    data = hy.Dataset.numpy(*efficiency.make(4_000), validation=0.2, partitions=2)
    data.prepare()

    def wait(config: dict[str, Any]) -> Any:
        time.sleep(1.0)  # so that the second worker has something to do as well
        return efficiency.recipe(config)

    ratios = []
    for repeat in range(repeats):
        _, ours, _ = measured(hy.Spark(spark, workers=WORKERS), wait, efficiency.configs()[:4], 1, "loss", data)
        with tempfile.TemporaryDirectory() as folder:
            begun = time.time()

            def up(folder: str = folder) -> None:
                import torch  # noqa: F401

                Path(folder, os.environ["RANK"]).write_text(str(time.time()))

            with contextlib.redirect_stdout(io.StringIO()):
                TorchDistributor(num_processes=WORKERS, local_mode=False, use_gpu=False).run(up)
            whole = time.time() - begun
            theirs = max(float(path.read_text()) for path in Path(folder).iterdir()) - begun
        ratios.append(ours / theirs)
        print(
            f"start, repeat {repeat}: agents up after {ours:.2f} s, TorchDistributor's processes after {theirs:.2f} s "
            f"(its no-op took {whole:.2f} s), ratio {ratios[-1]:.3f}",
            flush=True,
        )
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=list(ALLOWED))
    asked = parser.parse_args()
    found = {}
    with session() as spark:
        engines = {"local": hy.Local(workers=WORKERS, devices=None), "spark": hy.Spark(spark, workers=WORKERS)}
        if asked.only in (None, "torch"):
            rows = int(efficiency.SIZES["long"] * efficiency.PARTITIONS / 0.8)
            data = hy.Dataset.numpy(*efficiency.make(rows), validation=0.2, partitions=efficiency.PARTITIONS)
            data.prepare()
            job = (efficiency.recipe, efficiency.configs(), efficiency.EPOCHS, "val_loss", data)
            found["torch"] = compare("torch", engines, asked.repeats, *job)
        if asked.only in (None, "keras"):
            data = hy.Dataset.numpy(*keras_vs_limit.rows(15_000), validation=0.2, partitions=4)
            data.prepare()
            configs = [
                {"hidden": hidden, "lr": lr, "batch_size": size}
                for hidden in (64, 128)
                for lr in (1e-3, 3e-3)
                for size in (32, 64)
            ]
            found["keras"] = compare("keras", engines, asked.repeats, keras_vs_limit.mlp, configs, 8, "val_loss", data)
        if asked.only in (None, "start"):
            found["start"] = start(spark, asked.repeats)
    for name, ratio in found.items():
        print(f"{name}: {ratio:.3f} (at most {ALLOWED[name]})")


if __name__ == "__main__":
    main()
