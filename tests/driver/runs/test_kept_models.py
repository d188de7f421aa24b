"""The models of a trial that failed, or is tried again: none is lost before another one is stored."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.runs.events import Retried
from hopyard.core.runs.machine import fold
from hopyard.errors import RunFailed, SpecError
from hopyard.frameworks.linear import Linear
from hopyard.spec import Ref
from hopyard.store.states import LocalStore
from jobs import CONFIGS, WIDTH, digests, journal, linear, select, states, troubled, until
from killed_writes import kills

EPOCH = 12
"""Batches of an epoch of `dataset`."""
EVERY = 3
"""Of the moments at which a driver may be killed, one in so many is tried."""
PARTITIONS = 4
GOOD = dict(CONFIGS[1])
BAD = {"lr": 0.1, "at": 3 * EPOCH + 5, "do": "raise"}
"""Raises an error in its fourth epoch."""


def mended(config: dict[str, Any]) -> Linear:
    """Another recipe, whose weights are others."""
    return Linear(WIDTH, 2, lr=config["lr"], batch_size=8)


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
    assert states(tmp_path / "run").refs() == fold(journal(run.directory)).kept()


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


def weights(trial: Any, checkpoint: str = "best") -> list[Any]:
    """Of its model, which is compared with the journal's digest as it is read."""
    found: list[Any] = trial.model(checkpoint).weights.tolist()
    return found


@pytest.mark.long
def test_kill_9_at_any_write_of_a_retry_leaves_a_model(tmp_path: Path) -> None:
    base, directory = tmp_path / "base", tmp_path / "run"
    trial = select(base, troubled, [GOOD, BAD], epochs=5).trials[1]
    best, last = weights(trial), weights(trial, "last")
    wanted = digests(select(tmp_path / "wanted", mended, [GOOD, BAD], epochs=5))
    shutil.copytree(base, directory)
    killed = {"old": 0, "new": 0}
    for point in kills(lambda: hy.resume(directory, failed=True, recipe=mended), every=EVERY):
        loaded = hy.load(directory).trials[1]
        old = weights(loaded, "last") == last
        killed["old" if old else "new"] += 1
        begun = any(isinstance(line, Retried) for line in journal(directory))
        assert weights(loaded) == best if old else begun, point
        run = hy.resume(directory)
        assert digests(run)[1] == wanted[1] if begun else weights(run.trials[1]) == best, point
        shutil.rmtree(directory)
        shutil.copytree(base, directory)
    assert min(killed.values()) > 5 and sum(killed.values()) >= 70


@pytest.mark.long
def test_kill_9_at_any_write_while_a_trial_fails_leaves_the_model_of_its_best_epoch(tmp_path: Path, slow: None) -> None:
    directory, count = tmp_path / "run", 0
    first = select(tmp_path / "wanted", troubled, [GOOD, BAD], epochs=4)
    wanted = weights(first.trials[1]), digests(first)

    def work() -> None:
        select(directory, troubled, [GOOD, BAD], epochs=4)

    for point in kills(work, every=EVERY):
        count += 1
        run = select(directory, troubled, [GOOD, BAD], epochs=4, resume=True)
        assert (weights(run.trials[1]), digests(run)) == wanted, point
        shutil.rmtree(directory)
    assert count >= 70
