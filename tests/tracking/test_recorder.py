"""Records of journals: of worlds in which everything goes wrong, and of real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from faults.worlds import played
from hopyard import tracking
from hopyard.core.runs.codec import decode
from hopyard.core.runs.events import Histogram
from hopyard.core.runs.machine import Machine, fold
from hopyard.driver.runs.run import Run
from hopyard.errors import RunDirectoryError
from hopyard.frameworks.linear import Linear
from hopyard.spec import Batch
from hopyard.store.layout import Layout
from hopyard.tracking import EpochEnded, Logged, Record, RungReached, RunStarted, TrialEnded, TrialStarted
from hopyard.tracking.recorder import Recorder
from jobs import WIDTH, journal, select


def check(records: list[Record], machine: Machine) -> None:
    """Assert that the records are those of a run in this state."""
    assert isinstance(records[0], RunStarted)
    started: dict[int, int] = {}
    epochs: dict[tuple[int, int, int], dict[str, float]] = {}
    ends: dict[int, TrialEnded] = {}
    for record in records:
        match record:
            case TrialStarted():
                assert record.attempt == started.get(record.trial, -1) + 1
                started[record.trial] = record.attempt
            case EpochEnded():
                assert started[record.trial] == record.attempt
                key = record.trial, record.attempt, record.epoch
                assert key not in epochs
                epochs[key] = record.metrics
            case TrialEnded():
                assert started[record.trial] == record.attempt
                ends[record.trial] = record
            case _:
                pass
    for trial in machine.trials.values():
        attempt = started.get(trial.id, 0)
        last = {key[2] - 1: values for key, values in epochs.items() if key[:2] == (trial.id, attempt)}
        assert repr(dict(sorted(last.items()))) == repr(dict(sorted(trial.history.items())))  # NaN is equal to NaN
        if trial.ended:
            assert (ends[trial.id].status, ends[trial.id].digest) == (trial.status, trial.digest())


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 200), marks=pytest.mark.long)])
def test_each_epoch_has_one_record_whatever_goes_wrong(seeds: range) -> None:
    for seed in seeds:
        lines = [decode(line) for line in played(seed)]
        recorder = Recorder()
        records = [record for line in lines for record in recorder.take(line)]
        check(records, fold(lines))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return select(tmp_path_factory.mktemp("records") / "run", stop=hy.ASHA(2, 1), epochs=4)


def test_records_of_a_run(run: Run) -> None:
    records = list(tracking.read(run.directory))
    check(records, fold(journal(run.directory)))
    ends = {record.trial: record for record in records if isinstance(record, TrialEnded)}
    assert {number: end.metrics for number, end in ends.items()} == {trial.id: trial.metrics for trial in run.trials}
    rungs = [record for record in records if isinstance(record, RungReached)]
    assert {rung.epochs for rung in rungs} == {1.0, 2.0} and all("val_loss" in rung.metrics for rung in rungs)
    start = records[0]
    assert isinstance(start, RunStarted) and start.settings["metric"] == "val_loss" and start.facts["data"]


def test_what_a_recipe_logs_has_a_record_for_each_partition(tmp_path: Path) -> None:
    def recipe(config: dict[str, Any], ctx: hy.RecipeContext) -> Any:
        class Logs(Linear):
            def train(self, batch: Batch) -> Any:
                ctx.log("rows", len(batch.targets))
                ctx.log("x", batch.inputs)
                return super().train(batch)

        return Logs(WIDTH, 2, lr=config["lr"], batch_size=16)

    run = select(tmp_path / "run", recipe, epochs=2)
    logged = [record for record in tracking.read(run.directory) if isinstance(record, Logged)]
    partitions = about_partitions(run)
    assert [(each.trial, each.step) for each in sorted(logged, key=lambda each: (each.trial, each.step))] == [
        (trial.id, step) for trial in run.trials for step in range(1, 2 * partitions + 1)
    ]
    assert all(each.epoch == 1 + (each.step - 1) // partitions for each in logged)
    first = logged[0].values
    assert isinstance(first["rows"], float) and isinstance(first["x"], Histogram) and sum(first["x"].counts) > 0


def about_partitions(run: Run) -> int:
    return fold(journal(run.directory)).spec.partitions


def test_portions_give_the_same_records(run: Run) -> None:
    from hopyard.tracking.reading import Reading

    reading, records = Reading(Layout(Path(run.directory))), list[Record]()
    while not reading.whole:
        records += reading.more(lines=3)
    assert repr(records) == repr(list(tracking.read(run.directory)))


def test_a_directory_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no run here"):
        next(tracking.read(tmp_path))
