"""What programs of others do with an exported model: encode rows by its JSON, and run it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def encoded(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a model for the rows of a table, by the file of its encoding alone; None is missing."""
    inputs = {}
    for name, field in json.loads(path.read_text())["inputs"].items():
        parts = [_column(column, list(table[column["name"]])) for column in field["columns"]]
        rows = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
        inputs[name] = rows.astype(field["dtype"]).reshape(-1, *field["shape"])
    return inputs


def _column(column: Mapping[str, Any], values: list[Any]) -> Any:
    """Return one column, an array whose first axis is that of the rows: the four steps in their order."""
    if "fill" in column:
        values = [column["fill"] if value is None else value for value in values]
    if "encode" in column:
        known = column["values"]
        if column["other"]:
            known = [*known, None]
            values = [value if value in known else None for value in values]
        codes = np.array([known.index(value) for value in values])
        return codes if column["encode"] == "index" else np.eye(len(known))[codes]
    array = np.array(values).reshape(len(values), *column["shape"])
    if "means" in column:
        shape = column["shape"]
        array = (array - np.reshape(column["means"], shape)) / np.reshape(column["deviations"], shape)
    return array


def onnx_outputs(path: Path, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the outputs of an ONNX file, which takes inputs of these names and types."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, dict(inputs))
    return outputs


def program_outputs(path: Path, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the outputs of a program of `torch.export`."""
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.no_grad():
        outputs = torch.export.load(path).module()(tensors["inputs"] if list(tensors) == ["inputs"] else tensors)
    return [each.numpy() for each in (outputs.values() if isinstance(outputs, dict) else [outputs])]


def served_outputs(path: Path, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the outputs of a SavedModel, by the signature that TensorFlow Serving calls."""
    import tensorflow as tf

    serve = tf.saved_model.load(path).signatures["serving_default"]
    return [each.numpy() for _, each in sorted(serve(**{k: tf.constant(v) for k, v in inputs.items()}).items())]


def file_outputs(path: Path, inputs: Mapping[str, Any]) -> list[Any]:
    """Return the outputs of a file of Keras."""
    import keras

    outputs = keras.saving.load_model(path).predict_on_batch(inputs["inputs"])
    return [np.asarray(outputs)]


READERS = {".onnx": onnx_outputs, ".pt2": program_outputs, "": served_outputs, ".keras": file_outputs}
"""End of a path → what reads it."""


def require_equal(run: Any, paths: Iterable[Path], shape: tuple[int, ...]) -> None:
    """Raise AssertionError unless exported models predict as the best trial, for one row and for many."""
    x = np.random.default_rng(1).standard_normal((50, *shape)).astype("float32")
    expected = run.best.predict(x)
    for path in paths:
        for rows in (1, 3, 50):
            (outputs,) = READERS[path.suffix](path, {"inputs": x[:rows]})
            np.testing.assert_allclose(outputs, expected[:rows], rtol=1e-5, atol=1e-5)
