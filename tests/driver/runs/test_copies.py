"""A run trains, and builds its models from, what it was started with, whatever a notebook changes in its next cell; and
nothing of a run changes the user's own classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

CELL = """
import numpy as np, torch, hopyard as hy

DROPOUT, SCALE, WIDTH = 0.0, 1.0, 4

class Net(torch.nn.Module):
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, WIDTH), torch.nn.Dropout(DROPOUT), torch.nn.Linear(WIDTH, 2))

    def forward(self, x):
        return self.net(x) * self.factor

def recipe(config):
    net = Net()
    return hy.torch.Model(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.nn.functional.cross_entropy)

def scaled(batch):
    import pyarrow as pa
    columns = {name: batch.column(name) for name in batch.schema.names}
    values = np.stack(batch.column("inputs").to_pylist()).astype(np.float32) * SCALE
    columns["inputs"] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 3)
    return pa.RecordBatch.from_pydict(columns)

rng = np.random.default_rng(0)
x = rng.standard_normal((60, 3)).astype(np.float32)
y = (x.sum(1) > 0).astype(np.int64)

def go(name, engine=None, transform=None, **more):
    data = hy.Dataset.numpy(x, y, validation=0.2, partitions=2, transform=transform)
    engine = engine or hy.Local(1, devices=None)
    return hy.fit(recipe, {}, data, epochs=1, metric="val_loss", mode="min", engine=engine, directory=name, **more)

own = Net
"""


def cell(folder: Path, code: str) -> str:
    """Run a script that begins with CELL; what it printed last."""
    (folder / "cell.py").write_text(CELL + code)
    done = subprocess.run(
        [sys.executable, "cell.py"], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("engine", ["hy.Inline()", pytest.param("hy.Local(1, devices=None)", marks=pytest.mark.long)])
def test_the_next_run_has_what_was_changed(tmp_path: Path, engine: str) -> None:
    """Bug: cloudpickle gave a class back as it was when it was pickled, to the process that had changed it."""
    code = f"""
engine = {engine}
getattr(engine, "start", dict)()  # the workers of both runs are forks of one process
first = go("first", engine)
first.best.save("saved")
Net.factor = 3.0
DROPOUT = 0.9
assert hy.load("first").best.model() and hy.load_model("saved").model()
assert Net is own and Net.factor == 3.0 and Net.__init__.__globals__ is globals()
second = go("second", engine)
print(second.best.model().net[1].p, second.best.model().factor, first.trials[0].digest == second.trials[0].digest)
"""
    assert cell(tmp_path, code) == "0.9 3.0 False"


def test_models_are_those_that_were_trained(tmp_path: Path) -> None:
    """Bug: they were built from the user's objects as they had become since."""
    code = """
run = go("run", hy.Inline(), transform=scaled)
data = hy.Dataset.numpy(x, y, partitions=1)
def outcome(models):
    return models.evaluate(data), models.predict(x).tolist()
before = outcome(run.best)
assert isinstance(run.best.model(), Net)
for change in ("Net.factor = -2.0", "SCALE = 5.0", "WIDTH = 64", "del Net"):
    exec(change)
    assert outcome(run.best) == before == outcome(hy.load("run").best), change
    run.best.save(change)
    assert outcome(hy.load_model(change)) == before, change
print("equal")
"""
    assert cell(tmp_path, code) == "equal"


@pytest.mark.long
def test_workers_get_what_the_directory_has(tmp_path: Path) -> None:
    """Bug: a run in the background pickled its recipe a second time, when the user had gone on."""
    code = """
run = go("run", wait=False)
WIDTH = 64
Net.factor = 7.0
run.wait()
assert run.best.evaluate(hy.Dataset.numpy(x, y)) == hy.load("run").best.evaluate(hy.Dataset.numpy(x, y))
print([tuple(hy.load("run").best.model().net[0].weight.shape), run.best.model().factor])
"""
    assert cell(tmp_path, code) == "[(4, 3), 1.0]"
