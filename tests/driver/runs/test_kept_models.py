"""The models of a trial that failed, or is tried again: none is lost before another one is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.runs.events import Retried
from hopyard.errors import RunFailed, SpecError
from hopyard.frameworks.linear import Linear
from hopyard.spec import Ref
from hopyard.store.states import LocalStore
from jobs import CONFIGS, journal, linear, select, states, troubled, until

EPOCH = 12
"""Batches of an epoch of `dataset`."""
PARTITIONS = 4
GOOD = dict(CONFIGS[1])
BAD = {"lr": 0.1, "at": 3 * EPOCH + 5, "do": "raise"}
"""Raises an error in its fourth epoch."""


def worse_at_once(config: dict[str, Any]) -> Linear:
    """Another recipe, with which a trial raises an error before any State is stored."""
    return troubled({"lr": 0.1, "at": 2, "do": "raise"})


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that has nothing before a trial has failed."""
    put = LocalStore.put

    def late(store: LocalStore, ref: Ref, data: memoryview) -> None:
        until(lambda: b'"Failed"' in (store.directory.parent / "journal.jsonl").read_bytes())
        put(store, ref, data)

    monkeypatch.setattr(LocalStore, "put", late)


def test_a_failed_trial_has_the_model_of_its_best_epoch_however_slow_the_store_is(tmp_path: Path, slow: None) -> None:
    """Bug: the States of complete epochs that were still on their way to the store were forgotten."""
    with pytest.raises(RunFailed, match="the moon"):
        select(tmp_path / "run", troubled, [BAD], epochs=4)
    (trial,) = hy.load(tmp_path / "run").trials
    assert trial.status == "failed" and trial.epoch == 3 and len(trial.history) == 3
    assert trial.model().steps == trial.model("last").steps == 3 * EPOCH
    assert {ref.step for ref in states(tmp_path / "run").refs()} == {3 * PARTITIONS}


def test_models_stay_where_another_recipe_fails_before_it_has_any(tmp_path: Path) -> None:
    """Bug: they were deleted as the trial began anew."""
    before = select(tmp_path / "run", troubled, [GOOD, BAD], epochs=5).trials[1]
    weights = before.model().weights.tolist()
    run = hy.resume(tmp_path / "run", failed=True, recipe=worse_at_once)
    trial = run.trials[1]
    assert (run.status, trial.status, trial.history) == ("partial", "failed", {})
    assert trial.model().weights.tolist() == weights and hy.load(tmp_path / "run").trials[1].model().steps == 3 * EPOCH
    assert hy.load_model(trial.save(tmp_path / "saved")).model().weights.tolist() == weights
    run = hy.resume(tmp_path / "run", failed=True, recipe=linear)
    assert run.status == "completed" and run.trials[1].model("last").steps == 5 * EPOCH
    assert states(tmp_path / "run").refs() == run._machine.kept()


def test_a_run_that_reached_its_goal_tries_nothing_again(tmp_path: Path) -> None:
    """Bug: its models were deleted, and nothing was trained."""
    goal = select(tmp_path / "plain", linear, [GOOD], epochs=5).best.metrics["val_loss"]
    bad = {"lr": 1e-6, "at": 2 * EPOCH + 1, "do": "raise"}
    run = select(tmp_path / "run", troubled, [bad, GOOD], epochs=20, goal=goal)
    assert [trial.status for trial in run.trials] == ["failed", "stopped"] and run.status == "partial"
    kept = states(tmp_path / "run").refs()
    for recipe in (linear, None):
        with pytest.raises(SpecError, match=r"trial 1 reached val_loss=.* enqueue="):
            hy.resume(tmp_path / "run", failed=True, recipe=recipe)
    assert states(tmp_path / "run").refs() == kept and run.trials[0].model().steps == 2 * EPOCH
    assert not [line for line in journal(tmp_path / "run") if isinstance(line, Retried)]
    assert "--failed" not in run.report()
