"""Warnings that come while a unit runs: told once for each trial, and shown as ever."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from hopyard.agent.runs.warned import MOST, WarningWatch
from hopyard.code.places import of_function
from hopyard.spec import Warned


@pytest.fixture
def shown() -> Iterator[list[Any]]:
    """What Python shows, with its own memory of lines that have warned."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        yield seen


def odd(text: str = "odd shapes") -> None:
    warnings.warn(text, UserWarning, stacklevel=1)


def recipe(config: Any) -> None: ...


def watched(watch: WarningWatch, trial: int, *calls: Any) -> list[Warned]:
    with watch.during(trial, recipe) as news:
        for call in calls:
            call()
    return news


def test_a_line_is_reported_once_per_trial_and_shown_once(shown: list[Any]) -> None:
    watch = WarningWatch("nobody")
    (first,) = watched(watch, 0, odd, odd)
    assert first.text == "UserWarning: odd shapes"
    assert first.place.startswith("test_warned.py, line ") and first.place.endswith(", in odd")
    assert watched(watch, 0, odd) == []
    assert watched(watch, 1, odd) == [first]
    assert [str(warning.message) for warning in shown] == ["odd shapes"]


def test_every_warning_category_of_a_line_is_reported(shown: list[Any]) -> None:
    def both() -> None:
        for category in (UserWarning, DeprecationWarning, UserWarning):
            warnings.warn_explicit("odd", category, "train.py", 3)

    told = watched(WarningWatch("nobody"), 0, both)
    assert [warning.text for warning in told] == ["UserWarning: odd", "DeprecationWarning: odd"]


def test_a_warning_in_a_library_names_the_users_line(shown: list[Any]) -> None:
    def loss() -> None:
        warnings.warn_explicit("a target size", UserWarning, "/usr/lib/python/site-packages/torch/loss.py", 535)

    (warned,) = watched(WarningWatch("nobody"), 0, loss)
    assert warned.place.endswith(", in loss; from loss.py, line 535")


def test_a_warning_below_no_line_of_the_users_names_the_recipe(shown: list[Any]) -> None:
    (warned,) = watched(WarningWatch(__name__), 0, odd)  # this module stands for what runs units
    assert warned.place.startswith(f"{of_function(recipe)}; from test_warned.py, line ")


def test_silenced_warnings_stay_silent(shown: list[Any]) -> None:
    def quiet() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            odd()

    assert watched(WarningWatch("nobody"), 0, quiet) == []
    assert not shown


def test_other_threads_warn_on_their_own_account(shown: list[Any]) -> None:
    def elsewhere() -> None:
        thread = threading.Thread(target=odd)
        thread.start()
        thread.join()

    assert watched(WarningWatch("nobody"), 0, elsewhere) == []
    assert len(shown) == 1


def test_warnings_per_trial_are_limited(shown: list[Any]) -> None:
    def each() -> None:
        for line in range(2 * MOST):
            warnings.warn_explicit("one of many", UserWarning, "train.py", line)

    assert len(watched(WarningWatch("nobody"), 0, each)) == MOST
    assert len(shown) == 2 * MOST


def test_a_reported_warning_is_printable_and_short(shown: list[Any]) -> None:
    def warn() -> None:
        odd("cl\x1b[2Jear" + "!" * 999)

    (told,) = watched(WarningWatch("nobody"), 0, warn)
    assert "\x1b" not in told.text and len(told.text) < 320


def test_afterwards_all_is_as_before(shown: list[Any]) -> None:
    before = warnings.showwarning
    watched(WarningWatch("nobody"), 0, odd)
    assert warnings.showwarning is before
    with pytest.raises(KeyError), WarningWatch("nobody").during(0, recipe):
        raise KeyError
    assert warnings.showwarning is before
