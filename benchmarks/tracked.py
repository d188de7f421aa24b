"""The selection of efficiency.py beside TensorBoard and MLflow ÷ the same one without: wall time, in turns.

    python benchmarks/tracked.py [--repeats 10] [--size short]

Workers take both cores of a machine of two, so all that followers take is seen. MLflow is the played server of the
tests, in a process of the lowest priority: one that answers, and one that hangs in each call.

Goal: medians of 1.02 at most, and equal weights.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import hopyard as hy
from efficiency import PARTITIONS, SIZES, make, run_hopyard

RATIO = 1.02
TESTS = Path(__file__).parents[1] / "tests"


@contextlib.contextmanager
def server(*, hangs: bool) -> Iterator[str]:
    """Play MLflow in a process, and yield its URL."""
    command = [sys.executable, __file__, "--serve", str(int(hangs))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def serve(hangs: bool) -> None:
    sys.path.append(str(TESTS))
    from api_servers import hang
    from hopyard.tracking.__main__ import yield_cores
    from mlflow_server import mlflow_server

    yield_cores()
    with mlflow_server() as played:
        if hangs:
            played.before = lambda number, handler: bool(hang(handler)) or True
        print(played.url, flush=True)
        time.sleep(3600)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--size", choices=SIZES, default="long")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(bool(given.serve))
        return 0
    x, y = make(int(SIZES[given.size] * PARTITIONS / 0.8))
    data = hy.Dataset.numpy(x, y, validation=0.2, partitions=PARTITIONS)
    times: dict[str, list[float]] = {"without": [], "answers": [], "hangs": []}
    with tempfile.TemporaryDirectory() as folder, server(hangs=False) as well, server(hangs=True) as ill:
        tracks: dict[str, tuple[str, ...]] = {"without": ()}
        tracks |= {"answers": ("tensorboard", f"mlflow={well}"), "hangs": ("tensorboard", f"mlflow={ill}")}
        run_hopyard(data, Path(folder), "auto")
        weights = set()
        for number in range(given.repeats):
            for turn in range(len(tracks)):
                kind = list(tracks)[(number + turn) % len(tracks)]
                seconds, _, _, made = run_hopyard(data, Path(folder), "auto", tracks[kind])
                times[kind].append(seconds)
                weights.add(str(sorted(made.items())))
    assert len(weights) == 1, "the weights differ"
    worst = 0.0
    for kind in ("answers", "hangs"):
        ratio = statistics.median(a / b for a, b in zip(times[kind], times["without"], strict=True))
        worst = max(worst, ratio)
        print(f"{kind}: {statistics.median(times[kind]):.2f} s, ratio {ratio:.3f} (goal: {RATIO} at most)")
    print(f"without: {statistics.median(times['without']):.2f} s; all weights are equal")
    return int(worst > RATIO)


if __name__ == "__main__":
    raise SystemExit(main())
