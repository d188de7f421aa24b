"""What Hopyard uses of Keras and TensorFlow without their leave. A new version of either is tried here first."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from hopyard.frameworks.keras import internals as keras_internals
from hopyard.frameworks.tensorflow import internals as tensorflow_internals
from hopyard.frameworks.tree import on_host

pytestmark = pytest.mark.tensorflow

KERAS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
TENSORFLOW = ("2.18", "2.19", "2.20", "2.21")
"""Versions whose internals are those that the two modules name."""
SOURCES = Path(keras_internals.__file__).parents[2]


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def test_the_versions_are_known() -> None:
    advice = "run this file with it, read its release notes, then add it to the list"
    assert minor(keras.__version__) in KERAS, f"Keras {keras.__version__} is new: {advice}"
    assert minor(tf.__version__) in TENSORFLOW, f"TensorFlow {tf.__version__} is new: {advice}"


def test_only_this_module_names_internals() -> None:
    private = re.compile(
        r"keras\.src|tensorflow\.python|_flatten_layers|_symbolic_build|_loss_tracker|_compile_config|\._trainable_var"
    )
    users = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if any(private.search(line) for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    }
    assert users == {
        "frameworks/keras/internals.py",
        "frameworks/tensorflow/internals.py",
        "agent/programs/patches.py",  # names modules, and does nothing where they are not there
    }


@pytest.fixture
def names() -> object:
    before = keras_internals.name_counts()
    yield
    keras_internals.set_name_counts(before)


@pytest.mark.usefixtures("names")
def test_name_counts_can_be_set() -> None:
    keras_internals.set_name_counts({})
    assert keras_internals.name_counts() == {}
    assert [keras.metrics.AUC().name, keras.metrics.AUC().name] == ["auc", "auc_1"]
    assert keras_internals.name_counts()["auc"] == 2
    keras_internals.set_name_counts({"auc": 7})
    assert keras.metrics.AUC().name == "auc_7"
    assert keras.metrics.Recall().name == "recall"


def test_keras_random_draws_from_the_generator_that_is_set() -> None:
    before = keras_internals.global_generator()
    assert keras_internals.existing_generator() is before
    try:
        mine = keras.random.SeedGenerator(5)
        keras_internals.set_global_generator(mine)
        assert keras_internals.existing_generator() is mine
        assert keras_internals.global_generator() is mine
        state = on_host(mine.state).copy()
        keras.random.uniform((2,))
        assert not np.array_equal(state, on_host(mine.state))
    finally:
        keras_internals.set_global_generator(before)


def compiled() -> keras.Model:
    inner = keras.Sequential([layers.Dense(3), layers.Dropout(0.5)])
    model = keras.Sequential([inner, layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", metrics=["mae"], weighted_metrics=[])
    return model


def test_layers_are_those_inside_layers_too() -> None:
    kinds = [type(layer).__name__ for layer in keras_internals.layers(compiled())]
    assert sorted(kinds) == ["Dense", "Dense", "Dropout", "Sequential", "Sequential"]


def test_kernels_are_what_would_train_also_where_it_is_frozen() -> None:
    norm = layers.BatchNormalization()
    frozen = keras.Sequential([layers.Dense(3, trainable=False), norm])
    model = keras.Sequential([keras.Input((2,)), frozen, layers.Dropout(0.5), layers.Dense(1)])
    shapes = [tuple(kernel.shape) for kernel in keras_internals.kernels(model)]
    assert sorted(shapes) == [(1,), (2, 3), (3,), (3,), (3,), (3, 1)]
    frozen.trainable = False
    assert len(keras_internals.kernels(model)) == 6 and len(model.trainable_variables) == 2


def test_compile_arguments_are_as_they_were_given() -> None:
    arguments = keras_internals.compile_arguments(compiled())
    assert arguments["loss"] == "mse"
    assert arguments["metrics"] == ["mae"]
    assert {"optimizer", "loss_weights", "weighted_metrics", "run_eagerly", "jit_compile"} <= set(arguments)


def test_build_makes_all_variables_without_a_step() -> None:
    model = compiled()
    assert keras_internals.loss_tracker(model).name == "loss"  # type: ignore[union-attr]
    keras_internals.build(model, (np.zeros((2, 4), np.float32), np.zeros((2, 1), np.float32)))
    assert [tuple(weight.shape) for weight in model.weights if "seed" not in weight.name] == [
        (4, 3),
        (3,),
        (3, 1),
        (1,),
    ]
    assert set(model.get_metrics_result()) == {"loss", "mae"}
    assert model.optimizer.iterations == 0


def test_names_of_internals_of_losses_and_metrics() -> None:
    kept = set(vars(keras.metrics.AUC())) | set(vars(keras.losses.Huber()))
    assert keras_internals.UNRELATED - {"_path", "_lock"} <= kept
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert any(name.startswith(keras_internals.NO_DECAY) for name in vars(optimizer))


def test_tensorflow_tells_and_takes_seed_generator_and_determinism() -> None:
    before, deterministic = tensorflow_internals.generator(), tensorflow_internals.deterministic()
    try:
        tf.random.set_seed(9)
        seed, generator = tensorflow_internals.generator()
        assert seed == 9
        assert isinstance(generator, random.Random)
        assert generator.getstate() == tensorflow_internals.seeded(9).getstate()
        tf.random.normal([])
        assert generator.getstate() != tensorflow_internals.seeded(9).getstate()
        mine = tensorflow_internals.seeded(4)
        tensorflow_internals.set_generator(4, mine)
        assert tensorflow_internals.generator() == (4, mine)
        tf.random.normal([])
        assert mine.getstate() != tensorflow_internals.seeded(4).getstate()
        tensorflow_internals.set_deterministic(True)
        assert tensorflow_internals.deterministic()
        tensorflow_internals.set_deterministic(False)
        assert not tensorflow_internals.deterministic()
    finally:
        tensorflow_internals.set_generator(*before)
        tensorflow_internals.set_deterministic(deterministic)


@pytest.mark.long
@pytest.mark.jax
def test_keras_on_another_backend_does_not_import_tensorflow() -> None:
    code = """
import sys, keras
from hopyard.frameworks.keras.sharing import sharing_key
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
assert sharing_key(model)
assert "tensorflow" not in sys.modules
assert keras.src.utils.module_utils.tensorflow.available
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "KERAS_BACKEND": "jax"}, check=True, timeout=60)
