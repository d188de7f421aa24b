"""A run beside a tracker that hangs, and beside one that answers ÷ the run without a follower: wall time, in turns.

    python benchmarks/follower.py [--repeats 9] [--seconds 2]

The tracker is the played server of Kubeflow Trainer that the tests have. Batches sleep, so that other work of the
machine disturbs little, and a run that waited for its follower would show; what the follower takes of a core is printed
beside it.

Goals: medians of 1.03 at most; 50 ms at most to start a follower.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import hopyard as hy
from hopyard.engines import followers
from hopyard.frameworks.linear import Linear
from hopyard.spec import Batch

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from api_servers import hang
from trainers import Trainer, trainer

RATIO, START = 1.03, 0.05
BATCH = 0.01
"""Seconds of a batch."""
CPU: list[float] = []
"""Processor seconds of followers."""


class Slow(Linear):
    """A Linear whose batches take their time."""

    def train(self, batch: Batch) -> Any:
        time.sleep(BATCH)
        return super().train(batch)


def slow(config: dict[str, Any]) -> Any:
    return Slow(4, 2, lr=config["lr"], batch_size=10)


def timed(kind: str, played: Trainer, folder: Path, batches: int, engine: Any) -> float:
    """Return the seconds of one run."""
    x = np.zeros((10 * batches, 4), np.float32)
    data = hy.Dataset.numpy(x, np.zeros(len(x), np.int64), validation=0, partitions=4)
    played.answer = hang if kind == "hangs" else None
    for name, value in played.environ.items():
        os.environ.pop(name, None)
        if kind != "without":
            os.environ[name] = value
    search = hy.Configs([{"lr": 0.1}, {"lr": 0.2}])
    began = time.perf_counter()
    hy.select(slow, None, data, search=search, epochs=1, metric="loss", mode="min", engine=engine, directory=folder)
    seconds = time.perf_counter() - began
    for process in followers._running:
        process.kill()
        CPU.append(sum(os.wait4(process.pid, 0)[2][:2]))
        process.returncode = -9
    followers._running.clear()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    kinds = ("without", "hangs", "answers")
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    starts = []
    start = followers.start

    def watched(*arguments: Any) -> None:
        began = time.perf_counter()
        start(*arguments)
        if arguments[0]:
            starts.append(time.perf_counter() - began)

    followers.start = watched  # type: ignore[assignment]
    batches = round(given.seconds / BATCH)
    with tempfile.TemporaryDirectory() as folder, trainer(Path(folder, "server")) as played, hy.Local(2) as engine:
        timed("without", played, Path(folder, "warm"), 10, engine)
        for number in range(given.repeats):
            for turn in range(len(kinds)):
                kind = kinds[(number + turn) % len(kinds)]
                times[kind].append(timed(kind, played, Path(folder, f"{kind}-{number}"), batches, engine))
    base = statistics.median(times["without"])
    print(f"without a follower: {base:.3f} s, from {min(times['without']):.3f} to {max(times['without']):.3f}")
    worst = 0.0
    for kind in kinds[1:]:
        ratio = statistics.median(there / without for there, without in zip(times[kind], times["without"], strict=True))
        worst = max(worst, ratio)
        print(f"the tracker {kind}: {statistics.median(times[kind]):.3f} s, ratio {ratio:.3f} (goal: {RATIO} at most)")
    print(f"to start a follower: {1e3 * statistics.median(starts):.1f} ms (goal: 50 at most)")
    print(f"what a follower took of a core meanwhile: {statistics.median(CPU):.2f} s")
    return int(worst > RATIO or statistics.median(starts) > START)


if __name__ == "__main__":
    raise SystemExit(main())
