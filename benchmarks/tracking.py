"""A run that is tracked to TensorBoard ÷ the same run without: units a second, and what the follower costs.

    python benchmarks/tracking.py [--trials 2000] [--repeats 7]

Trials of one epoch do nothing, on two workers: all the time that a run takes is Hopyard's, so nothing hides the
follower on a machine of two cores. Drivers are processes of their own, in turns.

Goal: 0.8 of the units a second.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import hopyard as hy
from hopyard.engines import followers
from nothing import Nothing, rows

RATIO = 0.8


def recipe(config: dict[str, Any]) -> Nothing:
    return Nothing()


def select(trials: int, directory: Path, data: hy.Dataset, engine: hy.Local, track: list[str]) -> None:
    hy.select(
        recipe, hy.Space(lr=hy.loguniform(1e-4, 1.0)), data, search=hy.Random(trials), epochs=1, metric="loss",
        mode="min", engine=engine, parallel=hy.Hopper(group="off"), directory=directory, exact=False, track=track,
    )  # fmt: skip


def drive(trials: int, tracked: bool) -> None:
    """Run, and print what it cost this process, which is the driver, its workers, and its follower."""
    data = rows()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        with contextlib.redirect_stdout(io.StringIO()), hy.Local(workers=2, devices=None) as engine:
            select(20, Path(folder) / "warm", data, engine, [])
            before, began = time.process_time(), time.perf_counter()
            select(trials, Path(folder) / "run", data, engine, ["tensorboard"] * tracked)
            seconds, own = time.perf_counter() - began, time.process_time() - before
        follower = 0.0
        for process in followers._running:
            follower = sum(os.wait4(process.pid, 0)[2][:2])
            process.returncode = 0
        files = sum(path.is_file() for path in Path(folder).glob("run/tensorboard/*/*/*"))
        assert files == trials * tracked
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    workers = used.ru_utime + used.ru_stime - follower
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    costs = {"rate": trials / seconds, "driver": own, "peak": peak, "run": own + workers, "follower": follower}
    sys.stdout.write(json.dumps(costs))


def driven(trials: int, tracked: bool) -> dict[str, float]:
    """Return what a run costs, with a driver in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, f"--trials={trials}", f"--drive={int(tracked)}"]
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    costs: dict[str, float] = json.loads(finished.stdout)
    return costs


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--drive", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive is not None:
        drive(given.trials, bool(given.drive))
        return 0
    costs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for number in range(given.repeats):
        for tracked in (False, True) if number % 2 else (True, False):
            costs[tracked].append(driven(given.trials, tracked))

    def middle(name: str, tracked: bool) -> float:
        return median(each[name] for each in costs[tracked])

    ratio = median(there["rate"] / without["rate"] for there, without in zip(costs[True], costs[False], strict=True))
    rates = f"{middle('rate', False):.0f} without, {middle('rate', True):.0f} tracked"
    print(f"units a second: {rates}; ratio {ratio:.2f} (goal: {RATIO} at least)")
    print(f"processor time of the follower: {middle('follower', True):.2f} s, of the run: {middle('run', True):.2f} s")
    for name, scale, unit in (("driver", 1.0, "s of its processor"), ("peak", 2.0**-20, "MB at its peak")):
        without, there = (scale * middle(name, tracked) for tracked in (False, True))
        print(f"the driver: {without:.2f} {unit} without, {there:.2f} tracked")
    return int(ratio < RATIO)


if __name__ == "__main__":
    raise SystemExit(main())
