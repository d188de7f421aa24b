"""A run as a Study of Optuna: trials, distributions, values, states; the importance of parameters."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

import hopyard as hy
from hopyard.errors import UsageError
from hopyard.ports.searches import Observation
from hopyard.search.study import Result, importance_of, study_of
from hopyard.spec import Objective
from jobs import dataset, linear, select

LOSS = (Objective("val_loss", "min"),)
SPACE = hy.Space(
    lr=hy.loguniform(1e-3, 1.0),
    width=hy.choice([8, 32]),
    layers=hy.choice([[8, 8], [4]]),
    momentum=lambda c: hy.uniform(0, 1) if c["width"] == 8 else None,
    depth=hy.randint(1, 5),
    drop=hy.quniform(0, 0.5, 0.1),
    name="net",
)
CONFIG = {"lr": 0.1, "width": 32, "layers": [8, 8], "depth": 4, "drop": 0.30000000000000004, "name": "net"}


def result(status: Any, best: float | None, config: Any = None, epochs: int = 2) -> Result:
    values = {} if best is None else {epoch: best + epochs - epoch for epoch in range(1, epochs + 1)}
    seen = () if best is None or not math.isfinite(best) else (best,)
    return Result(Observation(config or CONFIG, status, values, seen, -1, {}), {"accuracy": 0.5}, 10.0, 20.0)


def test_each_trial_has_its_number_state_and_values() -> None:
    rows = [result("completed", 0.5), result("stopped", 0.7, epochs=1), result("failed", 0.1), result("running", 0.2)]
    rows += [result("waiting", None), result("paused", 0.3), result("completed", math.nan)]
    study = study_of("run", LOSS, SPACE, rows)
    states = ["COMPLETE", "PRUNED", "FAIL", "RUNNING", "WAITING", "PRUNED", "FAIL"]
    assert [(trial.number, trial.state.name) for trial in study.trials] == list(enumerate(states))
    first, second = study.trials[0], study.trials[1]
    assert (first.value, first.intermediate_values, second.value) == (0.5, {1: 1.5, 2: 0.5}, 0.7)
    assert (first.duration.total_seconds(), first.user_attrs) == (10.0, {"accuracy": 0.5})
    assert (study.study_name, study.metric_names, study.best_trial.number) == ("run", ["val_loss"], 0)


def test_distributions_are_the_space_s_with_values_that_users_know() -> None:
    (trial,) = study_of("run", LOSS, SPACE, [result("completed", 0.5)]).trials
    assert trial.params == {**{k: v for k, v in CONFIG.items() if k != "name"}, "layers": "[8, 8]"}
    assert trial.distributions == {
        "lr": FloatDistribution(1e-3, 1.0, log=True),
        "width": CategoricalDistribution((8, 32)),
        "layers": CategoricalDistribution(("[8, 8]", "[4]")),
        "depth": IntDistribution(1, 4),
        "drop": FloatDistribution(0, 0.5),
    }


def test_conditional_parameters_and_configurations_beside_the_space_fit_in() -> None:
    conditional = {**CONFIG, "width": 8, "momentum": 0.5}
    beside = {"lr": 5.0, "width": "wide"}
    study = study_of("run", LOSS, SPACE, [result("completed", 0.5, c) for c in (CONFIG, conditional, beside)])
    assert ["momentum" in trial.params for trial in study.trials] == [False, True, False]
    assert study.trials[0].distributions["lr"] == FloatDistribution(1e-3, 5.0, log=True)
    assert study.trials[0].distributions["width"] == CategoricalDistribution((8, 32, "wide"))
    listed = study_of(
        "run", LOSS, None, [result("completed", 0.5, {"n": n, "act": act}) for n, act in ((1, "a"), (3, "b"))]
    )
    assert listed.trials[0].distributions == {"n": IntDistribution(1, 3), "act": CategoricalDistribution(("a", "b"))}


def test_several_objectives_are_several_directions() -> None:
    both = (*LOSS, Objective("seconds", "max"))
    row = Result(Observation({"lr": 0.1}, "completed", {1: 0.5}, (0.5, 3.0), -1, {}))
    study = study_of("run", both, hy.Space(lr=hy.uniform(0, 1)), [row])
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert study.trials[0].values == [0.5, 3.0]


def test_the_parameter_that_decides_is_the_important_one() -> None:
    configs = [{"a": n / 30, "b": (7 * n % 30) / 30} for n in range(30)]
    space = hy.Space(a=hy.uniform(0, 1), b=hy.uniform(0, 1))
    shares = importance_of(study_of("run", LOSS, space, [result("completed", c["a"] + 1, c) for c in configs]))
    assert list(shares) == ["a", "b"] and shares["a"] > 0.7 and sum(shares.values()) == pytest.approx(1)
    with pytest.raises(UsageError, match=r"at least 4 trials .* 3"):
        importance_of(study_of("run", LOSS, space, [result("completed", 1.0, c) for c in configs[:3]]))


def test_a_run_becomes_a_study_that_optuna_s_own_tools_take(tmp_path: Path) -> None:
    run = hy.select(
        linear, hy.Space(lr=hy.loguniform(1e-3, 1.0)), dataset(), search=hy.Random(6), epochs=4, metric="val_loss",
        mode="min", stop=hy.ASHA(2, sync=True), engine=hy.Inline(), directory=tmp_path / "run",
    )  # fmt: skip
    study = hy.load(run.directory).to_optuna()
    assert (study.study_name, study.best_trial.number) == ("run", run.best.id)
    for trial, ours in zip(study.trials, run.trials, strict=True):
        values = {epoch: metrics["val_loss"] for epoch, metrics in ours.history.items()}
        assert (trial.params, trial.value, trial.intermediate_values) == (ours.config, ours.metrics["val_loss"], values)
        assert (trial.state is TrialState.COMPLETE) == (ours.status == "completed")
        assert trial.user_attrs["reason"] == ours.reason and trial.datetime_start < trial.datetime_complete
    assert run.importance() == {"lr": 1.0}
    assert list(study.trials_dataframe()["params_lr"]) == [trial.config["lr"] for trial in run.trials]


def test_without_optuna_or_a_metric_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = select(tmp_path / "run", configs=[{"lr": 0.1}], epochs=1)
    monkeypatch.setitem(sys.modules, "optuna", None)
    for call in (run.to_optuna, run.importance):
        with pytest.raises(UsageError, match=r"pip install 'hopyard\[search\]'"):
            call()
    plain = hy.fit(linear, {"lr": 0.1}, dataset(), epochs=1, engine=hy.Inline(), directory=tmp_path / "fit")
    with pytest.raises(UsageError, match="it has no metric=, whose values a Study would hold"):
        plain.to_optuna()
