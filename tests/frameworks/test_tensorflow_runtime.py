"""What a run changes of TensorFlow in its process: determinism, seeds; and that it is given back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager
from tensorflow.python.util import _pywrap_determinism as determinism

import hopyard as hy
from hopyard.frameworks import runtime, seed_all
from hopyard.frameworks.keras import runtime as keras_runtime
from hopyard.frameworks.tensorflow import runtime as tensorflow_runtime
from hopyard.frameworks.tree import capture
from hopyard.spec import RunSpec
from hopyard.store.tree import encode
from hopyard.training.build import Plan, build, foresee, install, named, undisturbed
from keras_nets import data, feed_of, layers

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def tensorflow_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in list(vars(tensorflow_runtime._Drawn).items()):  # as if nobody drew in this process
        if not name.startswith("_"):
            monkeypatch.setattr(tensorflow_runtime._Drawn, name, False if isinstance(value, bool) else None)
    before = tensorflow_runtime.snapshot()
    yield
    tensorflow_runtime.restore(before)


def plan(recipe: Any, exact: Any = "warn") -> Plan:
    manifest = hy.Dataset.numpy(*data(0, 40), partitions=2).prepare()
    return Plan(recipe, manifest, RunSpec(epochs=1, partitions=2, validation=0, exact=exact))


def bits(recipe: Any, trial: int) -> bytes:
    return bytes(encode(capture(build(plan(recipe), trial, {}).trainable)))


# ------------------------------------------------------------------------------------------------ first weights


def with_weights(draw: Callable[[list[int]], Any]) -> keras.Model:
    net = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    net.compile("sgd", "mse")
    net.layers[0].kernel.assign(draw([4, 3]))
    return net


def eagerly(config: Any) -> keras.Model:
    return with_weights(tf.random.normal)


def seeded(config: Any) -> keras.Model:
    return with_weights(lambda shape: tf.random.normal(shape, seed=5))


def compiled(config: Any) -> keras.Model:
    return with_weights(tf.function(lambda shape: tf.random.uniform(shape), autograph=False))


def initialised(config: Any) -> keras.Model:
    return with_weights(tf.random_normal_initializer(0.0, 0.1))


def by_keras(config: Any) -> keras.Model:
    net = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dropout(0.3), layers.Dense(3)])
    net.compile("sgd", "mse")
    net.layers[0].bias.assign(keras.random.normal((3,)))  # from the generator without a name
    return net


def by_numpy_and_python(config: Any) -> keras.Model:
    return with_weights(lambda shape: np.random.normal(size=shape) + random.random())


def seeding_itself(config: Any) -> keras.Model:
    keras.utils.set_random_seed(11)
    return with_weights(keras.random.normal)


helpers = ModuleType("helpers")
helpers.draw = lambda shape: tf.random.normal(shape)  # type: ignore[attr-defined]
helpers.draw_seeded = lambda shape: tf.random.normal(shape, seed=6)  # type: ignore[attr-defined]


def by_a_module(config: Any) -> keras.Model:
    return with_weights(lambda shape: helpers.draw(shape))


def by_a_module_seeded(config: Any) -> keras.Model:
    return with_weights(lambda shape: helpers.draw_seeded(shape))


def inside() -> Callable[[Any], keras.Model]:
    """A recipe within a function that imported TensorFlow: where `tf` is a variable of what is around it."""
    import tensorflow as inner

    def recipe(config: Any) -> keras.Model:
        return with_weights(lambda shape: inner.random.normal(shape, seed=9))

    return recipe


class Recipe:
    def __call__(self, config: Any) -> keras.Model:
        return with_weights(lambda shape: tf.random.normal(shape, seed=8))


RECIPES: list[Any] = [
    eagerly,
    seeded,
    compiled,
    initialised,
    by_keras,
    by_numpy_and_python,
    seeding_itself,
    by_a_module,
    pytest.param(by_a_module_seeded, id="by_a_module_seeded"),
    pytest.param(inside(), id="inside"),
    pytest.param(Recipe(), id="object"),
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_trial_is_built_with_the_same_first_weights_whatever_was_built_before(recipe: Any) -> None:
    first = [bits(recipe, trial) for trial in (0, 1, 2)]
    assert [bits(recipe, trial) for trial in (2, 0, 0, 1)] == [first[2], first[0], first[0], first[1]]
    if recipe is not seeding_itself:
        assert len(set(first)) == 3


def test_draws_of_the_user_between_two_builds_do_not_show() -> None:
    first = bits(eagerly, 0)
    tf.random.set_seed(99)
    tf.random.normal([3])
    assert bits(eagerly, 0) == first


def test_names_of_tensorflow_are_found() -> None:
    assert named(eagerly) >= {"tensorflow"}
    assert named(seeded) >= {"tensorflow"}
    assert "tensorflow" not in named(by_keras)
    foresee(eagerly)  # there already: nothing to do


# ------------------------------------------------------------------------------------------------ seeds


def test_reseed_makes_draws_begin_anew() -> None:
    def drawn() -> list[float]:
        return [float(tf.random.normal([])), float(tf.random.uniform([]))]

    tensorflow_runtime.reseed(3)
    first = drawn()
    assert drawn() != first
    tensorflow_runtime.reseed(3)
    assert drawn() == first
    tensorflow_runtime.reseed(4)
    assert drawn() != first


def test_compiled_functions_stay_prepared_while_nobody_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tf.random.set_seed` costs 130 ms and more."""
    asked: list[int] = []
    monkeypatch.setattr(tf.random, "set_seed", asked.append)
    for seed in range(3):
        tensorflow_runtime.reseed(seed)
        keras.random.normal((2,))
        layers.Dense(2).build((None, 3))
    assert asked == []
    tf.random.normal([2])
    tensorflow_runtime.reseed(3)
    tensorflow_runtime.reseed(4)
    assert asked == [3, 4]


def test_a_recipe_that_names_tensorflow_is_seeded_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(tf.random, "set_seed", asked.append)
    tensorflow_runtime.before_recipe(5, False)
    assert asked == []
    tensorflow_runtime.before_recipe(6, True)
    assert asked == [6]


def test_a_recipe_that_seeds_tensorflow_itself_does_not_count_as_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    build(plan(seeding_itself), 0, {})
    asked: list[int] = []
    monkeypatch.setattr(tf.random, "set_seed", asked.append)
    for seed in (1, 2):
        seed_all(seed)
    assert asked == []


# ------------------------------------------------------------------------------------------------ determinism


@pytest.mark.parametrize("exact", [True, "warn"])
def test_operations_are_deterministic(exact: Any) -> None:
    determinism.enable(False)
    install(plan(eagerly, exact))
    assert (
        tf.config.experimental.is_op_determinism_enabled()
        if hasattr(tf.config.experimental, "is_op_determinism_enabled")
        else determinism.is_enabled()
    )


def test_unless_nobody_wants_them() -> None:
    determinism.enable(False)
    install(plan(eagerly, False))
    assert not determinism.is_enabled()


def test_threads_are_left_as_they_are_once_tensorflow_has_begun() -> None:
    float(tf.constant(0.0))
    before = tensorflow_runtime.versions()["tensorflow_threads"]
    tensorflow_runtime.install("warn", before[0] + 3)
    assert tensorflow_runtime.versions()["tensorflow_threads"] == before
    tensorflow_runtime.install("warn", 0)


def test_settings_that_equal_digests_depend_on() -> None:
    found = tensorflow_runtime.versions()
    assert found["tensorflow"] == tf.__version__
    assert set(found) == {"tensorflow", "tensorflow_threads", "tensorflow_flags", "cpu"}
    assert keras_runtime.versions()["keras_backend"] == "tensorflow"
    tensorflow_runtime.warm()
    assert runtime("tensorflow") is tensorflow_runtime.RUNTIME


# ------------------------------------------------------------------------------------------------ given back


def user_draws() -> list[float]:
    drawn = [float(tf.random.normal([])) for _ in range(2)]
    return [*drawn, float(keras.random.normal(())), random.random(), float(np.random.normal())]


def test_the_users_own_process_is_left_as_it_was() -> None:
    determinism.enable(False)
    keras.utils.set_random_seed(21)
    first = user_draws()
    expected = user_draws()
    name = layers.Dense(1).name
    keras.utils.set_random_seed(21)
    keras.config.set_epsilon(1e-5)
    try:
        assert user_draws() == first
        with undisturbed():
            for recipe in (eagerly, by_keras):
                built = build(plan(recipe), 0, {}).trainable
                seed_all(5)
                built.train_partition(feed())
            assert determinism.is_enabled()
        assert user_draws() == expected
        assert not determinism.is_enabled()
        assert keras.config.epsilon() == 1e-5
        assert following(layers.Dense(1).name) == following(name) + 1
    finally:
        keras.config.set_epsilon(1e-7)


def feed() -> Any:
    x, y = data(1, 16)
    return feed_of(x, np.eye(3, dtype=np.float32)[y])


def following(name: str) -> int:
    """The number in dense_3."""
    return int(name.rpartition("_")[2]) if "_" in name else 0


def test_give_back_puts_back_what_was_held() -> None:
    determinism.enable(False)
    tf.random.set_seed(7)
    before = tensorflow_runtime.snapshot()
    tensorflow_runtime.install(True, 1)
    tensorflow_runtime.before_recipe(8, True)
    tf.random.normal([2])
    tensorflow_runtime.restore(before)
    assert not determinism.is_enabled()
    assert eager.context()._seed == 7
    there = float(tf.random.normal([]))
    tf.random.set_seed(7)
    assert float(tf.random.normal([])) == there


def test_a_framework_that_came_with_the_recipe_goes_back_to_its_first_state() -> None:
    determinism.enable(True)
    tf.random.set_seed(7)
    tensorflow_runtime.restore(None)
    assert not determinism.is_enabled()
    assert eager.context()._seed is None


def test_names_count_from_one_for_each_recipe() -> None:
    made_: list[str] = []

    def recipe(config: Any) -> keras.Model:
        net = by_keras(config)
        made_.append(net.layers[0].name)
        return net

    for trial in range(3):
        layers.Dense(2)
        build(plan(recipe), trial, {})
    assert made_ == ["dense", "dense", "dense"]
