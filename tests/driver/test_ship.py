"""What is pickled, and how: the user's modules by value, also when two runs are started at once."""

from __future__ import annotations

import pickle
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

import hopyard as hy
from hopyard.driver.ship import PYTHON, dump, load, users_modules


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's."""
    (tmp_path / "user_nets.py").write_text("WIDTH = 3\ndef recipe(config):\n    return WIDTH\n")
    monkeypatch.syspath_prepend(tmp_path)
    import user_nets  # type: ignore[import-not-found]

    monkeypatch.setitem(sys.modules, "user_nets", user_nets)
    return user_nets  # type: ignore[no-any-return]


def test_the_users_modules_are_those_that_are_not_installed(nets: ModuleType) -> None:
    names = {module.__name__ for module in users_modules()}
    assert "user_nets" in names
    assert not names & {"json", "numpy", "hopyard.spec", "hopyard", "pytest"}


def test_they_go_by_value(nets: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dump(nets.recipe, "recipe")
    monkeypatch.delitem(sys.modules, "user_nets")
    monkeypatch.setattr(sys, "path", [])
    assert pickle.loads(data)({}) == 3
    assert "user_nets" not in cloudpickle.list_registry_pickle_by_value()


def test_what_the_user_registered_stays_registered(nets: ModuleType) -> None:
    cloudpickle.register_pickle_by_value(nets)
    try:
        dump(nets.recipe, "recipe")
        assert "user_nets" in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(nets)


def test_by_several_threads_at_once(nets: ModuleType) -> None:
    expected = dump(nets.recipe, "recipe")
    wrong: list[object] = []

    def work() -> None:
        for _ in range(20):
            try:
                if dump(nets.recipe, "recipe") != expected:
                    wrong.append("by reference")
            except hy.SpecError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(hy.SpecError, match=r"search cannot be pickled: TypeError: cannot pickle '_thread\.lock'"):
        dump(threading.Lock(), "search")


def test_what_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    path = tmp_path / "recipe.pkl"
    with pytest.raises(hy.RunDirectoryError, match="not there; the run directory is not whole"):
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
