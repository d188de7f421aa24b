"""One mapping between values and numbers: what is drawn, what a grid has, and what Optuna's samplers propose."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hopyard as hy
from hopyard.errors import SpecError
from hopyard.ports.searches import Observation
from hopyard.search.bridge import as_optuna, parameter_of, value_of
from hopyard.search.define import Defined
from hopyard.space import Steps, quniform

EDGES = [0.0, 0.25, 0.5, math.nextafter(1.0, 0.0)]


def numbers(distribution: Steps) -> list[Any]:
    """Return the values of all numbers that a sampler of Optuna may propose, after a check of each."""
    kind = as_optuna(optuna, distribution)
    values = [value_of(distribution, n) for n in range(kind.low, kind.high + 1)]
    assert [parameter_of(distribution, value) for value in values] == list(range(kind.low, kind.high + 1))
    return values


@settings(derandomize=True, max_examples=400)
@given(
    low=st.integers(-(10**5), 10**5), width=st.integers(1, 300), q=st.integers(1, 300), digits=st.integers(0, 12),
    grid=st.integers(1, 12),
)  # fmt: skip
def test_all_searches_know_the_same_multiples_of_q(low: int, width: int, q: int, digits: int, grid: int) -> None:
    """Bug: a grid left the range, no sampler proposed 0.3 of quniform(0, 0.3, 0.1), and draws gave low as it was."""
    high, q, scale = low + width, min(q, width), 10**digits
    ends = low / scale, high / scale, q / scale
    distribution = quniform(*ends)
    values, count = numbers(distribution), high // q - -(-low // q) + 1
    exact = [Fraction(n * q, scale) for n in range(-(-low // q), high // q + 1)]
    assert len(exact) == count and all(type(value) is float for value in values)
    assert values == pytest.approx([float(each) for each in exact], rel=1e-12, abs=1e-9 * ends[2])
    assert all(ends[0] <= value <= ends[1] for value in values)
    assert list(distribution.points()) == values
    points = list(quniform(*ends, grid=grid).points())
    assert set(points) <= set(values) and len(points) == min(grid, count)
    assert {distribution.at((n + 0.5) / count) for n in range(count)} == set(values)
    assert {distribution.at(u) for u in EDGES} <= set(values)


def test_ends_of_a_range_of_steps() -> None:
    assert numbers(quniform(0, 0.3, 0.1))[-1] == 0.3
    assert list(quniform(0.05, 1, 0.1, grid=3).points()) == pytest.approx([0.1, 0.6, 1.0])
    assert numbers(quniform(0.3, 1, 0.6)) == [0.6]
    assert numbers(quniform(-0.3, 0.1, 0.2)) == [-0.2, 0.0]


def tenths(trial: Any) -> None:
    trial.suggest_float("x", 0.0, 0.3, step=0.1)
    trial.suggest_float("y", 0.1, 0.7, step=0.2)
    trial.suggest_float("z", 0.2, 0.3, step=0.1)


def test_a_suggested_number_never_passes_high() -> None:
    """Bug: 0.30000000000000004."""
    greatest = Defined(tenths).walk(lambda name, distribution: distribution.at(math.nextafter(1.0, 0.0)))
    assert greatest == {"x": 0.3, "y": 0.7, "z": 0.3}


@pytest.mark.parametrize(
    "search",
    [hy.Random(200), hy.Grid(), hy.TPE(24), hy.CMA(24), pytest.param(hy.GP(14), marks=pytest.mark.slow)],
    ids=["random", "grid", "tpe", "cma", "gp"],
)
def test_searches_propose_these_values_and_learn_from_them(search: Any) -> None:
    space = hy.Space(rate=hy.quniform(0.05, 0.3, 0.1), other=hy.quniform(0, 0.3, 0.1))
    sampler = search.open(space, 0)
    if isinstance(search, (hy.Random, hy.Grid)):
        configs = sampler.configs
    else:
        history: list[Observation] = []
        while (proposal := sampler.propose(history)) is not None:
            value = (abs(proposal.config["rate"] - 0.3),)
            one = Observation(proposal.config, "completed", {1: value[0]}, value, proposal.count, proposal.attributes)
            history.append(one)
            assert sampler._frozen(optuna, one) is not None
        configs = [each.config for each in history]
    assert {config["rate"] for config in configs} == {0.1, 0.2, 0.3}
    others = {config["other"] for config in configs}
    assert 0.3 in others and others <= {0.0, 0.1, 0.2, 0.3}


def test_a_space_sees_the_values_of_a_trial_as_they_are() -> None:
    space = hy.Space(x=hy.uniform(0, 1), y=lambda config: hy.choice([1, [2]]) if config["x"] == 1.0 else None)
    config = {"x": 1.0, "y": [2]}  # of enqueue=: draws stay below 1
    frozen = hy.TPE(2).open(space, 0)._frozen(optuna, Observation(config, "completed", {}, (0.5,), -1, {}))
    assert frozen.params == {"x": 1.0, "y": 1}


def test_integers_of_64_bits_are_exact() -> None:
    low, high = -(1 << 63), (1 << 64) - 1
    distribution = hy.randint(low, high, step=3)
    assert isinstance(distribution, Steps) and distribution.high == high - (high - low) % 3
    assert distribution.value(distribution.last) == distribution.high == distribution.at(EDGES[-1] + 1e-16) < high


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hy.quniform(1e9, 2e9, 1e-9), r"quniform\(.*q=1e-09\): steps of 1e-09 .* 2000000000"),
        (lambda: hy.quniform(0, 1, 5e-324), r"quniform\(.*\): steps"),
        (
            lambda: Defined(lambda t: t.suggest_float("x", 0, 1e300, step=1e-9)).walk(lambda name, d: d.at(0.5)),
            r"suggest_float\('x'\): steps",
        ),
    ],
)
def test_steps_that_floats_cannot_tell_apart_are_refused(make: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make()
