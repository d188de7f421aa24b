"""Do searches that learn propose as well as the samplers of Optuna that they are made of?

    python benchmarks/samplers.py [seeds, default 20] [part of a name, to measure only those]

Ours makes the sampler anew for each proposal, from the history alone; bare Optuna keeps one. Both have equal budgets on
standard test functions, one proposal after the other, without training. The regret is the distance of the best value
from the known optimum; of NSGA-II it is the share of the ideal hypervolume that the trials lack. The figure is the
median regret of ours divided by that of bare Optuna, over all seeds: less is better, 1 is equal. In brackets: how many
of the seeds ours won, and milliseconds for each proposal.

Sources: Surjanovic, Bingham, "Virtual Library of Simulation Experiments" (Branin, Hartmann 6, Rosenbrock, Ackley);
Zitzler, Deb, Thiele, "Comparison of Multiobjective Evolutionary Algorithms", Evolutionary Computation 8(2), 2000
(ZDT1).
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import cos, e, exp, pi, sqrt
from statistics import median
from typing import Any

import optuna

import hopyard as hy
from hopyard.ports.searches import Observation
from hopyard.search.kinds import open_sampler

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

A = ((10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8), (17, 8, 0.05, 10, 0.1, 14))
P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)


def branin(x: Sequence[float]) -> list[float]:
    a, b = x
    return [(b - 5.1 / (4 * pi**2) * a**2 + 5 / pi * a - 6) ** 2 + 10 * (1 - 1 / (8 * pi)) * cos(a) + 10]


def hartmann(x: Sequence[float]) -> list[float]:
    weights = (1.0, 1.2, 3.0, 3.2)
    return [
        -sum(
            w * exp(-sum(a * (v - p) ** 2 for a, v, p in zip(row, x, place, strict=True)))
            for w, row, place in zip(weights, A, P, strict=True)
        )
    ]


def rosenbrock(x: Sequence[float]) -> list[float]:
    return [sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in pairwise(x))]


def ackley(x: Sequence[float]) -> list[float]:
    n = len(x)
    return [20 + e - 20 * exp(-0.2 * sqrt(sum(v * v for v in x) / n)) - exp(sum(cos(2 * pi * v) for v in x) / n)]


def zdt1(x: Sequence[float]) -> list[float]:
    g = 1 + 9 * sum(x[1:]) / (len(x) - 1)
    return [x[0], g * (1 - sqrt(x[0] / g))]


@dataclass(frozen=True)
class Problem:
    """A function over a box, and its optimum."""

    name: str
    function: Callable[[Sequence[float]], list[float]]
    bounds: tuple[tuple[float, float], ...]
    optimum: float = 0.0

    @property
    def names(self) -> list[str]:
        return [f"x{n}" for n in range(len(self.bounds))]

    def space(self) -> hy.Space:
        return hy.Space(**{name: hy.uniform(*ends) for name, ends in zip(self.names, self.bounds, strict=True)})


BRANIN = Problem("Branin", branin, ((-5, 10), (0, 15)), 0.39788735772973816)
HARTMANN = Problem("Hartmann 6", hartmann, ((0, 1),) * 6, -3.32236801141551)
ROSENBROCK = Problem("Rosenbrock 4", rosenbrock, ((-2, 2),) * 4)
ACKLEY = Problem("Ackley 5", ackley, ((-15, 30),) * 5)
ZDT1 = Problem("ZDT1 6", zdt1, ((0, 1),) * 6)
IDEAL = 1.1 * 1.1 - 1 / 3
"""Hypervolume of the front of ZDT1, f2 = 1 - √f1, below (1.1, 1.1): the area under the front, 2/3 - 1/3, is not in it,
nor is anything left of f1 = 0."""


def nsga(seed: int) -> Any:
    return optuna.samplers.NSGAIISampler(population_size=20, seed=seed)


CASES: list[tuple[str, Callable[[int], Any], Callable[[int], Any], int, tuple[Problem, ...]]] = [
    ("TPE", hy.TPE, lambda seed: optuna.samplers.TPESampler(seed=seed), 100, (BRANIN, HARTMANN, ROSENBROCK, ACKLEY)),
    ("GP", hy.GP, lambda seed: optuna.samplers.GPSampler(seed=seed), 30, (BRANIN, HARTMANN)),
    (
        "CMA-ES",
        hy.CMA,
        lambda seed: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
        200,
        (HARTMANN, ROSENBROCK, ACKLEY),
    ),
    ("NSGA-II", lambda trials: hy.Optuna(nsga, trials), nsga, 400, (ZDT1,)),
]


def ours(search: Any, problem: Problem, seed: int, modes: Sequence[Any]) -> list[list[float]]:
    """Return the values of all trials of a search of ours."""
    sampler: Any = open_sampler(search, problem.space(), seed, modes)
    history: list[Observation] = []
    while (proposal := sampler.propose(history)) is not None:
        values = problem.function([proposal.config[name] for name in problem.names])
        history.append(
            Observation(
                proposal.config, "completed", {1: values[0]}, tuple(values), proposal.count, proposal.attributes
            )
        )
    return [list(each.best) for each in history]


def bare(sampler: Any, problem: Problem, trials: int, directions: int) -> list[list[float]]:
    """Return the values of all trials of Optuna."""
    study = optuna.create_study(sampler=sampler, directions=["minimize"] * directions)
    pairs = list(zip(problem.names, problem.bounds, strict=True))
    for _ in range(trials):
        trial = study.ask()
        study.tell(trial, problem.function([trial.suggest_float(name, *ends) for name, ends in pairs]))
    return [trial.values for trial in study.trials]


def regret(problem: Problem, values: list[list[float]]) -> float:
    if len(values[0]) == 1:
        return min(value for (value,) in values) - problem.optimum
    area, height = 0.0, 1.1
    for x, y in sorted(values):
        if x < 1.1 and y < height:
            area += (1.1 - x) * (height - y)
            height = y
    return 1 - area / IDEAL


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    for name, search, sampler, trials, problems in CASES:
        if part not in name:
            continue
        for problem in problems:
            directions = len(problem.function([0.5] * len(problem.bounds)))
            pairs, times = [], [0.0, 0.0]
            for seed in range(seeds):
                began = time.perf_counter()
                mine = regret(problem, ours(search(trials), problem, seed, ["min"] * directions))
                between = time.perf_counter()
                theirs = regret(problem, bare(sampler(seed), problem, trials, directions))
                pairs.append((mine, theirs))
                times = [times[0] + between - began, times[1] + time.perf_counter() - between]
            mine, theirs = median(a for a, _ in pairs), median(b for _, b in pairs)
            each = [1e3 * seconds / seeds / trials for seconds in times]
            print(
                f"{name:8} {problem.name:13} {trials} trials, {seeds} seeds: regret {mine:.4g} ÷ {theirs:.4g} = "
                f"{mine / theirs:.2f}  (won {sum(a < b for a, b in pairs)}; {each[0]:.1f} ms, bare {each[1]:.1f} ms)",
                flush=True,
            )


if __name__ == "__main__":
    main()
