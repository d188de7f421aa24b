"""How long a search takes until it has the best model of the full grid: all trials to the end, successive halving that
only stops, and with promotion.

    python benchmarks/time_to_best.py [--table digits|flights] [--seeds 5] [--simulated 200]

Real runs: digits (1,797 rows) and flights (30,000 rows), 64 configurations of a small net on PyTorch, 27 epochs, the
first rung at one epoch, two workers, no store but the run directory. Each seed is a run of the full grid, whose curves
say what the best is, and one of each rule; the clock of a run is its journal's, from the first dispatch. The grid is
over when its last trial ends: only then its best is known. "Within 0.2 %": a validation loss of at most 1.002 times
that. The simulator runs the same machine against a virtual clock over the curves of the real grids, with the
configurations in another order for each seed and 10 % noise on each unit.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, product
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

import hopyard as hy
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Dispatch, Done, Event, Line
from hopyard.core.runs.machine import Machine, fold
from hopyard.demo import KINDS, NUMBERS, flights
from hopyard.sim.world import World
from hopyard.spec import PackedSums, RunSpec, Unit
from hopyard.store.journal import read
from hopyard.store.layout import Layout

EPOCHS, PARTITIONS, WORKERS, WITHIN = 27, 4, 2, 1.002
GRID, WHOLE = "full grid", "full grid, to its end"
RULES = {
    GRID: None,
    "ASHA 2, stop only": hy.ASHA(2, promote=False),
    "ASHA 2, promotion": hy.ASHA(2),
    "ASHA 3, stop only": hy.ASHA(3, promote=False),
    "ASHA 3, promotion": hy.ASHA(3),
    "Hyperband 3": hy.Hyperband(3),
    "median": hy.Median(),
}
SIMULATED = ("Hyperband 3", "median")
"""Rules that are simulated only."""
ROWS = 30_000
"""Rows of flights."""


def configurations(batches: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the 64 configurations of the grid."""
    return [
        {"lr": lr, "width": width, "decay": decay, "batch_size": batch}
        for lr, width, decay, batch in product((3e-4, 1e-3, 3e-3, 1e-2), (8, 16, 32, 64), (0.0, 1e-2), batches)
    ]


def recipe(config: dict[str, Any], ctx: Any) -> Any:
    import torch

    (columns,) = ctx.inputs["inputs"][0]
    net = torch.nn.Sequential(
        torch.nn.Linear(columns, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], ctx.classes)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=config["lr"], weight_decay=config["decay"])
    return hy.torch.Model(net, optimizer, torch.nn.functional.cross_entropy, batch_size=config["batch_size"])


def digits_table(folder: Path) -> hy.Dataset:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return hy.Dataset.numpy((x / 16).astype(np.float32), y.astype(np.int64), validation=0.25, partitions=PARTITIONS)


def flights_table(folder: Path) -> hy.Dataset:
    """Return every n-th flight of the year, as many as `ROWS`."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(flights(), columns=[*NUMBERS, *KINDS, "late"])
    pyarrow.parquet.write_table(
        table.take(np.linspace(0, len(table) - 1, ROWS).astype(np.int64)), folder / "flights.parquet"
    )
    return hy.Dataset.parquet(
        folder / "flights.parquet", features=[*NUMBERS, *KINDS], label="late", encode=dict.fromkeys(KINDS, "one-hot"),
        standardize=True, validation=0.25, partitions=PARTITIONS,
    )  # fmt: skip


TABLES = {"digits": (digits_table, (32, 128)), "flights": (flights_table, (256, 1024))}


def seconds_of(lines: Iterable[Line]) -> float:
    """Return the seconds from the first dispatch to the last line."""
    times = [line.at for line in lines if isinstance(line, (Dispatch, Done))]
    return times[-1] - times[0]


def first_within(lines: Iterable[Line], limit: float) -> float | None:
    """Return the seconds from the first dispatch until a validation loss is at most `limit`; None: none ever is."""
    machine: Machine | None = None
    began = None
    for line in lines:
        if machine is None:
            machine = fold([line])
            continue
        if began is None and isinstance(line, Dispatch):
            began = line.at
        machine.apply(line)
        machine.settle()
        trial = machine.trials.get(getattr(line, "trial", -1))
        lease = getattr(line, "lease", None)
        if lease is None and trial is None:
            continue
        for record in machine.trials.values() if lease is not None else ():
            value = record.value("val_loss")
            if value is not None and value <= limit:
                return line.at - (began or 0.0)
    return None


def real(
    seed: int, table: str, data: hy.Dataset, folder: Path
) -> tuple[dict[str, float | None], dict[int, list[float]]]:
    """Rule → seconds to the best, and the curves of the grid: trial → its validation loss by epoch."""
    order = configurations(TABLES[table][1])
    random.Random(seed).shuffle(order)
    found: dict[str, float | None] = {}
    curves: dict[int, list[float]] = {}
    limit = 0.0
    for name, rule in [(name, rule) for name, rule in RULES.items() if name not in SIMULATED]:
        run = hy.select(
            recipe, None, data, search=hy.Configs(order), epochs=EPOCHS, metric="val_loss", mode="min", stop=rule,
            seed=seed, engine=hy.Local(workers=WORKERS, devices=None), directory=folder / f"{seed}-{len(found)}",
            exact=False,
        )  # fmt: skip
        if rule is None:
            curves = {t.id: [t.history[epoch]["val_loss"] for epoch in range(1, EPOCHS + 1)] for t in run.trials}
            limit = WITHIN * min(map(min, curves.values()))
            found[WHOLE] = seconds_of(read(Layout(run.directory).journal, CODEC))
        found[name] = first_within(read(Layout(run.directory).journal, CODEC), limit)
    return found, curves


class Searched(World):
    """A simulated search that notes when it has the best."""

    def __init__(self, curves: dict[int, list[float]], rule: Any, seed: int) -> None:
        numbers = list(curves)
        random.Random(seed).shuffle(numbers)
        self._curves = [curves[number] for number in numbers]
        self._limit = WITHIN * min(map(min, self._curves))
        self._noise = random.Random(seed + 1)
        self.found: float | None = None
        spec = RunSpec(
            epochs=EPOCHS, partitions=PARTITIONS, validation=1, trials=len(curves), metric="val_loss", stop=rule,
            group_seconds=0.0,
        )  # fmt: skip
        super().__init__(spec, WORKERS, self._time, sums=self._value)

    def _time(self, unit: Unit, partition: int) -> float:
        return (1.0 if unit.kind == "train" else 0.3) * max(0.2, self._noise.gauss(1.0, 0.1))

    def _value(self, unit: Unit, partition: int) -> PackedSums:
        return {"loss": (self._curves[unit.trial][unit.epoch] if unit.kind == "validate" else 1.0, 1.0)}

    def feed(self, event: Event) -> None:
        super().feed(event)
        lease = getattr(event, "lease", None)
        if self.found is None and lease is not None:
            trial = self.machine.trials[self._trial_of[lease]]
            value = trial.value("val_loss")
            if value is not None and value <= self._limit:
                self.found = self.clock

    def _work(self, slot: int, unit: Unit) -> None:
        self.__dict__.setdefault("_trial_of", {})[unit.lease] = unit.trial
        super()._work(slot, unit)


def simulate(seed: int, curves: dict[int, list[float]]) -> dict[str, float | None]:
    """Return rule → virtual seconds to the best."""
    times: dict[str, float | None] = {}
    for name, rule in RULES.items():
        world = Searched(curves, rule, seed)
        world.run()
        times[name] = world.found
        if rule is None:
            times[WHOLE] = world.clock
    return times


def print_table(rows: dict[str, list[float | None]]) -> None:
    """Print the median time of those that found the best, how often that was, and the ratio to the whole grid's."""
    grid = median([seconds for seconds in rows[WHOLE] if seconds is not None])
    print(f"  {'':22}{'found':>7}{'median':>10}{'mean':>10}{'faster than the whole grid':>28}")
    for name, times in rows.items():
        good = [seconds for seconds in times if seconds is not None]
        share = len(good) / len(times)
        if not good:
            print(f"  {name:22}{share:7.0%}")
            continue
        print(f"  {name:22}{share:7.0%}{median(good):9.2f}s{mean(good):9.2f}s{grid / median(good):27.2f}×")
    for factor in (2, 3):
        stop, promote = rows[f"ASHA {factor}, stop only"], rows[f"ASHA {factor}, promotion"]
        both = [(a, b) for a, b in zip(stop, promote, strict=True) if a is not None and b is not None]
        if both:
            ratio = median([a for a, _ in both]) / median([b for _, b in both])
            print(f"  ASHA {factor}: promotion is {ratio:.2f} × as fast as stopping only, where both found it")


def compare(table: str, seeds: int, simulated: int) -> None:
    """Print how long each rule takes on a table: real runs, then simulated ones."""
    rows: dict[str, list[float | None]] = {name: [] for name in (WHOLE, *RULES) if name not in SIMULATED}
    grids = []
    with tempfile.TemporaryDirectory() as name:
        data = TABLES[table][0](Path(name))
        for seed in range(seeds):
            found, curves = real(seed, table, data, Path(name))
            grids.append(curves)
            for rule, seconds in found.items():
                rows[rule].append(seconds)
    print(f"{table}, real runs, {seeds} seeds, {WORKERS} workers", flush=True)
    print_table(rows)
    rows = {name: [] for name in (WHOLE, *RULES)}
    with ProcessPoolExecutor(WORKERS) as pool:
        for times in pool.map(simulate, range(simulated), cycle(grids)):
            for rule, seconds in times.items():
                rows[rule].append(seconds)
    print(f"{table}, simulated, {simulated} seeds over the curves of the real grids", flush=True)
    print_table(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", choices=tuple(TABLES), action="append")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--simulated", type=int, default=200)
    chosen = parser.parse_args()
    for table in chosen.table or TABLES:
        compare(table, chosen.seeds, chosen.simulated)


if __name__ == "__main__":
    main()
