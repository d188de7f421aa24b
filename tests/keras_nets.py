"""Small Keras models and feeds for the tests of frameworks: built anew with equal first weights, whenever asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from hopyard.data.columns import Columns
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.frameworks import seed_all
from hopyard.frameworks.keras import runtime as keras_runtime
from hopyard.frameworks.keras.checks import Info
from hopyard.frameworks.keras.model import Model
from hopyard.frameworks.tree import capture

WIDTH = 4
CLASSES = 3
INPUTS: Info = {"inputs": ((WIDTH,), "float32")}
TARGETS: Info = {"targets": ((), "int64")}

layers = keras.layers
losses = keras.losses
metrics = keras.metrics
optimizers = keras.optimizers


def made(net: Callable[[], keras.Model], seed: int = 3) -> keras.Model:
    """What `net` builds, as if it were the first of its process: equal names, equal first weights."""
    seed_all(seed)
    keras_runtime.before_recipe(seed, False)
    return net()


def model(net: Callable[[], keras.Model], seed: int = 3, **more: Any) -> Model:
    """The same as a Trainable that was told what the data looks like."""
    trainable = Model(made(net, seed), **more)
    trainable.set_schema(INPUTS, TARGETS)
    return trainable


def mlp(**compiled: Any) -> keras.Model:
    """Adam slots, batch statistics and a generator: what a State may hold."""
    net = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            layers.Dense(6),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.4),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    return with_loss(net, **compiled)


def small(**compiled: Any) -> keras.Model:
    """What is drawn matters, and a step is traced fast."""
    net = keras.Sequential([keras.Input((WIDTH,)), layers.Dropout(0.4), layers.Dense(CLASSES, activation="softmax")])
    if "optimizer" not in compiled:
        compiled["optimizer"] = optimizers.SGD(0.1, momentum=0.5)
    return with_loss(net, **compiled)


def plain(**compiled: Any) -> keras.Model:
    """Nothing but weights."""
    return with_loss(keras.Sequential([keras.Input((WIDTH,)), layers.Dense(CLASSES, activation="softmax")]), **compiled)


def with_loss(net: keras.Model, **compiled: Any) -> keras.Model:
    """`net`, compiled for class numbers."""
    if "optimizer" not in compiled:  # one that is made and not used would count in the names
        compiled["optimizer"] = optimizers.Adam(0.01)
    net.compile(**({"loss": "sparse_categorical_crossentropy"} | compiled))
    return net


def data(seed: int, count: int) -> tuple[Any, Any]:
    """x of shape (count, 4) and float32, y of three classes."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, WIDTH), dtype=np.float32), rng.integers(0, CLASSES, count)


def feed_of(x: Any, y: Any, weights: Any = None, size: int = 8, shuffle: int | None = None, seed: Any = 0) -> Any:
    """The feed over arrays, or dicts of such."""
    some = next(iter(x.values())) if isinstance(x, dict) else x
    return PartitionLoader(Columns(x, y, weights, len(some)), size, shuffle, seed)


def feed(seed: int, count: int = 28, size: int = 8, shuffle: int | None = 1, draws: int | None = 0) -> Any:
    """A feed of `data(seed, count)`; `draws` seeds dropout and its like, None leaves the generators as they are."""
    return feed_of(*data(seed, count), None, size, shuffle, draws)


def ordered(given: Any) -> tuple[Any, Any]:
    """x and y in the order in which the feed visits them."""
    x, y = given.columns.inputs, given.columns.targets
    return (x, y) if given.order is None else (x[given.order], y[given.order])


def bits(trainable: Model) -> bytes:
    """Of its State."""
    from hopyard.store.tree import encode

    return bytes(encode(capture(trainable)))


def mean(sums: Any, name: str = "loss") -> float:
    """A mean from its sum."""
    total, rows = sums[name]
    return float(total / rows)
