"""Hopyard beside Ray Tune, and beside Optuna with joblib: trials that do nothing, successive halving of a small net.

    python benchmarks/peers/compare.py FOLDER

FOLDER gets an environment of its own for the peers, made with pip, unless it has one already. All have two workers.

- *No-op trials a second*: 1,000 of Hopyard's, each with its journal line, State and metrics on disk; 250 of Optuna's in
  a journal file; 60 of Ray's, plain and with `reuse_actors=True`, after a first call of four that is not counted.
- *Successive halving*: 64 configurations of a net in NumPy on digits, 27 epochs, reduction factor 3: seconds of the
  whole search, start of workers included, and seconds until the best loss that both sides found.

Figures are Hopyard's divided by the peer's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from net import BATCH, CONFIGS, EPOCHS, ETA, TRIALS, Net, best_so_far

import hopyard as hy
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Dispatch, Done
from hopyard.core.runs.machine import Machine
from hopyard.spec import Batch
from hopyard.store.journal import read
from hopyard.store.layout import Layout

PARTITIONS = 4
PACKAGES = ("ray[tune]", "optuna>=5,<6", "joblib", "numpy")


class Trained(hy.Trainable):
    """The net as Hopyard has it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.batch_size = BATCH
        self._net = Net(config)

    def state(self) -> Any:
        return {"weights": self._net.weights, "speed": self._net.speed}

    def load(self, tree: Any) -> None:
        for mine, theirs in ((self._net.weights, tree["weights"]), (self._net.speed, tree["speed"])):
            for name, values in theirs.items():
                mine[name] = np.array(values)

    def train(self, batch: Batch) -> dict[str, tuple[float, float]]:
        return {"loss": (self._net.step(batch.inputs, batch.targets), batch.rows)}

    def evaluate(self, batch: Batch) -> dict[str, tuple[float, float]]:
        return {"loss": (self._net.loss(batch.inputs, batch.targets), batch.rows)}


class Nothing(hy.Trainable):
    """A trial that does nothing."""

    batch_size = 8

    def state(self) -> Any:
        return {"n": np.zeros(1)}

    def load(self, tree: Any) -> None:
        pass

    def train(self, batch: Batch) -> dict[str, tuple[float, float]]:
        return {"loss": (0.0, batch.rows)}

    def evaluate(self, batch: Batch) -> dict[str, tuple[float, float]]:
        return self.train(batch)


def nothing(config: dict[str, Any]) -> Nothing:
    return Nothing()


def improved(directory: Path) -> list[tuple[float, float]]:
    """Return (seconds since the first dispatch, loss) whenever a validation loss was the best so far."""
    machine: Machine | None = None
    began, known, losses = 0.0, 0, []
    for line in read(Layout(directory).journal, CODEC):
        machine = Machine(line.spec) if machine is None else machine  # type: ignore[union-attr]
        machine.apply(line)
        machine.settle()
        began = began or (line.at if isinstance(line, Dispatch) else 0.0)
        histories = [trial.history for trial in machine.trials.values()]
        if isinstance(line, Done) and sum(map(len, histories)) > known:
            known = sum(map(len, histories))
            losses.append((line.at - began, min(v["val_loss"] for history in histories for v in history.values())))
    return best_so_far(losses)


def when(losses: list[tuple[float, float]], goal: float) -> float:
    """Return the seconds until a loss was as good as the goal."""
    return next(seconds for seconds, loss in losses if loss <= goal)


def ours(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Return the same numbers as `peer.py` does."""
    engine = hy.Local(workers=2, devices=None)
    rows = hy.Dataset.numpy(np.zeros((8, 1)), np.zeros(8, int), validation=0, partitions=1)
    began = time.time()
    hy.select(
        nothing, None, rows, search=hy.Configs([{"n": n} for n in range(TRIALS)]), epochs=1, metric="loss", mode="min",
        engine=engine, directory=folder / "nothing",
    )  # fmt: skip
    result: dict[str, Any] = {"noop": TRIALS / (time.time() - began)}
    digits = hy.Dataset.numpy(
        data["x"], data["y"], validation=hy.Dataset.numpy(data["val_x"], data["val_y"]), partitions=PARTITIONS,
    )  # fmt: skip

    def select(name: str, stop: Any) -> hy.Run:
        return hy.select(
            Trained, None, digits, search=hy.Configs(CONFIGS), epochs=EPOCHS, metric="val_loss", mode="min", stop=stop,
            engine=engine, directory=folder / name, exact=False,
        )  # fmt: skip

    began = time.time()
    run = select("asha", hy.ASHA(ETA))
    result["seconds"] = time.time() - began
    result["losses"] = improved(run.directory)
    return result


def digits() -> dict[str, Any]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / 16, y[order]
    val, rows = slice(360), slice(360, 360 + PARTITIONS * 11 * BATCH)  # no batch of a partition is short
    return {"x": x[rows], "y": y[rows], "val_x": x[val], "val_y": y[val]}


def main() -> None:
    environment = Path(sys.argv[1])
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder, data = Path(name), digits()
        np.savez(folder / "digits.npz", **data)
        mine = ours(folder, data)
        print("Hopyard", mine, flush=True)
        for peer in ("ray", "optuna"):
            script = Path(__file__).with_name("peer.py")
            done = subprocess.run(
                [str(python), str(script), peer, str(folder / "digits.npz")],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            theirs = json.loads(done.stdout.splitlines()[-1])
            goal = max(side["losses"][-1][1] for side in (mine, theirs))
            pairs = {key: (mine["noop"], theirs.get(key)) for key in ("noop", "noop_reused")}
            pairs["seconds"] = mine["seconds"], theirs["seconds"]
            pairs[f"to {goal:.4f}"] = when(mine["losses"], goal), when(theirs["losses"], goal)
            best, own = (side["losses"][-1][1] for side in (theirs, mine))
            print(f"{peer} {theirs['version']}: its best is {best:.4f}, ours {own:.4f}")
            for key, (a, b) in pairs.items():
                if b:
                    print(f"  {key}: {a:.3g} ÷ {b:.3g} = {a / b:.2f}", flush=True)


if __name__ == "__main__":
    main()
