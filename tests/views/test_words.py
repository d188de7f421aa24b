import math

import pytest

from hopyard.core.runs.machine import fold
from hopyard.views import words
from hopyard.views.report import report


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.0, "0.00 s"), (0.0031, "3.1 ms"), (0.42, "0.42 s"), (2.04, "2.0 s"), (59.4, "59 s"),
     (59.6, "1 min 00 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (math.nan, "–"), (-1, "0.00 s")],
)  # fmt: skip
def test_duration(seconds, text):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0.0000"), (0.21012, "0.2101"), (1234.5, "1234"), (1.5e-7, "1.5e-07"), (math.nan, "NaN"),
     (math.inf, "∞"), (-math.inf, "-∞")],
)  # fmt: skip
def test_number(value, text):
    assert words.number(value) == text


def test_size_and_count():
    assert [words.size(n) for n in (0, 812, 1_200_000, 5e13)] == ["0 B", "812 B", "1.2 MB", "50 TB"]
    assert [words.size(n) for n in (999, 1000, 999_499, 999_700, 999_700_000)] == [
        "999 B",
        "1 kB",
        "999 kB",
        "1 MB",
        "1 GB",
    ]
    assert [words.count(1, "trial"), words.count(2000, "trial"), words.count(2, "class")] == [
        "1 trial",
        "2,000 trials",
        "2 classes",
    ]


def test_differing_parameters_only():
    found = words.Differing()
    for config in ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 2, "c": 0}, {"b": 2, "c": 0}):
        found.see(config)
    assert found.names == ["a", "b", "c"]
    found = words.Differing()
    for config in ({"a": 1, "b": 2, "z": None}, {"a": 1, "b": 3, "z": None}):
        found.see(config)
    assert found.names == ["b"]


def test_ranks_and_best(rough):
    machine = fold(rough)
    ranked = words.ranked(machine)
    assert [t.status for t in ranked] == ["completed"] * 5 + ["failed"]
    values = [t.value("val_loss") for t in ranked[:5]]
    assert values == sorted(values)
    assert words.best(machine) is ranked[0]
    assert words.columns(machine) == ["val_loss", "loss", "val_accuracy", "accuracy"]


def test_nan_is_worst_and_ties_go_to_the_lower_trial(good):
    machine = fold(good)
    for trial in machine.trials.values():
        trial.history[trial.best]["val_loss"] = math.nan if trial.id < 2 else 0.5
    assert words.best(machine).id == 2
    assert [t.id for t in words.ranked(machine)] == [2, 3, 4, 5, 0, 1]
    for trial in machine.trials.values():
        trial.history[trial.best]["val_loss"] = math.nan
    assert words.best(machine) is None
    text = report(good, machine, {"directory": "runs/x"}, "completed")
    assert "Best: none; no trial has a finite val_loss" in text
