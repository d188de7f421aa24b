"""What the tests of Keras runs share: small data, and recipes that name their kind in their config.

Nothing here imports a framework before a recipe is called: each backend is chosen by a worker's environment, and the
test process imports TensorFlow only where a test needs a model in it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import hopyard as hy
from hopyard.driver.runs.run import Run
from jobs import do, first_time

WIDTH = 6
FIXED = 20
"""The batch size that the recipe itself gives "wrapped"; its config says another."""
ZOO: list[dict[str, Any]] = [
    {"kind": "bare", "width": 8, "lr": 0.01, "batch_size": 16},
    {"kind": "bare", "width": 12, "lr": 0.003},
    {"kind": "schedule", "width": 8, "lr": 0.05, "batch_size": 16},
    {"kind": "callback", "width": 8, "lr": 0.05, "batch_size": 16},
    {"kind": "tape", "width": 8, "lr": 0.003, "batch_size": 16},
    {"kind": "wrapped", "width": 8, "lr": 0.01, "batch_size": 64},
    {"kind": "bare", "width": 8, "lr": 0.03},
    {"kind": "bare", "width": 8, "lr": 0.001, "batch_size": 24},
    {"kind": "bare", "width": 12, "lr": 0.01, "batch_size": 16},
    {"kind": "bare", "width": 12, "lr": 0.03, "batch_size": 16},
]
"""Two architectures, 4 and 3 times, and what else a Keras user may write. Trials are told apart by their number, so the
first few of them end in the same bits as all."""


def table(rows: int, seed: int = 0) -> tuple[Any, Any]:
    """x of shape (rows, 6) and float32, y of two classes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
    return x, (x @ rng.standard_normal(WIDTH) > 0).astype(np.int64)


def dataset(rows: int = 600) -> hy.Dataset:
    """Partitions of some 115 training rows and 35 of validation, with short last batches."""
    return hy.Dataset.numpy(*table(rows), validation=0.25, partitions=4)


def even() -> hy.Dataset:
    """Four times 64 rows, and 32 of validation: every batch of 32 is whole, so XLA compiles once."""
    x, y = table(384)
    return hy.Dataset.numpy(x[:256], y[:256], validation=hy.Dataset.numpy(x[256:], y[256:]), partitions=4)


def select(directory: Path, recipe: Any, configs: Any, **more: Any) -> Run:
    """`hy.select` with all that most tests have in common."""
    arguments: dict[str, Any] = {
        "search": hy.Configs(configs),
        "epochs": 2,
        "metric": "val_loss",
        "mode": "min",
        "engine": hy.Inline(),
        "directory": directory,
    } | more
    data = arguments.pop("data") if "data" in arguments else dataset()
    return hy.select(recipe, None, data, **arguments)


def local(workers: int = 1, **env: str) -> hy.Local:
    return hy.Local(workers=workers, devices=None, env=env)


def net(config: dict[str, Any], rate: Any = None, name: str = "plain") -> Any:
    """Dropout, batch norm, Adam: all that a State may hold."""
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            layers.Dense(config["width"]),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.3),
            layers.Dense(2),
        ],
        name=name,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate or config["lr"]), loss, metrics=["accuracy"])
    return model


def zoo(config: dict[str, Any]) -> Any:
    """A model of the kind that the config names."""
    import keras

    if path := os.environ.get("TRACES"):
        note_traces(path)
    kind, lr = config["kind"], config["lr"]
    if kind == "bare":
        return net(config)
    if kind == "wrapped":
        return hy.keras.Model(net(config), batch_size=FIXED)
    if kind == "schedule":
        return net(config, keras.optimizers.schedules.ExponentialDecay(lr, decay_steps=7, decay_rate=0.8), kind)
    if kind == "callback":
        scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: lr / (1 + epoch))
        return hy.keras.Model(net(config, name=kind), callbacks=[scheduler])
    return tape(config)


def note_traces(path: str) -> None:
    """From now on each run of the Python body of a step, so each trace, is a line of the file: process, step, model."""
    import keras

    if hasattr(keras.Sequential, "noted"):
        return
    keras.Sequential.noted = True
    for name in ("train_step", "test_step"):
        step = getattr(keras.Sequential, name)

        def noted(self: Any, data: Any, name: str = name, step: Any = step) -> Any:
            with Path(path).open("a") as file:
                file.write(f"{os.getpid()} {name} {self.name}-{self.layers[0].units}\n")
            return step(self, data)

        setattr(keras.Sequential, name, noted)


def tape(config: dict[str, Any]) -> Any:
    """A Trainable written on TensorFlow itself, with momentum. Its State holds tf.Variables, an array and a number."""
    import tensorflow as tf

    class Tape:
        batch_size = config["batch_size"]

        def __init__(self) -> None:
            draw = np.random.normal
            self.weights = [tf.Variable(draw(size=shape).astype(np.float32)) for shape in ((WIDTH, 8), (8, 2))]
            self.moments = [tf.Variable(tf.zeros_like(w)) for w in self.weights]
            self.squares = np.zeros((), np.float64)
            self.rows = 0

        def state(self):
            return {
                "weights": self.weights,
                "moments": self.moments,
                "squares": self.squares,
                "rows": self.rows,
            }

        def load(self, tree):
            for name in ("weights", "moments"):
                for variable, value in zip(getattr(self, name), tree[name], strict=True):
                    variable.assign(value)
            self.squares[...] = tree["squares"]
            self.rows = tree["rows"]

        @tf.function(reduce_retracing=True)
        def step(self, x, y):
            with tf.GradientTape() as tape:
                loss = self.loss(x, y)
            for w, m, g in zip(self.weights, self.moments, tape.gradient(loss, self.weights), strict=True):
                m.assign(0.9 * m + g / tf.cast(tf.shape(x)[0], tf.float32))
                w.assign_sub(config["lr"] * m)
            return loss

        def loss(self, x, y):
            kept = tf.nn.tanh(x @ self.weights[0]) @ self.weights[1]
            return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, kept))

        def train(self, batch):
            loss = self.step(batch.inputs, batch.targets)
            self.squares += float(loss) ** 2
            self.rows += batch.rows
            return {"loss": (loss, batch.rows)}

        def evaluate(self, batch):
            return {"loss": (self.loss(batch.inputs, batch.targets), batch.rows)}

    return Tape()


def exact_net(config: dict[str, Any]) -> Any:
    """A model in float64, in which a gang computes what one worker does. One of its members may have trouble:
    {"rank": 1, "at": 3, "do": "kill"} kills the second one before its third partition (see jobs.py)."""
    import keras

    class Troubled(hy.keras.Model):
        rank, partitions = -1, 0

        def set_exchange(self, exchange: Any) -> None:
            super().set_exchange(exchange)
            self.rank = exchange.rank

        def train_partition(self, batches: Any) -> Any:
            self.partitions += 1
            if config.get("rank", -2) == self.rank and config["at"] == self.partitions and first_time(config["once"]):
                do(config["do"])
            return super().train_partition(batches)

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((WIDTH,), dtype="float64"),
            layers.Dense(8, activation="tanh", dtype="float64"),
            layers.Dense(2, dtype="float64"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")
    model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
    return Troubled(model, batch_size=16)
