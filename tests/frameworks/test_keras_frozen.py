"""The weights of Keras layers with `trainable=False` stay out of the State; statistics and seeds do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import hopyard as hy
from hopyard.errors import SpecError
from hopyard.frameworks.keras.model import Model
from hopyard.frameworks.tree import restore
from hopyard.store.tree import decode
from keras_nets import CLASSES, WIDTH, bits, feed, layers, model, with_loss

pytestmark = pytest.mark.tensorflow
BASE = 4 * (WIDTH * 6 + 6 + 2 * 6)


def tuned(seed: int = 0, freeze: bool = True, units: int = 6, **compiled: Any) -> keras.Model:
    """A base with batch norm and dropout, in a model within a model, below a head that is trained."""
    base = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(seed)),
            layers.BatchNormalization(),
            layers.Dropout(0.4),
        ]
    )
    base.trainable = not freeze
    head = layers.Dense(CLASSES, activation="softmax")
    return with_loss(keras.Sequential([keras.Input((WIDTH,)), base, head]), **compiled)


def shapes(trainable: Model) -> list[tuple[int, ...]]:
    return [value.shape for value in trainable.state()["model"]]


def test_statistics_and_seeds_stay_in_the_state() -> None:
    trainable = model(tuned)
    assert shapes(trainable) == [(6,), (6,), (2,), (6, CLASSES), (CLASSES,)]
    assert trainable.frozen_bytes() == BASE and len(trainable.state()["base"]) == 64
    whole = model(lambda: tuned(freeze=False))
    assert "base" not in whole.state() and whole.frozen_bytes() == 0


def test_what_never_trains_is_not_taken_for_frozen() -> None:
    def late() -> keras.Model:
        hidden = layers.Dense(6, trainable=False)  # before it has weights
        parts = [keras.Input((WIDTH,)), hidden, layers.Normalization(mean=0.5, variance=2.0), layers.Dense(CLASSES)]
        return with_loss(keras.Sequential(parts))

    assert model(late).frozen_bytes() == 4 * (WIDTH * 6 + 6)


def adapted() -> keras.Model:
    hidden = layers.Dense(6)
    net = with_loss(keras.Sequential([keras.Input((WIDTH,)), hidden, layers.Dense(CLASSES, activation="softmax")]))
    hidden.enable_lora(2)
    return net


def test_adapters_of_keras_leave_their_kernels_in_place() -> None:
    trainable = model(adapted)
    assert trainable.frozen_bytes() == 4 * WIDTH * 6
    assert (WIDTH, 2) in shapes(trainable) and (WIDTH, 6) not in shapes(trainable)


def test_a_state_without_its_base_trains_to_the_same_bits() -> None:
    straight, hopping = model(tuned), [model(tuned), model(tuned)]
    data = bits(hopping[0])
    for number in range(4):
        straight.train_partition(feed(number, draws=number))
        restore(hopping[number % 2], decode(data))
        hopping[number % 2].train_partition(feed(number, draws=number))
        data = bits(hopping[number % 2])
    assert data == bits(straight)


@pytest.mark.parametrize("other", [lambda: tuned(seed=1), lambda: tuned(units=7), lambda: tuned(freeze=False)])
def test_a_state_with_another_base_is_refused(other: Callable[[], keras.Model]) -> None:
    trainable = model(other)
    before = bits(trainable)
    with pytest.raises(SpecError, match="frozen parameters of the State"):
        restore(trainable, decode(bits(model(tuned))))
    assert bits(trainable) == before


def test_a_whole_state_from_before_fits_where_its_frozen_weights_are_the_same() -> None:
    before, after = model(lambda: tuned(freeze=False)), model(tuned)
    whole = {**decode(bits(before)), "optimizer": after.state()["optimizer"]}
    whole["model"][-1] = whole["model"][-1] + 1
    restore(after, whole)
    np.testing.assert_array_equal(after.state()["model"][-1], whole["model"][-1])
    with pytest.raises(SpecError, match="frozen parameters of the State"):
        restore(model(lambda: tuned(seed=1)), whole)


def test_models_of_another_base_are_not_shared() -> None:
    keys = [model(partial(tuned, seed)).sharing_key for seed in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]
    assert keys[0] != model(partial(tuned, freeze=False)).sharing_key


def test_what_writes_to_frozen_weights_is_found_by_digests() -> None:
    trainable = model(tuned)
    trainable.train_partition(feed(0))
    assert trainable.changed_frozen() == []
    kernel = trainable.model.layers[0].layers[0].kernel
    kernel.assign(kernel + 1.0)
    assert trainable.changed_frozen() == [kernel.path]


@pytest.mark.parametrize("recipe", [pytest.param(tuned, marks=pytest.mark.long), adapted])
def test_a_saved_model_has_its_base(recipe: Callable[[], keras.Model], tmp_path: Path) -> None:
    """Though Keras merges adapters into their kernels as it writes them."""
    rows = np.random.default_rng(0).standard_normal((60, WIDTH), dtype=np.float32)
    data = hy.Dataset.numpy(rows, (rows[:, 0] > 0).astype(np.int64), validation=0, partitions=2)
    run = hy.fit(lambda config: recipe(), {}, data, epochs=1, engine=hy.Inline(), directory=tmp_path / "run")
    saved = run.best.save(tmp_path / "model")
    outputs = hy.load_model(saved).predict(rows)
    np.testing.assert_array_equal(outputs, run.best.predict(rows))
    if recipe is tuned:
        other = hy.load_model(saved, recipe=lambda config: tuned(seed=1))
        np.testing.assert_array_equal(other.predict(rows), outputs)
        with pytest.raises(SpecError, match=r"base=False.*of keras"):
            run.best.save(tmp_path / "other", base=False)
