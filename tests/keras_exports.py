"""Exports of Keras models on the backend of KERAS_BACKEND: as a script, it ends with an error where one is wrong."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import hopyard as hy
from exported import READERS, require_equal
from jobs import select

layers = keras.layers
ROWS = 64
SHAPES: dict[str, tuple[int, ...]] = {"mlp": (6,), "cnn": (8, 8, 1), "lstm": (5, 3)}
ENDINGS = {
    "tensorflow": (".keras", "", *([".onnx"] if importlib.util.find_spec("tf2onnx") else [])),
    "jax": (".keras", ""),
    "torch": (".keras", ".onnx", ".pt2"),
}
"""Backend → the ends of the paths of its formats that can be tried here. Nothing here installs tf2onnx: its wheel has a
package `tests`, which would hide this one in workers."""


def parts(kind: str) -> list[Any]:
    """The first layers of a model."""
    if kind == "cnn":
        return [layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
    if kind == "lstm":
        return [layers.Bidirectional(layers.LSTM(6, return_sequences=True)), layers.LSTM(6)]
    return [layers.Dense(8, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.5)]


def compiled(net: keras.Model) -> keras.Model:
    net.compile(optimizer=keras.optimizers.Adam(0.01), loss="sparse_categorical_crossentropy")
    return net


def recipe(config: dict[str, Any]) -> keras.Model:
    first = keras.Input(SHAPES[config["kind"]])
    return compiled(keras.Sequential([first, *parts(config["kind"]), layers.Dense(2, activation="softmax")]))


def embedding(config: dict[str, Any]) -> keras.Model:
    """Of two inputs, one of them whole numbers of another width than the data's."""
    code, x = keras.Input((), name="code", dtype="int32"), keras.Input((3,), name="x")
    both = layers.Concatenate()([layers.Embedding(10, 4)(code), x])
    return compiled(keras.Model([x, code], layers.Dense(2, activation="softmax")(both)))


def trained(folder: Path, kind: str) -> hy.Run:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((ROWS, *SHAPES[kind])).astype(np.float32), rng.integers(0, 2, ROWS)
    data = hy.Dataset.numpy(x, y, validation=0.25, partitions=2)
    return select(folder, recipe, [{"kind": kind, "batch_size": 16}], data=data, epochs=1)


def check(folder: Path, kind: str, endings: Iterable[str]) -> hy.Run:
    """Train a model, export it, and compare. Return its run."""
    run = trained(folder / "run", kind)
    paths = [run.best.export(folder / f"{kind}{ending}") for ending in endings]
    for path in paths:
        assert (path.with_name(f"{path.name}.json") if path.suffix else path / "encoding.json").is_file()
    require_equal(run, paths, SHAPES[kind])
    assert not list(folder.glob(".part-*"))
    return run


def check_inputs(folder: Path, endings: Iterable[str]) -> None:
    """The same of a model of several inputs, which have their names and the types of the data."""
    rng = np.random.default_rng(0)
    x = {"code": rng.integers(0, 10, ROWS), "x": rng.standard_normal((ROWS, 3)).astype(np.float32)}
    data = hy.Dataset.numpy(x, rng.integers(0, 2, ROWS), partitions=2)
    run = select(folder / "run", embedding, [{}], data=data, epochs=1, metric="loss")
    saved = hy.load_model(run.best.save(folder / "saved"))
    expected = saved.predict(x)
    for ending in endings:
        (outputs,) = READERS[ending](saved.export(folder / f"both{ending}"), x)
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(saved.predict(x), expected)


if __name__ == "__main__":
    place, backend = Path(sys.argv[1]), keras.backend.backend()
    for name in SHAPES:
        check(place / name, name, ENDINGS[backend])
    check_inputs(place / "inputs", set(ENDINGS[backend]) - {".keras"})
    if backend == "jax" and importlib.util.find_spec("jax2onnx") is None:
        try:
            hy.load(place / "mlp" / "run").best.export(place / "mlp.onnx")
        except hy.UsageError as error:
            assert "jax2onnx" in str(error), error
        else:
            raise AssertionError
