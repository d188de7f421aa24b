"""What cannot be pickled or loaded is said; how code is pickled is in tests/code."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import hopyard as hy
from hopyard.driver.pickling import PYTHON, dump, load


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(hy.SpecError, match=r"search cannot be pickled: TypeError: cannot pickle '_thread\.lock'"):
        dump(threading.Lock(), "search")


def test_what_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    path = tmp_path / "recipe.pkl"
    with pytest.raises(hy.RunDirectoryError, match="No such file or directory; the run directory is not whole"):
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
