"""What cannot be pickled or loaded is said; how code is pickled is in tests/code."""

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import hopyard as hy
from hopyard.code.pickling import culprit
from hopyard.driver.pickling import PYTHON, dump, load


def test_an_object_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(hy.SpecError, match=r"search cannot be pickled: TypeError: cannot pickle '_thread\.lock'"):
        dump(threading.Lock(), "search")


LOCK = threading.Lock()
SCRIPT: dict[str, Any] = {"__name__": "__main__", "LOCK": LOCK}
exec("def locks(config):\n    with LOCK: pass\ndef calls(config):\n    locks(config)\n", SCRIPT)


class Holder:
    def __init__(self) -> None:
        self.small, self.lock = 1, LOCK

    def __call__(self, config: Any) -> Any:
        return config


class Careful(Holder):
    """Leaves the lock out of its pickle."""

    def __getstate__(self) -> Any:
        return {"small": 1}


def closes(value: Any) -> Any:
    def recipe(config: Any) -> Any:
        return value

    return recipe


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (SCRIPT["locks"], "the global `LOCK`"),
        (SCRIPT["calls"], "the global `locks`, the global `LOCK`"),
        (closes(LOCK), "the variable `value`"),
        (closes({"a": 1, "b": LOCK}), "the variable `value`, the key 'b'"),
        (closes(partial(print, 1, LOCK)), "the variable `value`, argument 1 of a partial"),
        (lambda config, lock=LOCK, small=1: config, "the default of `lock`"),
        (lambda config, small=1, *, lock=LOCK: config, "the default of `lock`"),
        (Holder(), "the attribute `lock`"),
        ((SCRIPT["locks"], None), "the global `LOCK`"),
        (closes(Holder().__call__), "the variable `value`, the object of a method, the attribute `lock`"),
        (closes([Careful(), SCRIPT["locks"]]), "the variable `value`, item 1, the global `LOCK`"),
    ],
)
def test_the_variable_that_cannot_be_pickled_is_named(value: Any, path: str) -> None:
    with pytest.raises(hy.SpecError, match=f"cannot pickle '_thread.lock' object {re.escape(f'(through {path}). It')}"):
        dump(value, "recipe")


def test_the_variable_that_is_large_is_named() -> None:
    small, large = bytes(1000), bytes(50_000)

    def recipe(config: Any) -> Any:
        return small, helper

    def helper() -> Any:
        return large, small

    assert culprit(recipe, len(dump(recipe, "recipe"))) == " (through the variable `helper`, the variable `large`)"
    halves = closes([bytes(10_000), bytes(10_001)])
    assert culprit(halves, 60_000) == "" and culprit(halves, 21_000) == " (through the variable `value`)"


def test_a_pickle_that_cannot_be_loaded_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "recipe.pkl"
    with pytest.raises(hy.RunDirectoryError, match=r"recipe\.pkl: No such file"):
        load(path, PYTHON)
    path.write_bytes(b"cnowhere_to_be_found\nrecipe\n.")
    with pytest.raises(hy.RunDirectoryError, match="does not load: ModuleNotFoundError"):
        load(path, PYTHON)
    with pytest.raises(hy.RunDirectoryError, match=r"written by Python 2\.7"):
        load(path, "2.7")


def test_a_recipe_that_says_torch_and_classes() -> None:
    """cloudpickle takes `classes` for the module torch.classes, which is of a type of its own."""
    import torch

    def recipe(config: Any, ctx: Any) -> Any:
        return torch.nn.Linear(config["width"], ctx.classes), ctx.ops

    assert callable(cloudpickle.loads(dump(recipe, "recipe")))
