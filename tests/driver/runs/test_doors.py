"""Values that a run hands out are copies: what user code does to them reaches no machine, journal or other trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest

import hopyard as hy
from hopyard.core.runs.events import Proposed
from hopyard.core.runs.machine import Machine, fold
from hopyard.frameworks.linear import Linear
from hopyard.ports.searches import Proposal
from hopyard.search.proposer import Proposer
from hopyard.spec import RunSpec
from jobs import dataset, digests, journal, linear
from snapshots import snapshot

SIZES = [{"lr": 0.1, "sizes": [8]}, {"lr": 0.03, "sizes": [8], "deep": [[1], ["a"]]}]


def ruin(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, dict):
        for each in value.values():
            ruin(each)
        value["ruined"] = [value.popitem()] if value else []
    elif isinstance(value, list):
        for each in value:
            ruin(each)
        value[:] = ["ruined", *value]


def widened(config: dict[str, Any]) -> Any:
    """Train a Linear whose learning rate depends on the list of its configuration, which this changes."""
    config["sizes"].insert(0, 4)
    rate = config["lr"] * len(config["sizes"])
    ruin(config)
    return linear({"lr": rate})


def select(directory: Path, search: Any, space: Any = None, recipe: Any = widened, **more: Any) -> hy.Run:
    arguments: dict[str, Any] = {"engine": hy.Inline(), "exact": False, "epochs": 2} | more
    return hy.select(
        recipe, space, dataset(), search=search, metric="val_loss", mode="min", directory=directory, **arguments
    )


def proposed(run: hy.Run) -> list[Any]:
    return [line.config for line in journal(run.directory) if isinstance(line, Proposed)]


@pytest.mark.slow
def test_a_recipe_that_changes_its_config_gives_equal_bits_on_any_engine(tmp_path: Path) -> None:
    inline = select(tmp_path / "inline", hy.Configs(SIZES))
    local = select(tmp_path / "local", hy.Configs(SIZES), engine=hy.Local(workers=1, devices=None))
    assert digests(inline) == digests(local)
    for run in (inline, local):
        assert proposed(run) == SIZES == [trial.config for trial in run.trials]
        assert run.best.evaluate(dataset()) == run.best.evaluate(dataset())  # each builds the model anew
        saved = hy.load_model(run.best.save(run.directory / "saved"))
        assert saved.evaluate(dataset()) == run.best.evaluate(dataset())
        assert hy.load(run.directory).trials[1].config == SIZES[1]


SPACE = hy.Space(
    lr=hy.choice([0.1, 0.03, 0.3]),
    sizes=hy.choice([[8], [8, [16]]]),
    deep=[[1, 2]],
    late=lambda config: ruin(config) or hy.choice([[1], [2]]),
)


def defined(trial: Any) -> dict[str, Any]:
    sizes = trial.suggest_categorical("sizes", [[8], [8, [16]]])
    again = trial.suggest_categorical("sizes", [[8], [8, [16]]])
    config = {"lr": trial.suggest_categorical("lr", [0.1, 0.03, 0.3]), "deep": [sizes]}
    ruin(sizes), ruin(again)
    return {**config, "deep": [[1]]}


class Meddler(optuna.samplers.TPESampler):
    """A sampler that changes what it finds in a study, and notes lists in it."""

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        for each in study.get_trials(deepcopy=False)[:-1]:
            for found in (each.params, each.system_attrs, each.user_attrs, each.intermediate_values):
                ruin(dict(found) if found is each.params else found)
        study._storage.set_trial_system_attr(trial._trial_id, "notes", [[trial.number]])
        return super().sample_relative(study, trial, search_space)


class Stop:
    """A function of `stop=` that looks at what it gets, and may change it."""

    def __init__(self, ruins: bool) -> None:
        self.ruins = ruins

    def __call__(self, trial: hy.Trial, history: dict[int, Any]) -> bool:
        ends = len(history) >= 2 and trial.id % 2 == 1
        if self.ruins:
            ruin(trial.config), ruin(trial.history), ruin(trial.metrics), ruin(history)
        return ends


def tame(config: dict[str, Any]) -> Any:
    return linear({"lr": config["lr"] * (len(config["sizes"]) + 1)})


@pytest.mark.parametrize(
    ("search", "space"),
    [
        (hy.Random(5), SPACE),
        (hy.Grid(), SPACE),
        pytest.param(hy.Random(5), defined, marks=pytest.mark.long),
        (hy.TPE(12, batch=3), defined),
        pytest.param(hy.TPE(12, batch=3), SPACE, marks=pytest.mark.long),
        (hy.Optuna(Meddler, 12, batch=3), SPACE),
    ],
    ids=["random", "grid", "function", "tpe-function", "tpe", "optuna"],
)
@pytest.mark.filterwarnings("ignore:.*ExperimentalWarning")
def test_user_code_changing_its_arguments_changes_nothing(tmp_path: Path, search: Any, space: Any) -> None:
    first = {"lr": 0.1, "sizes": [8], "late": [1], "deep": [[1, 2]]} if space is SPACE else {"lr": 0.1, "sizes": [8]}
    mine = [dict(first, sizes=[8])]
    runs = [
        select(
            tmp_path / name, search, space, recipe, enqueue=mine, stop=Stop(recipe is widened), epochs=3
        )
        for name, recipe in (("tame", tame), ("ruins", widened))
    ]  # fmt: skip
    tamed, ruined = ([(t.config, t.status, t.history, t.digest) for t in run.trials] for run in runs)
    assert tamed == ruined and {trial.status for trial in runs[0].trials} == {"completed", "stopped"}
    assert proposed(runs[0]) == proposed(runs[1]) == [trial.config for trial in runs[1].trials]
    assert "ruined" not in str(proposed(runs[1])) and mine == [first]


def test_changing_lists_given_to_select_changes_nothing(tmp_path: Path) -> None:
    configs, values, constant = [{"lr": 0.1, "sizes": [8]}], [[8], [16]], [1]
    listed, space = hy.Configs(configs), hy.Space(lr=0.1, sizes=hy.choice(values), c=constant)
    for value in (configs, values, constant):
        ruin(value)
    assert proposed(select(tmp_path / "configs", listed)) == [{"lr": 0.1, "sizes": [8]}]
    found = proposed(select(tmp_path / "space", hy.Grid(), space))
    assert found == [{"lr": 0.1, "sizes": sizes, "c": [1]} for sizes in ([8], [16])]


def doors(run: hy.Run) -> list[Any]:
    """Return all that a Run gives its user, but for pictures and text."""
    trials = [*run.trials, run.best, *run.pareto, run.trial(0)]
    found: list[Any] = [each for t in trials for each in (t.config, t.history, t.metrics, t.classes)]
    study = run.to_optuna()
    for trial in (*study.trials, *study.get_trials(deepcopy=False)):
        found += [trial.user_attrs, trial.system_attrs, dict(trial.params), trial.intermediate_values, trial.values]
    frames = [run.to_pandas(), run.history(config=True)]
    found += [value for frame in frames for column in frame for value in frame[column]]
    return [*found, run.summary(), run.importance()]


def table(rows: int = 120) -> Any:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, rows))
    return pd.DataFrame({"a": a, "b": b, "mood": np.where(a + b > 0, "good", "bad")})


def moods(config: dict[str, Any]) -> Any:
    return Linear(2, 2, lr=config["lr"] * len(config["sizes"]), batch_size=16)


def snapshot_of(run: hy.Run) -> dict[str, Any]:
    with run._now() as (machine, _):
        return snapshot(machine)


@pytest.mark.slow
@pytest.mark.parametrize("alive", [False, True], ids=["read", "driven here"])
def test_changing_values_of_a_run_changes_nothing(tmp_path: Path, alive: bool) -> None:
    data = hy.Dataset.pandas(
        table(), features=["a", "b"], label="mood", encode={"mood": "index"}, validation=0.25, partitions=2
    )
    run = hy.select(
        moods, SPACE, data, search=hy.TPE(12, batch=3), metric="val_loss", mode="min", engine=hy.Inline(),
        directory=tmp_path / "run", exact=False, epochs=2, stop=hy.Patience(1),
    )  # fmt: skip
    run = run if alive else hy.load(run.directory)
    path = run.directory / "journal.jsonl"
    before, state, values = path.read_bytes(), snapshot_of(run), str(doors(run))
    best, prediction = run.best, run.best.predict(table()).tolist()
    for value in (*doors(run), *doors(run), best.config, best.history, best.metrics, best.classes):
        ruin(value)
    assert best.predict(table()).tolist() == prediction, "the same object builds the same model"
    assert path.read_bytes() == before and snapshot_of(run) == state
    assert snapshot(fold(journal(run.directory))) == state
    assert str(doors(run)) == values and "ruined" not in values


def test_samplers_get_and_give_copies() -> None:
    class Keeps:
        total: int | None = 3

        def __init__(self) -> None:
            self.own: list[Any] = []

        def propose(self, history: Any) -> Proposal | None:
            for each in history:
                ruin(each.config), ruin(each.values), ruin(each.attributes)
            self.own.append(Proposal({"sizes": [8]}, len(history), {"notes": [[1]]}))
            if len(self.own) > 1:
                ruin(self.own[-2].config), ruin(self.own[-2].attributes)
            return self.own[-1]

    machine = Machine(RunSpec(epochs=1, partitions=1, validation=0, trials=3, metric="loss", batch=3))
    proposer = Proposer(machine, Keeps(), 1)
    for event in proposer.events(0.0):
        machine.handle(event)
    assert [trial.config for trial in machine.trials.values()] == [{"sizes": [8]}] * 3
    assert [trial.attributes for trial in machine.trials.values()] == [{"notes": [[1]]}] * 3
