"""Which failed trials are tried again, with which recipe, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopyard.core.runs.faults.rules import POISON
from hopyard.core.runs.records import TrialRecord
from hopyard.driver.runs.changes import trials_to_retry
from hopyard.store.layout import Layout

KINDS = {
    "user": ("user", "ValueError: x"),
    "memory": ("memory", "out of memory"),
    "poison": ("system", f"{POISON}its unit failed 3 times"),
    "system": ("system", "its unit failed 9 times"),
    "data": ("data", "rows that are no rows"),
}


def mended(config: dict[str, Any]) -> Any:
    return config


def machine(*kinds: str, safe: int = 4) -> Any:
    """A completed trial, and one that failed so for each kind."""
    records = [TrialRecord(number, {}, 8) for number in range(len(kinds) + 1)]
    records[0].status = "completed"
    for record, kind in zip(records[1:], kinds, strict=True):
        record.status, record.durable_step = "failed", safe
        record.fault, record.error = KINDS[kind]
    return SimpleNamespace(trials={record.id: record for record in records}, search=SimpleNamespace(closed=""))


def asked(*kinds: str, recipe: Any = None, safe: int = 4) -> tuple[list[int], list[int]]:
    """(trials that go on, trials that begin anew)"""
    found = trials_to_retry(Layout(Path("runs/mine")), machine(*kinds, safe=safe), recipe)
    return [one.trial for one in found if not one.recipe], [one.trial for one in found if one.recipe]


def test_without_a_recipe_all_go_on_but_those_that_theirs_ended(caplog: pytest.LogCaptureFixture) -> None:
    assert asked("memory", "poison", "system", "data") == ([1, 2, 3, 4], [])
    assert not caplog.messages
    assert asked(*KINDS) == ([2, 3, 4, 5], [])
    (said,) = caplog.messages
    assert said.endswith(
        "trial 1: left as before, ended by errors of the recipe; "
        "hy.resume('runs/mine', failed=True, recipe=…) begins anew with another recipe"
    )


def test_another_recipe_is_for_those_whose_recipe_may_be_to_blame(caplog: pytest.LogCaptureFixture) -> None:
    assert asked(*KINDS, recipe=mended) == ([4, 5], [1, 2, 3])
    (said,) = caplog.messages
    assert said.endswith(
        "trials 1, 2, 3: begun anew with recipe mended; trials 4, 5: continued from the last State, as no "
        "recipe is to blame"
    )


def test_a_new_recipe_serves_all_trials_with_nothing_to_lose(caplog: pytest.LogCaptureFixture) -> None:
    """Where a network that cannot be reached is named in the recipe, for example."""
    assert asked("system", "data", recipe=mended, safe=0) == ([], [1, 2])
    (said,) = caplog.messages
    assert said.endswith("trials 1, 2: begun anew with recipe mended")


def test_a_recipe_that_nobody_takes(caplog: pytest.LogCaptureFixture) -> None:
    """Bug: nothing was said."""
    assert asked("system", recipe=mended) == ([1], [])
    (said,) = caplog.messages
    assert said.endswith(
        "recipe mended is used for no trial; trial 1: continued from the last State, as no recipe is to blame"
    )


@pytest.mark.parametrize("recipe", [None, mended])
def test_a_retry_without_failed_trials(caplog: pytest.LogCaptureFixture, recipe: Any) -> None:
    """Bug: nothing was said."""
    assert asked(recipe=recipe) == ([], [])
    (said,) = caplog.messages
    more = ", and recipe mended is not used" if recipe else ""
    assert said.endswith(f"runs/mine: no trial has failed, so none is tried again{more}")
