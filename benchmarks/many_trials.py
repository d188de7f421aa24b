"""What a trial costs the driver as their number grows: seconds of its processor for each unit, bytes for each trial.

    python benchmarks/many_trials.py

Real runs on two workers, whose units do nothing. All have 10,000 units of training, as 10 trials of 1,000 epochs, 100
of 100, 1,000 of 10, and 10,000 of one; each driver is a process of its own. The cost of a unit should not depend on the
number of trials (± 20 %). The memory of a trial is the growth of the driver's peak from 1,000 trials of one epoch to
10,000; the goal is at most 10 KB.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import hopyard as hy
from nothing import Nothing, rows

UNITS = 10_000
TRIALS = (10, 100, 1_000, 10_000)
REPEATS = 3


def recipe(config: dict[str, Any]) -> Nothing:
    return Nothing()


def drive(trials: int, epochs: int) -> None:
    """Run, and print what it cost this process, which is the driver."""
    data = rows()
    with tempfile.TemporaryDirectory(dir=".") as folder, contextlib.redirect_stdout(io.StringIO()):
        before = time.process_time()
        run = hy.select(
            recipe, hy.Space(lr=hy.loguniform(1e-4, 1.0)), data, search=hy.Random(trials), epochs=epochs,
            metric="loss", mode="min", engine=hy.Local(workers=2, devices=None), parallel=hy.Hopper(group="off"),
            directory=Path(folder) / "run", exact=False,
        )  # fmt: skip
        seconds = time.process_time() - before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert all(trial.status == "completed" for trial in run.trials)
    sys.stdout.write(json.dumps({"seconds": seconds, "peak": peak}))


def driven(trials: int, epochs: int) -> dict[str, float]:
    """Return what a run costs a driver in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, str(trials), str(epochs)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    costs: dict[str, float] = json.loads(finished.stdout)
    return costs


def main() -> None:
    if len(sys.argv) > 1:
        drive(int(sys.argv[1]), int(sys.argv[2]))
        return
    costs: dict[int, list[float]] = {trials: [] for trials in TRIALS}
    for _ in range(REPEATS):
        for trials in TRIALS:
            costs[trials].append(driven(trials, UNITS // trials)["seconds"] / UNITS * 1e3)
    first = median(costs[TRIALS[0]])
    for trials, each in costs.items():
        ratio = median(each) / first
        print(f"{trials:6,} trials: {median(each):.3f} ms of the driver a unit, {ratio:.2f} of {TRIALS[0]}'s")
    few, many = (driven(trials, 1)["peak"] for trials in (1_000, 10_000))
    print(f"memory: {(many - few) / 9_000 / 1024:.1f} KB a trial (at most 10)")


if __name__ == "__main__":
    main()
