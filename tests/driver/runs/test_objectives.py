"""Several objectives: the trials that none beats, what samplers learn, what is refused."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.runs.events import Began, Dispatch, Done, Proposed
from hopyard.core.runs.machine import Machine, fold
from hopyard.driver.runs.replay import replay
from hopyard.errors import Inexact, PreflightError, RunDirectoryError, SpecError
from hopyard.frameworks.linear import Linear
from hopyard.search.kinds import open_sampler
from hopyard.search.proposer import Proposer
from hopyard.spec import Batch, Objective, RunSpec
from hopyard.views import words
from jobs import WIDTH, dataset, journal

SPACE = hy.Space(lr=hy.loguniform(1e-3, 1.0), size=hy.uniform(1, 9))
BOTH: dict[str, Any] = {"metric": ["val_loss", "val_size"], "mode": ["min", "min"]}


class Sized(Linear):
    """A Linear with a second metric: what its configuration says of its size."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(WIDTH, 2, lr=config["lr"], batch_size=16)
        self._size = config["size"]

    def train(self, batch: Batch) -> Any:
        return {**super().train(batch), "size": (self._size * batch.rows, batch.rows)}

    def evaluate(self, batch: Batch) -> Any:
        return {**super().evaluate(batch), "size": (self._size * batch.rows, batch.rows)}


def search(directory: Path, **more: Any) -> hy.Run:
    arguments = {"search": hy.Random(6), "epochs": 2, "engine": hy.Inline(), "exact": False, **BOTH, **more}
    return hy.select(Sized, SPACE, dataset(), directory=directory, **arguments)


def dominates(a: Any, b: Any) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


def test_the_trials_that_none_beats(tmp_path: Path) -> None:
    run = search(tmp_path / "run")
    values = {t.id: (t.metrics["val_loss"], t.metrics["val_size"]) for t in run.trials}
    front = [n for n, mine in values.items() if not any(dominates(other, mine) for other in values.values())]
    assert [t.id for t in run.pareto] == sorted(front, key=lambda n: values[n])
    assert run.pareto[0].id == run.best.id  # the first metric decides
    assert run.report().count("Not dominated by val_loss (min), val_size (min)\n  trial ") == 1
    assert [t.id for t in hy.load(run.directory).pareto] == [t.id for t in run.pareto]


def test_a_front_is_what_comparing_each_with_each_gives() -> None:
    drawn = random.Random(0)
    spec = RunSpec(
        epochs=1,
        partitions=1,
        validation=0,
        metric="a",
        mode="max",
        also=(Objective("b", "min"), Objective("c", "max")),
    )
    for _ in range(50):
        machine = Machine(spec)
        for number in range(12):
            machine.apply(Proposed(trial=number, config={}))
            trial = machine.trials[number]
            trial.status = "completed" if number else "failed"
            if number > 1:
                trial.add_epoch(0, {name: drawn.choice((0.0, 1.0, 2.0, 3.0, math.nan)) for name in "abc"}, spec)
        costs = {
            t.id: tuple(math.inf if math.isnan(cost) else cost for cost in (-values["a"], values["b"], -values["c"]))
            for t in machine.trials.values()
            for values in t.history.values()
            if not math.isnan(values["a"])
        }
        front = {n for n, mine in costs.items() if not any(dominates(other, mine) for other in costs.values())}
        pareto = words.pareto(machine)
        assert {trial.id for trial in pareto} == front
        assert pareto[:1] == [each for each in [words.best(machine)] if each]  # bug: by a tie, or NaN, it was not there
        assert words.ranked(machine)[0] in pareto or not pareto


def test_seconds_are_those_of_the_workers_and_the_journal_has_them(tmp_path: Path) -> None:
    run = search(tmp_path / "run", metric=["val_loss", "seconds"], mode=["min", "min"], search=hy.Random(3))
    lines = journal(run.directory)
    for trial in run.trials:
        dispatched = {
            line.unit.lease: line for line in lines if isinstance(line, Dispatch) and line.unit.trial == trial.id
        }
        spent = [
            line.at - dispatched[line.lease].at for line in lines if isinstance(line, Done) and line.lease in dispatched
        ]
        assert len(spent) > 2 and trial.seconds == pytest.approx(sum(spent))
        record = fold(lines).trials[trial.id]
        assert record.objectives(fold(lines).spec) == (trial.metrics["val_loss"], trial.seconds)
    assert list(run.to_pandas()["seconds"]) == [trial.seconds for trial in run.trials]
    assert [trial.values[1] for trial in run.to_optuna().trials] == [trial.seconds for trial in run.trials]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["TPE", "GP", pytest.param("NSGAIISampler", marks=pytest.mark.long)])
def test_proposals_for_several_objectives_follow_from_the_journal(tmp_path: Path, sampler: str) -> None:
    import optuna

    many = 24
    kind = hy.Optuna(lambda seed: optuna.samplers.NSGAIISampler(population_size=6, seed=seed), many)
    kind = kind if sampler == "NSGAIISampler" else getattr(hy, sampler)(11)
    run = search(tmp_path / "run", search=kind, epochs=1, metric=["val_loss", "seconds"], mode=["min", "min"])
    lines, asked = journal(run.directory), 0
    for place, line in enumerate(lines):
        if isinstance(line, Proposed):
            machine = fold(lines[:place])
            opened = open_sampler(kind, SPACE, machine.spec.seed, machine.spec.modes)
            proposal = opened.propose(Proposer(machine, opened, 1)._history())  # type: ignore[union-attr]
            assert proposal is not None and proposal.config == line.config
            asked += 1
    assert asked == kind.trials
    assert replay(run.directory, engine=hy.Inline()).different == []
    if sampler == "NSGAIISampler":
        generations = {
            v for line in lines if isinstance(line, Proposed) for k, v in line.attributes.items() if "generation" in k
        }
        assert generations == {0, 1, 2, 3}


def test_a_list_of_one_metric_is_that_metric(tmp_path: Path) -> None:
    run = search(tmp_path / "run", metric=["val_loss"], mode=["min"], search=hy.Random(1), epochs=1)
    (began,) = [line for line in journal(run.directory) if isinstance(line, Began)]
    assert (began.spec.metric, began.spec.mode, began.spec.also) == ("val_loss", "min", ())
    assert [trial.id for trial in run.pareto] == [run.best.id]


@pytest.mark.parametrize(
    ("metric", "mode", "text"),
    [
        ([], [], r"metric = \[\] and mode = \[\]: .*as many modes"),
        (["a", "b"], "min", "as many modes"),
        (["a", "b"], ["min"], "as many modes"),
        (["a", "a"], ["min", "min"], "each metric .*once"),
        (["a", 3], ["min", "min"], r"metric must .* 3"),
        (["a", "b"], ["min", "least"], 'mode must be "min" or "max", got \'least\''),
        (["seconds", "a"], ["min", "min"], '"seconds" has no value'),
    ],
)
def test_lists_that_say_nothing_are_refused(tmp_path: Path, metric: Any, mode: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        search(tmp_path / "run", metric=metric, mode=mode)
    assert not (tmp_path / "run").exists()


def test_objectives_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Inexact, match='objective "seconds"'):
        search(tmp_path / "run", metric=["val_loss", "seconds"], exact=True)
    with pytest.raises(SpecError, match=r"hy\.CMA .*metric= has 2"):
        search(tmp_path / "run", search=hy.CMA(3))
    with pytest.raises(PreflightError, match="metric = 'val_width': the recipe reports"):
        search(tmp_path / "other", metric=["val_loss", "val_width"])
    with pytest.raises(SpecError, match=r"metric = 'val_size', .*validation"):
        hy.select(Sized, SPACE, dataset(validation=0), search=hy.Random(1), epochs=1, metric=["loss", "val_size"],
                  mode=["min", "min"], engine=hy.Inline(), directory=tmp_path / "none")  # fmt: skip


def test_other_objectives_are_another_run(tmp_path: Path) -> None:
    search(tmp_path / "run", search=hy.Random(1), epochs=1)
    with pytest.raises(RunDirectoryError, match=r"with metric=\['val_loss', 'val_size'\], not 'val_loss'"):
        search(tmp_path / "run", search=hy.Random(1), epochs=1, metric="val_loss", mode="min", resume=True)
    assert search(tmp_path / "run", search=hy.Random(1), epochs=1, resume=True).status == "completed"
