"""A search that goes on from a Study of Optuna."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import optuna
import pytest

import hopyard as hy
from hopyard.errors import SpecError
from hopyard.search.kinds import examined
from hopyard.search.proposer import observation
from jobs import dataset, linear

SPACE = hy.Space(lr=hy.uniform(0.0, 1.0))


def studied(directions: Sequence[Any] = ("minimize",), name: str = "lr") -> Any:
    """Return a study of 30 trials, best where the parameter is 0.2; one failed, one is open."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1), directions=directions)

    def objective(trial: Any) -> Any:
        error = (trial.suggest_float(name, 0.0, 1.0) - 0.2) ** 2
        if trial.number == 3:
            raise ValueError("as it happens")
        if len(directions) > 1:
            return [error] * len(directions)
        trial.report(error, 1)
        if trial.number == 4:
            raise optuna.TrialPruned
        return error

    study.optimize(objective, 30, catch=(ValueError,))
    study.ask()
    study.sampler = optuna.samplers.TPESampler()
    return study


def error(search: Any) -> float:
    """Return how far the first proposal is from the best value: the median over eight seeds."""
    proposals = [search.open(SPACE, seed).propose([]) for seed in range(8)]
    return median(abs(proposal.config["lr"] - 0.2) for proposal in proposals)


def test_a_search_learns_from_a_study_that_optuna_made() -> None:
    study = studied()
    search = hy.Optuna(study=study, trials=5)
    assert replace(search, trials=6).study == search.study, "a run that is given more trials keeps it"
    assert [each.status for each in search.study.trials[2:6]] == ["completed", "failed", "stopped", "completed"]
    assert error(search) < 0.05 < error(hy.TPE(5))
    assert len(study.trials) == 31, "nothing is written to it"


def test_a_run_goes_on_from_a_study(tmp_path: Path) -> None:
    run, again = (
        hy.select(
            linear, SPACE, dataset(), search=hy.Optuna(study=studied(), trials=2, batch=1), epochs=1,
            metric="loss", mode="min", engine=hy.Inline(), directory=tmp_path / name,
        )
        for name in ("run", "again")
    )  # fmt: skip
    assert [trial.status for trial in run.trials] == ["completed"] * 2
    assert [(trial.config, trial.digest) for trial in run.trials] == [(t.config, t.digest) for t in again.trials]


def test_a_run_that_goes_on_from_another_repeats_none_of_its_trials(tmp_path: Path) -> None:
    """Bug: with equal seeds it drew the configurations again that the first run had drawn."""

    def searched(search: Any, name: str, **more: Any) -> hy.Run:
        return hy.select(
            linear, SPACE, dataset(), search=search, epochs=1, metric="val_loss", mode="min", engine=hy.Inline(),
            directory=tmp_path / name, **more,
        )  # fmt: skip

    first = searched(hy.TPE(3, batch=1), "first")
    more = hy.Optuna(study=first.to_optuna(), trials=3, batch=1)
    assert more.sampler.__name__ == "TPESampler"  # type: ignore[union-attr]
    run = searched(more, "more")
    rates = [trial.config["lr"] for trial in (*first.trials, *run.trials)]
    assert len(set(rates)) == 6
    assert rates == [trial.config["lr"] for trial in searched(hy.TPE(6, batch=1), "whole").trials]
    resumed = searched(more, "more", resume=True)
    assert [trial.config for trial in resumed.trials] == [trial.config for trial in run.trials]


CHOICES = hy.Space(
    lr=hy.uniform(0.0, 1.0),
    layers=hy.choice([[64, 64], [64], "[4]", []]),
    drop=hy.choice([None, 0.5, 1]),
    norm=hy.choice([True, False]),
    act=hy.choice(["relu", "[64, 64, 64]", "None"]),
    deep=lambda config: hy.choice([[1, None], [True]]) if len(config["layers"]) == 2 else None,
)


def choices(trial: Any) -> dict[str, Any]:
    layers = trial.suggest_categorical("layers", [[64, 64], [64], [4, 4, 4]])
    units = [trial.suggest_int(f"units{n}", 1, width) for n, width in enumerate(layers)]
    return {"lr": trial.suggest_float("lr", 0.0, 1.0), "units": units}


@pytest.mark.parametrize("space", [CHOICES, choices], ids=["space", "function"])
def test_a_run_s_own_study_is_taken_back_for_every_kind_of_choice(tmp_path: Path, space: Any) -> None:
    """Bug: choices of lists, which are text in a study, made it a study of another space."""

    run = hy.select(
        linear, space, dataset(), search=hy.TPE(14, batch=1), epochs=1, metric="val_loss", mode="min",
        engine=hy.Inline(), directory=tmp_path / "run",
    )  # fmt: skip
    sampler = hy.Optuna(study=run.to_optuna(), trials=1).open(space, 0)
    with run._now() as (machine, _):
        history = [observation(record, machine.spec) for record in machine.trials.values()]
    assert len(sampler._earlier) == 14
    assert [sampler._frozen(optuna, each).params for each in sampler._earlier] == [
        sampler._frozen(optuna, each).params for each in history
    ]
    proposals = sampler.propose([]), hy.TPE(15).open(space, 0).propose(history)
    assert len({str(each.config) for each in proposals if each}) == 1, "it learns what the run's own search learns"


def test_a_study_of_other_objectives_or_of_another_space_is_refused() -> None:
    with pytest.raises(SpecError, match=r"minimize, minimize, .* min"):
        hy.Optuna(study=studied(("minimize", "minimize")), trials=2).open(SPACE, 0)
    with pytest.raises(SpecError, match=r"30 trials .*space: .*{'rate'"):
        hy.Optuna(study=studied(name="rate"), trials=2).open(SPACE, 0)


def test_a_sampler_that_needs_more_than_a_seed_is_refused_before_the_run() -> None:
    with pytest.raises(SpecError, match=r"proposed nothing: TypeError: .*missing .*search_space"):
        examined(hy.Optuna(optuna.samplers.GridSampler, 2), SPACE, 0, ["min"])
    examined(hy.Optuna(lambda seed: optuna.samplers.GridSampler({"lr": [0.1]}, seed=seed), 2), SPACE, 0, ["min"])
