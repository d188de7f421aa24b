"""The backlog of a long run: what a follower takes to bring 2,000 trials to MLflow ÷ what its own client takes for the
same runs, in turns; and the processor seconds of the follower.

    python benchmarks/mlflow_backlog.py sqlite [--trials 2000] [--repeats 3]
    python benchmarks/mlflow_backlog.py http://127.0.0.1:5000 [--trials 2000]

The run is played: its records, with four epochs of three metrics for each trial. The bare client writes the same runs,
but for the tag by which a follower goes on, with three calls for each: create_run, log_batch, set_terminated. `sqlite`
is a database of its own for each turn. Needs the extra `mlflow`.

Goal: a ratio of 1.2 at most.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
os.environ["MLFLOW_ENABLE_ASYNC_LOGGING"] = "false"

from mlflow import MlflowClient, set_tracking_uri
from mlflow.entities import Metric, Param, RunTag

from hopyard.store.layout import Layout
from hopyard.tracking import EpochEnded, Record, RunStarted, TrialEnded, TrialStarted
from hopyard.tracking.follower import News
from hopyard.tracking.mlflow.tracker import connect

RATIO, PORTION = 1.2, 2000
METRICS = ("loss", "val_loss", "val_accuracy")


def records(trials: int) -> list[Record]:
    """Return what happens in the run: four trials at a time."""
    made: list[Record] = [RunStarted(at=1e9, run=uuid.uuid4().hex, settings={"metric": "val_loss"}, facts={})]
    for first in range(0, trials, 4):
        at, group = 1e9 + first, range(first, min(first + 4, trials))
        made += [TrialStarted(at=at, trial=n, attempt=0, config={"lr": n / trials, "width": n}) for n in group]
        for epoch in range(1, 5):
            values = dict.fromkeys(METRICS, 1.0 / epoch)
            made += [
                EpochEnded(at=at + epoch, trial=n, attempt=0, epoch=epoch, step=epoch, metrics=values) for n in group
            ]
        end: dict[str, Any] = {"attempt": 0, "status": "completed", "epoch": 4, "digest": "d" * 64, "seconds": 4.0}
        made += [TrialEnded(at=at + 5, trial=n, metrics=dict.fromkeys(METRICS, 0.25), **end) for n in group]
    return made


def follow(uri: str, name: str, every: list[Record], folder: Path) -> None:
    """Send the records as a follower does that has a backlog."""
    (folder / "run.json").write_text('{"data": "d", "rows": 1, "sources": ["rows.parquet"]}')
    mlflow = connect(uri, Layout(folder), {"MLFLOW_EXPERIMENT_NAME": name})
    machine: Any = SimpleNamespace(trials={}, spec=SimpleNamespace(metric="val_loss", mode="min", objectives=()))
    for first in range(0, len(every), PORTION):
        part = every[first : first + PORTION]
        mlflow.update(News(tuple(part), machine, "running", part[-1].at))


def bare(uri: str, name: str, trials: int) -> None:
    """Create the same runs by the client alone."""
    client = MlflowClient(uri)
    experiment = client.create_experiment(name)
    parent = client.create_run(experiment).info.run_id
    for number in range(trials):
        tags = {"mlflow.parentRunId": parent, "hopyard.run": name, "hopyard.trial": str(number)}
        tags["hopyard.attempt"] = "0"
        run = client.create_run(experiment, 0, tags, f"trial {number}").info.run_id
        values = [Metric(key, 1.0 / epoch, epoch, epoch) for epoch in range(1, 5) for key in METRICS]
        values.append(Metric("best_val_loss", 0.25, 5, 4))
        texts = {"status": "completed", "digest": "d" * 64, "epoch": "4"}
        ends = [RunTag(f"hopyard.{key}", text) for key, text in texts.items()]
        client.log_batch(run, values, [Param("lr", str(number)), Param("width", str(number))], ends)
        client.set_terminated(run, "FINISHED", 5)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("uri")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    every = records(given.trials)
    seconds: dict[str, list[float]] = {"follower": [], "bare": []}
    cpu = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for turn in range(given.repeats):
            for kind in ("follower", "bare") if turn % 2 else ("bare", "follower"):
                uri = f"sqlite:///{folder}/{turn}-{kind}.db" if given.uri == "sqlite" else given.uri
                set_tracking_uri(uri)
                MlflowClient(uri).search_experiments()  # makes the tables
                began, busy = time.perf_counter(), time.process_time()
                if kind == "bare":
                    bare(uri, uuid.uuid4().hex, given.trials)
                else:
                    follow(uri, uuid.uuid4().hex, every, Path(folder))
                    cpu.append(time.process_time() - busy)
                seconds[kind].append(time.perf_counter() - began)
    for kind, times in seconds.items():
        print(f"{kind}: {1e3 * statistics.median(times) / given.trials:.1f} ms a trial")
    ratio = statistics.median(a / b for a, b in zip(seconds["follower"], seconds["bare"], strict=True))
    print(f"follower ÷ bare client: {ratio:.2f} (goal: {RATIO} at most)")
    print(f"processor time of the follower: {statistics.median(cpu):.1f} s for {given.trials} trials")
    return int(ratio > RATIO)


if __name__ == "__main__":
    raise SystemExit(main())
