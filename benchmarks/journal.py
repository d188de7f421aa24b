"""What a large run's journal takes on disk, and what reading it takes of memory and time.

    python benchmarks/journal.py [--trials 10000] [--epochs 10] [--partitions 8] [--bins 0]

The machine itself plays the run against a virtual clock: two metrics, digests, sizes and times of as many digits as
real ones have. Then each reader reads the journal in a process of its own: the plain fold, `hopyard ls`, `hopyard
show`, the chart, `hy.load`, and a resume that trains one trial anew, to its report and its chart. The goal is at most
500 bytes a unit (without `--bins`) and 300 MB in each reader for the 800,000 units of the default.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

import hopyard as hy
from hopyard.core.runs.codec import CODEC, encode
from hopyard.core.runs.events import Began, Done, Durable, Line
from hopyard.core.runs.machine import Machine
from hopyard.frameworks.linear import Linear
from hopyard.sim.world import World, lengths
from hopyard.spec import Array, Part, Ref, RunSpec, Unit
from hopyard.store.journal import read
from hopyard.store.layout import Layout
from hopyard.store.states import LocalStore

SLOTS = 64
BEGAN = 1_760_000_000.0
SIZE = 1_234_567
"""Bytes of a State."""
READERS = {
    "fold": (
        "from hopyard.core.runs.events import CODEC; from hopyard.core.runs.machine import fold; "
        "from hopyard.store.journal import read; "
        "fold(read(Path(sys.argv[1]), CODEC))"
    ),
    "ls": "from hopyard.cli import app; app(['ls', sys.argv[2]])",
    "show": "from hopyard.cli import app; app(['show', sys.argv[2]])",
    "show --json": "from hopyard.cli import app; app(['show', '--json', sys.argv[2]])",
    "chart": "import hopyard as hy; hy.load(sys.argv[2]).gantt(sys.argv[2] + '/again.html')",
    "load": "import hopyard as hy; run = hy.load(sys.argv[2]); run.status, run.best.metrics, len(run.trials)",
    "resume": "import hopyard as hy; assert hy.resume(sys.argv[2]).status == 'completed'",
}
CHILD = """
import sys
from pathlib import Path
try:
    {reader}
except SystemExit as end:
    assert not end.code, end.code
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("peak", peak, file=sys.stderr)
"""


class Played(World):
    """A World whose lines are as long as those of a real run, and go to `write` one by one."""

    def __init__(self, spec: RunSpec, write: Callable[[Line], None], bins: int = 0) -> None:
        super().__init__(spec, SLOTS, lengths(spec.trials or 0, 0.5, 0.1, 0), keep=True)
        self.journal = self
        self.append = write
        self._dice = random.Random(0)
        self._bins = bins

    def _work(self, slot: int, unit: Unit) -> None:
        dice, parts = self._dice, []
        for partition in unit.partitions:
            sums: dict[str, Any] = {"loss": (dice.uniform(1, 4096), 4096.0)}
            sums["accuracy"] = float(dice.randrange(4096)), 4096.0
            if self._bins:
                sums["auc"] = Array.of([float(x) for x in dice.randbytes(self._bins)]), 4096.0
            parts.append(Part(partition, sums, round(self.seconds(unit, partition), 6)))
        spent = sum(part.seconds for part in parts)
        self.units += len(parts)
        done = Done(
            at=self.clock + spent,
            slot=slot,
            lease=unit.lease,
            parts=tuple(parts),
            seconds=round(spent + dice.uniform(0.001, 0.01), 6),
            memory_key=f"{slot}-1a2b3c4d-{dice.randrange(200)}.{dice.randrange(1000)}" if unit.kind == "train" else "",
            hop_seconds=round(dice.uniform(0.001, 0.1), 6),
            hop_bytes=SIZE,
        )
        self.later(spent, done)
        if unit.kind == "train":
            ref = Ref(unit.trial, unit.step + len(parts), unit.lease)
            digest = hashlib.sha256(f"{ref}".encode()).hexdigest()
            self.later(spent, Durable(at=self.clock + spent, slot=slot, ref=ref, digest=digest, bytes=SIZE))


def make(path: Path, began: Began, bins: int = 0) -> Machine:
    """Write the journal of a whole run; gives the machine that played it."""
    spec = began.spec
    with path.open("wb") as file:

        def write(line: Line) -> None:
            line = replace(began, at=BEGAN) if isinstance(line, Began) else replace(line, at=round(BEGAN + line.at, 6))
            file.write(encode(line) + b"\n")

        world = Played(spec, write, bins)
        world.run()
    return world.machine


def recipe(config: dict[str, Any]) -> Any:
    return Linear(2, 2, lr=0.1, batch_size=16)


def run_directory(directory: Path, trials: int, epochs: int, partitions: int, bins: int = 0) -> Layout:
    """The directory of a real run of one trial whose journal then tells of many trials."""
    x = np.zeros((16 * partitions, 2), np.float32)
    x[::2] = 1
    hy.select(
        recipe,
        None,
        hy.Dataset.numpy(x, x[:, 0].astype(np.int64), partitions=partitions),
        search=hy.Configs([{}]),
        epochs=epochs,
        metric="loss",
        mode="min",
        engine=hy.Inline(),
        parallel=hy.Hopper(group="off"),
        directory=directory,
    )
    layout = Layout(directory)
    began = next(read(layout.journal, CODEC))
    assert isinstance(began, Began)
    store = LocalStore(layout.states)
    for ref in store.refs():
        store.delete(ref)
    machine = make(layout.journal, replace(began, spec=replace(began.spec, trials=trials)), bins)
    for ref in machine.kept():
        if ref.trial:  # those of trial 0 are gone: a resume makes them again
            with (layout.states / f"{ref}.safetensors").open("wb") as file:
                file.truncate(SIZE)
    return layout


def unfinished(layout: Layout) -> None:
    """The journal without its last line, `Finished`."""
    with layout.journal.open("rb+") as file:
        size = file.seek(0, 2)
        file.seek(size - 200)
        file.truncate(size - 200 + file.read()[:-1].rfind(b"\n") + 1)


def measured(name: str, layout: Layout) -> tuple[float, float]:
    """(MB at the peak, seconds) of a reader in a process of its own."""
    began = time.perf_counter()
    child = subprocess.run(
        [sys.executable, "-c", CHILD.format(reader=READERS[name]), layout.journal, layout.root],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if child.returncode:
        raise SystemExit(f"{name}: {child.stderr[-2000:]}")
    return int(child.stderr.split()[-1]) / 1e3, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--bins", type=int, default=0, help="numbers of an additive array in each unit")
    asked = parser.parse_args()
    units = asked.trials * asked.epochs * asked.partitions
    with tempfile.TemporaryDirectory(dir=".") as name:
        began = time.perf_counter()
        layout = run_directory(Path(name) / "run", asked.trials, asked.epochs, asked.partitions, asked.bins)
        size = layout.journal.stat().st_size
        print(f"{units:,} units played in {time.perf_counter() - began:.0f} s")
        print(f"journal: {size / 1e6:.0f} MB, {size / units:.0f} bytes a unit (at most 500 are wanted)")
        for reader in READERS:
            if reader == "resume":
                unfinished(layout)
            layout.summary.unlink(missing_ok=True)
            peak, seconds = measured(reader, layout)
            print(f"{reader:<12} {peak:4.0f} MB at the peak (at most 300 are wanted), {seconds:5.1f} s", flush=True)
        peak, seconds = measured("ls", layout)
        print(f"{'ls, again':<12} {peak:4.0f} MB at the peak, {seconds:5.1f} s: from the summary that the resume wrote")


if __name__ == "__main__":
    main()
