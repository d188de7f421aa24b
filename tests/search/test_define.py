"""Spaces that a function defines: what it may ask, what becomes of the answers, what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.runs.events import Proposed
from hopyard.core.runs.machine import fold
from hopyard.errors import RunDirectoryError, SpecError
from hopyard.search.define import Defined, Suggestions
from hopyard.search.kinds import enqueued, open_sampler
from hopyard.search.proposer import Proposer
from hopyard.space import RandInt
from jobs import dataset, journal, linear


def layers(trial: Suggestions) -> dict[str, Any]:
    """A space with as many parameters as one of them says."""
    depth = trial.suggest_int("depth", 1, 3)
    return {
        "lr": trial.suggest_float("lr", 1e-3, 1.0, log=True),
        "units": [trial.suggest_int(f"units{n}", 8, 32, step=8) for n in range(depth)],
        "act": trial.suggest_categorical("act", ["relu", "tanh"]),
    }


def drawn(function: Any, many: int = 300) -> list[dict[str, Any]]:
    return hy.Random(many).open(function, 0).configs


def test_a_configuration_has_the_parameters_by_name_and_what_is_returned() -> None:
    for config in drawn(layers, 30):
        units = [config[f"units{n}"] for n in range(config["depth"])]
        assert config["units"] == units and set(units) <= {8, 16, 24, 32}
        assert set(config) == {"depth", "lr", "act", "units", *(f"units{n}" for n in range(config["depth"]))}
    assert drawn(layers, 30) == drawn(layers, 30) == drawn(layers)[:30]


def test_draws_are_those_of_a_space_with_the_same_distributions() -> None:
    space = hy.Space(
        lr=hy.loguniform(1e-3, 1.0),
        n=hy.randint(0, 5),
        act=hy.choice(["a", "b"]),
        units=hy.randint(16, 129, step=16),
        power=hy.randint(1, 1025, log=True),
    )

    def function(trial: Suggestions) -> None:
        trial.suggest_float("lr", 1e-3, 1.0, log=True)
        trial.suggest_int("n", 0, 4)
        trial.suggest_categorical("act", ["a", "b"])
        trial.suggest_int("units", 16, 128, step=16)
        trial.suggest_int("power", 1, 1024, log=True)

    assert drawn(function) == hy.Random(300).open(space, 0).configs


def test_bounds_and_steps() -> None:
    def function(trial: Suggestions) -> None:
        trial.suggest_float("tenths", 0.1, 0.5, step=0.1)
        trial.suggest_int("odd", 1, 8, step=2)
        trial.suggest_int("power", 1, 1024, log=True)

    configs = drawn(function)
    assert sorted({round(c["tenths"], 9) for c in configs}) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert sorted({c["odd"] for c in configs}) == [1, 3, 5, 7] and all(type(c["odd"]) is int for c in configs)
    small = sum(c["power"] <= 32 for c in configs) / len(configs)
    assert (
        0.45 < small < 0.65
        and RandInt(1, 1025, log=True).at(0.0) == 1
        and RandInt(1, 1025, log=True).at(1 - 1e-12) == 1024
    )
    assert {type(c["power"]) for c in configs} == {int}


@pytest.mark.slow
@pytest.mark.parametrize("search", [hy.TPE(14), hy.CMA(12)], ids=["tpe", "cma"])
def test_learning_searches_take_it_and_say_the_same_after_a_resume(tmp_path: Path, search: Any) -> None:
    run = hy.select(
        linear, layers, dataset(), search=search, epochs=1, metric="val_loss", mode="min", engine=hy.Inline(),
        directory=tmp_path / "run", exact=False,
    )  # fmt: skip
    lines = journal(run.directory)
    for place, line in enumerate(lines):
        if isinstance(line, Proposed):
            machine = fold(lines[:place])
            sampler = open_sampler(search, run._inputs.space, machine.spec.seed, machine.spec.modes)
            assert sampler.propose(Proposer(machine, sampler, 1)._history()).config == line.config  # type: ignore[union-attr]
    assert "units" in run.trials[0].config and "units" not in run.to_optuna().trials[0].params


def edges(trial: Suggestions) -> None:
    trial.suggest_int("n", 1, 1024, log=True)
    trial.suggest_float("x", -1, 1, step=0.5)


def test_samplers_learn_in_the_parameters_own_terms() -> None:
    from hopyard.ports.searches import Observation

    sampler = hy.TPE(60).open(edges, 0)
    history: list[Any] = []
    while (proposal := sampler.propose(history)) is not None:
        config = proposal.config
        assert config["x"] in (-1.0, -0.5, 0.0, 0.5, 1.0)
        value = abs(math.log2(config["n"]) - 5) + abs(config["x"] - 0.5)
        history.append(Observation(config, "completed", {1: value}, (value,), proposal.count, proposal.attributes))
    best = min(history[30:], key=lambda each: each.best).config
    assert 24 <= best["n"] <= 42 and best["x"] == 0.5


def deep(trial: Suggestions) -> dict[str, Any]:
    return {"units": [trial.suggest_int(f"units{n}", 1, 9) for n in range(trial.suggest_int("depth", 1, 3))]}


def test_enqueued_trials_have_the_functions_result() -> None:
    """Bug: it had the parameters alone."""
    first = enqueued(hy.Random(1), deep, [{"depth": 2, "units0": 3, "units1": 4}])
    assert first.configs == ({"depth": 2, "units0": 3, "units1": 4, "units": [3, 4]},)  # type: ignore[union-attr]
    with pytest.raises(SpecError, match="no 'units1'"):
        enqueued(hy.Random(1), deep, [{"depth": 2, "units0": 3}])
    with pytest.raises(SpecError, match="no parameter 'width'"):
        enqueued(hy.Random(1), deep, [{"depth": 1, "units0": 3, "width": 1}])


def test_another_function_is_another_run(tmp_path: Path) -> None:
    def select(function: Any, **more: Any) -> hy.Run:
        return hy.select(linear, function, dataset(), search=hy.Random(2), epochs=1, metric="val_loss", mode="min",
                         engine=hy.Inline(), directory=tmp_path / "run", **more)  # fmt: skip

    select(layers)
    assert select(layers, resume=True).status == "completed"
    with pytest.raises(RunDirectoryError, match="with another space"):
        select(lambda trial: {"lr": trial.suggest_float("lr", 1e-3, 0.5)}, resume=True)


def twice(trial: Suggestions) -> None:
    trial.suggest_float("lr", 0, 1)
    trial.suggest_float("lr", 0, 2)


def breaks(trial: Suggestions) -> None:
    trial.suggest_float("lr", 0, 1)
    trial.report(0.5, 1)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda t: {"lr": 2 * t.suggest_float("lr", 0.5, 1)}, "returns lr=.*, but .* suggested as .*; give"),
        (lambda t: None, "asked for no parameter"),
        (lambda t: [t.suggest_float("lr", 0, 1)], r"must return a configuration, .*got \["),
        (lambda t: {"net": object()}, "space, net: .* is a object"),
        (lambda t: t.suggest_float("lr", 1, 0), r"suggest_float\('lr'\): low .* 1 and 0"),
        (lambda t: t.suggest_float("lr", -1e308, 1e308), "the range from -1e\\+308 to 1e\\+308 is wider than"),
        (lambda t: t.suggest_float("lr", 0, 1, log=True), "low must be > 0 with log=True, got 0"),
        (lambda t: t.suggest_float("lr", 1, 2, log=True, step=0.5), "step and log = True are given"),
        (lambda t: t.suggest_float("lr", 0, 1, step=0), "step must .*<= 1, got 0"),
        (lambda t: t.suggest_int("n", 0.5, 1), r"suggest_int\('n'\): low must .* 0\.5"),
        (lambda t: t.suggest_int("n", 0, 4, step=9), "step must .*from 1 to 4, got 9"),
        (lambda t: t.suggest_categorical("act", []), "at least one value"),
        (twice, "'lr'.*asked for before"),
        (breaks, "{'lr': .*}: AttributeError: .*'report'"),
    ],
)  # fmt: skip
def test_refusals_of_suggestions(function: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text) as raised:
        Defined(function).walk(lambda name, values: values.at(0.5))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "search"),
    [("function", hy.TPE(2, batch=2)), ("function", hy.Random(2)), ("space", hy.Random(2)), ("space", hy.Grid())],
)
def test_a_function_that_is_not_deterministic_is_refused(kind: str, search: Any, tmp_path: Path) -> None:
    """Bug: only searches that learn refused it, and with exact=True a resume of others proposed something else."""
    calls = []

    def function(trial: Suggestions) -> dict[str, Any]:
        calls.append(1)
        if len(calls) % 2:
            trial.suggest_int("depth", 1, 3)
        return {"lr": trial.suggest_float("lr", 0.1, 0.2)}

    space = function if kind == "function" else hy.Space(lr=lambda config: calls.append(1) or len(calls))
    with pytest.raises(SpecError, match=r"called again with"):
        hy.select(
            linear, space, dataset(), search=search, epochs=1, metric="loss", mode="min", engine=hy.Inline(),
            directory=tmp_path / "run", exact=True,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_unsupported_optuna_calls_name_the_alternative() -> None:
    with pytest.raises(SpecError, match="has suggest_categorical, suggest_float, suggest_int, and no 'number'"):
        Defined(lambda trial: {"lr": trial.number}).walk(lambda name, distribution: 1)


def test_a_grid_cannot_know_its_points() -> None:
    with pytest.raises(SpecError, match=r"hy\.Grid\(\)"):
        hy.Grid().open(layers, 0)
    with pytest.raises(SpecError, match=r"space must be"):
        hy.Random(1).open(hy.Space, 0)
