"""`ports.frameworks.Runtime`: what every framework does to the process that it trains in, and takes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hopyard.frameworks import FRAMEWORKS, imported, model_file, runtime, runtimes

pytestmark = pytest.mark.tensorflow


def _torch() -> Any:
    import torch

    return torch.rand(3).tolist()


def _tensorflow() -> Any:
    import tensorflow as tf

    return tf.random.uniform((3,)).numpy().tolist()


def _keras() -> Any:
    import keras

    return np.asarray(keras.random.uniform((3,))).tolist()


DRAWS: dict[str, Callable[[], Any]] = {"torch": _torch, "tensorflow": _tensorflow, "keras": _keras}
"""JAX has no generator of the process."""


@pytest.fixture(params=FRAMEWORKS)
def name(request: pytest.FixtureRequest) -> Any:
    found = runtime(request.param)
    snapshot = found.snapshot()
    yield request.param
    found.restore(snapshot)


def test_versions_are_plain_values_for_the_journal(name: str) -> None:
    versions = runtime(name).versions()
    assert json.loads(json.dumps(versions)) == versions
    assert versions[name]


def test_a_runtime_is_there_once_its_framework_is(name: str) -> None:
    assert name in imported() and runtimes()[name] is runtime(name)


def test_preparation_may_be_repeated(name: str) -> None:
    found = runtime(name)
    for _ in range(2):
        found.prepare()
        found.warm()
        found.install("warn", 0)
        found.release()


@pytest.mark.parametrize("drawing", sorted(DRAWS))
def test_equal_seeds_draw_equally(drawing: str) -> None:
    found, draw = runtime(drawing), DRAWS[drawing]
    snapshot = found.snapshot()
    drawn = []
    for seed in (1, 2, 1):
        found.reseed(seed)
        drawn.append(draw())
    found.restore(snapshot)
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize("drawing", sorted(DRAWS))
def test_a_run_leaves_the_user_s_generator_where_it_was(drawing: str) -> None:
    found, draw = runtime(drawing), DRAWS[drawing]
    found.reseed(5)
    snapshot = found.snapshot()
    expected = draw()
    found.restore(snapshot)
    found.install("warn", 0)
    found.before_recipe(9, True)
    draw()
    found.after_recipe()
    found.restore(snapshot)
    if drawing == "tensorflow":  # what was drawn in the midst of a sequence cannot be told; its start can
        found.reseed(5)
    assert draw() == expected


def test_a_recipe_s_model_is_adopted_and_anything_else_is_left(name: str) -> None:
    value = object()
    assert runtime(name).adopt(value) is value


def test_frameworks_without_files_say_so() -> None:
    assert {one for one in FRAMEWORKS if runtime(one).file is not None} == {"torch", "keras"}
    assert model_file("torch").name == "model.safetensors"
    for without in ("jax", "mine"):
        with pytest.raises(ValueError, match=f"framework = '{without}': .*torch and keras"):
            model_file(without)
