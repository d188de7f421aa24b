"""Saved Keras models on the backend of KERAS_BACKEND: a script, which ends with an error where one does not come back.

Outputs for the first batch after loading, loss and metrics are compared bit for bit. Some of the models draw random
numbers in inference too, so that the State of their seed generators shows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import hopyard as hy
from hopyard.driver.saved_model import predictor_of
from hopyard.spark.inference.bundle import portable
from hopyard.training.build import undisturbed
from model_parts import ROWS, WIDTH, data, trained

layers = keras.layers


@keras.saving.register_keras_serializable("tests")
class Counts(keras.Layer):
    """Adds how many batches it was trained on, which a variable of its own says."""

    def build(self, shape: Any) -> None:
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.count.assign(self.count + 0.125)
        return x + self.count


def parts(kind: str) -> list[Any]:
    """The layers in the middle of a model."""
    if kind == "noise":
        return [layers.GaussianNoise(0.5), Always(), layers.Dropout(0.5)]
    if kind == "torch":
        import torch

        from model_parts import Kept

        return [
            layers.TorchModuleWrapper(
                torch.nn.Sequential(Kept("hidden"), Kept("persistent")), output_shape=(None, WIDTH)
            )
        ]
    if kind == "local":
        import torch

        class Local(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x * 2

        return [layers.TorchModuleWrapper(Local(), output_shape=(None, WIDTH))]
    return [layers.BatchNormalization(), Counts(), layers.Dropout(0.3)]


@keras.saving.register_keras_serializable("tests")
class Always(keras.Layer):
    """Dropout also in inference."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.seed = keras.random.SeedGenerator()

    def call(self, x: Any) -> Any:
        return keras.random.dropout(x, 0.5, seed=self.seed)


def net(config: dict[str, Any]) -> Any:
    model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(WIDTH), *parts(config["kind"]), layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return hy.keras.Model(model, batch_size=ROWS)


def check(kind: str, folder: Path) -> None:
    run = trained({"kind": kind}, folder / "run", net)
    x, y = data(seed=1)
    saved = run.best.save(folder / "model")
    expected = run.best.predict(x)
    np.testing.assert_array_equal(hy.load_model(saved).predict(x), expected)
    rows = {"inputs": x, "targets": y}
    assert hy.load_model(saved).evaluate(rows) == run.best.evaluate(rows)
    for model in (run, hy.load_model(saved), saved):
        sent = predictor_of(portable(model).files)
        with undisturbed():  # torch's own generator, of which Keras' dropout draws, is seeded for the recipe
            assert sent.built
        np.testing.assert_array_equal(sent.predict(x), expected)
    print(kind, sorted(file.name for file in saved.iterdir()))


if __name__ == "__main__":
    root = Path(sys.argv[1])
    torch_too = keras.backend.backend() == "torch"
    for kind in ("plain", "noise", *(["torch"] if torch_too else [])):
        check(kind, root / kind)
    if torch_too:
        best = trained({"kind": "local"}, root / "local", net).best
        try:
            best.save(root / "refused")
        except hy.SpecError as error:
            assert "cannot be saved as model.keras" in str(error) and "Local" in str(error), error
            print(error)
        else:
            raise AssertionError
        assert not (root / "refused").exists()
