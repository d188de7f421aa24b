"""Children of multiprocessing call the main script's module `__mp_main__`: its code is pickled as in the parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.programs]

SCRIPT = """
import multiprocessing, sys

import numpy as np

import hopyard as hy
from hopyard.code.digest import digest
from hopyard.frameworks.linear import Linear

SCALE = 0.5


class Net(Linear):
    def train(self, batch):
        return scaled(super().train(batch))


class Row:
    def __init__(self, value):
        self.value = value


def scaled(sums):
    return {name: (SCALE * total, rows) for name, (total, rows) in sums.items()}


def recipe(config):
    return Net(3, 2, lr=config["lr"], batch_size=16)


def total(args, ctx):
    ctx.report({"total": SCALE * sum(row.value for rows in ctx.feed().rows(10) for row in rows)})


def work(folder):
    x = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    data = hy.Dataset.numpy(x, (x[:, 0] > 0).astype(int), partitions=2, validation=0.2)
    run = hy.fit(recipe, {"lr": 0.1}, data, epochs=2, engine=hy.Local(workers=1), directory=f"{folder}/run")
    program = hy.launch(total, roles={"worker": 1}, engine=hy.Local(workers=1), directory=f"{folder}/program")
    program.feed([Row(number) for number in range(10)])
    program.wait(60)
    values = program.summary()["tasks"][0]["values"]
    print(__name__, run.best.digest, run.best.history, digest(recipe), values["total"], sep="|", flush=True)


if __name__ == "__main__":
    work("parent")
    child = multiprocessing.get_context(sys.argv[1]).Process(target=work, args=("child",))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("start", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_a_child_runs_what_its_parent_runs(tmp_path: Path, start: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py", start], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    parent, child = (line.split("|") for line in done.stdout.splitlines() if line.count("|") == 4)
    assert (parent[0], child[0]) == ("__main__", "__mp_main__")
    assert parent[1:] == child[1:] and parent[-1] == "22.5"
