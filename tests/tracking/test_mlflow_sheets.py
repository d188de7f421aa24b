"""What runs of MLflow are to hold, from records."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from hopyard.core.runs.events import Histogram
from hopyard.tracking import (
    EpochEnded,
    Logged,
    Record,
    RunEnded,
    RungReached,
    RunResumed,
    RunStarted,
    TrialEnded,
    TrialStarted,
)
from hopyard.tracking.mlflow.sheets import NAME, PARAM, POINTS, TAG, Batch, Point, Sheet, Sheets, safe_name
from hopyard.tracking.reading import ReadAgain

SETTINGS = {"epochs": 2, "metric": "val_loss", "mode": "min", "stop": None, "also": ()}
BEGAN = RunStarted(at=1.0, run="abc", settings=SETTINGS, facts={"hopyard": "0.1.0", "data": "d" * 64})


def started(trial: int = 0, attempt: int = 0, at: float = 2.0, **config: Any) -> TrialStarted:
    return TrialStarted(at=at, trial=trial, attempt=attempt, config=config)


def epoch(number: int, value: float, at: float, trial: int = 0) -> EpochEnded:
    return EpochEnded(at=at, trial=trial, attempt=0, epoch=number, step=4 * number, metrics={"val_loss": value})


def ended(value: float, at: float, trial: int = 0, epoch: int = 1, status: str = "completed") -> TrialEnded:
    own: dict[str, Any] = {"status": status, "epoch": epoch, "digest": "e" * 64, "seconds": 1.0, "reason": "why"}
    return TrialEnded(at=at, trial=trial, attempt=0, metrics={"val_loss": value}, **own)


def sheets(*records: Record) -> Sheets:
    result = Sheets("flights")
    for record in (BEGAN, *records):
        result.take(record)
    return result


def test_the_run_and_a_trial() -> None:
    taken = sheets(started(lr=0.1), epoch(1, 0.5, 3.0), epoch(2, 0.25, 4.0), ended(0.25, 5.0, epoch=2))
    assert taken.run.tags == {"hopyard.run": "abc", "hopyard.version": "0.1.0", "hopyard.data": "d" * 64}
    assert taken.run.params == {"epochs": "2", "metric": "val_loss", "mode": "min"}
    assert (taken.run.name, taken.run.start, taken.run.points) == (
        "flights", 1000, [Point("best_val_loss", 0.25, 5000, 1)]
    )  # fmt: skip
    trial = taken.trials[0, 0]
    assert trial.points == [
        Point("val_loss", 0.5, 3000, 1),
        Point("val_loss", 0.25, 4000, 2),
        Point("best_val_loss", 0.25, 5000, 2),
    ]
    assert (trial.name, trial.start, trial.end, trial.params) == ("trial 0", 2000, ("FINISHED", 5000), {"lr": "0.1"})
    assert trial.tags["hopyard.status"] == "completed" and trial.tags["hopyard.digest"] == "e" * 64


@pytest.mark.parametrize(("mode", "best"), [("min", [0.5, 0.25]), ("max", [0.5, 0.75])])
def test_the_best_value_of_the_run_only_gets_better(mode: str, best: list[float]) -> None:
    result = Sheets("flights")
    result.take(RunStarted(at=1.0, run="abc", settings={"metric": "val_loss", "mode": mode}, facts={}))
    values = [0.5, 0.75, 0.25, math.nan]
    for number, value in enumerate(values):
        result.take(started(number))
        result.take(ended(value, 3.0 + number, number))
    result.take(started(4))
    result.take(ended(-9.0 if mode == "min" else 9.0, 9.0, 4, status="failed"))
    assert [point.value for point in result.run.points] == best
    assert [point.step for point in result.run.points] == [values.index(value) + 1 for value in best]


def test_another_attempt_is_another_run_and_more_epochs_are_not() -> None:
    taken = sheets(started(3), ended(0.5, 3.0, 3), epoch(2, 0.25, 4.0, 3))
    assert taken.trials[3, 0].end is None
    taken = sheets(started(3), ended(0.5, 3.0, 3, status="failed"), started(3, 1), started(3, 2))
    assert [sheet.name for sheet in taken.trials.values()] == ["trial 3", "trial 3, again", "trial 3, again (2)"]
    assert taken.trials[3, 0].end == ("FAILED", 3000) and taken.trials[3, 1].end is None


def test_a_trial_that_ends_again_with_the_same_best_value_has_it_once() -> None:
    taken = sheets(started(), ended(0.5, 3.0), ended(0.5, 4.0))
    assert len(taken.trials[0, 0].points) == len(taken.run.points) == 1


def test_decisions_and_logged_values(caplog: pytest.LogCaptureFixture) -> None:
    rung = RungReached(
        at=3.0, trial=0, attempt=0, epochs=1.5, step=6, metrics={}, verdict="paused", reason="2 of 4 are better"
    )
    values: dict[str, float | Histogram] = {
        "norm": 0.5,
        "weights": Histogram(0.0, 1.0, 2, 1.0, 1.0, counts=(2,), widths=(8,)),
    }
    logged = Logged(at=3.0, trial=0, attempt=0, epoch=2, partition=1, step=6, values=values)
    taken = sheets(started(), rung, logged, logged, RunEnded(at=9.0, status="completed"), RunResumed(at=10.0))
    trial = taken.trials[0, 0]
    assert trial.tags["hopyard.search"] == "paused after 1.5 epochs: 2 of 4 are better"
    assert trial.points == [Point("logged/norm", 0.5, 3000, 6)] * 2
    assert caplog.text.count("histogram") == 1 and "weights" in caplog.text


def test_what_mlflow_refuses_is_cut_or_renamed_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    config: dict[str, Any] = {"a+b": 1, "text": "ä\x00" * 9000}
    taken = sheets(*[started(number, **config) for number in range(3)])
    params = taken.trials[2, 0].params
    assert set(params) == {safe_name("a+b"), "text"} and len(params["text"]) == PARAM and "\x00" not in params["text"]
    assert caplog.text.count("a+b") == 1 and caplog.text.count("45,000") == 1


@pytest.mark.parametrize("name", ["val_loss", "ä b", "a:b/c.d-e", "x" * NAME])
def test_names_that_mlflow_accepts_stay(name: str) -> None:
    assert safe_name(name) == name


def test_other_names_become_different_ones_that_it_accepts() -> None:
    names = ["", ".", "..", "a/../b", "/a", "a//b", "a/", "a+b", "a*b", "a\nb", "x" * (NAME + 1), "x" * (NAME + 2)]
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(names)
    assert all(re.fullmatch(rf"[\w\- ]{{1,{NAME}}}", name) for name in safe)
    assert safe == [safe_name(name) for name in safe]


def sheet(points: int, params: int = 1) -> Sheet:
    values = [Point("loss", float(number), 1000 + number, number) for number in range(points)]
    return Sheet("trial 0", 0, {}, {f"p{number}": "1" for number in range(params)}, values)


def test_batches_keep_the_limits_and_say_last_how_far_they_are() -> None:
    batches = list(sheet(1200, 60).batches(0, {"tag": "value"}, params=True))
    assert [(len(batch.params), len(batch.points)) for batch in batches] == [
        (25, 0), (25, 0), (10, 500), (0, 500), (0, 200)
    ]  # fmt: skip
    marks = [batch.tags.get(POINTS) for batch in batches]
    assert marks == [None, None, "500 1499", "1000 1999", "1200 2199"]
    assert ["tag" in batch.tags for batch in batches] == [False, False, True, False, False]
    assert list(sheet(2).batches(2, {}, params=False)) == [Batch({}, [], {POINTS: "2 1001"})]
    assert list(sheet(0).batches(0, {}, params=False)) == [Batch({}, [], {POINTS: "0 0"})]


def test_from_which_point_on_mlflow_lacks_them() -> None:
    own = sheet(10)
    assert [own.missing(mark) for mark in (None, "0 0", "4 1003", "10 1009")] == [0, 0, 4, 10]
    assert own.missing("11 1010") is None  # the journal was not read as far yet
    assert own.missing("4 1999") == 0  # the journal has lost what the fourth was
    own.drop()
    assert own.missing("10 1009") == 0 and own.points == []
    own.points.append(Point("loss", 0.5, 2000, 10))
    assert own.missing("10 1009") == 0 and own.missing("11 2000") == 1
    for lost in (None, "4 1003", "10 1999"):
        with pytest.raises(ReadAgain):
            own.missing(lost)


def test_texts_of_tags_are_cut() -> None:
    record = ended(0.5, 3.0)
    taken = sheets(
        started(),
        TrialEnded(**{name: getattr(record, name) for name in record.__struct_fields__} | {"reason": "x" * 9000}),
    )
    assert len(taken.trials[0, 0].tags["hopyard.reason"]) == TAG
