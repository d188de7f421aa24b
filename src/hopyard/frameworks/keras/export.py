"""Export of Keras models in the formats of others: an ONNX file, a SavedModel of TensorFlow, a program of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import keras

from hopyard.frameworks.keras.checks import arrange
from hopyard.ports.frameworks import Export


def formats() -> dict[str, Export]:
    """Return those of this process' backend, by the end of a path; "" is that of a folder."""
    saved_model = Export(partial(_by_keras, "tf_saved_model"), ("tensorflow",))
    by_backend = {
        "tensorflow": {".onnx": Export(partial(_by_keras, "onnx"), ("onnx", "tf2onnx")), "": saved_model},
        "jax": {".onnx": Export(partial(_by_keras, "onnx"), ("jax2onnx",)), "": saved_model},
        "torch": {
            ".onnx": Export(partial(_by_torch, "onnx_file"), ("onnx", "onnxscript")),
            ".pt2": Export(partial(_by_torch, "program_file")),
        },
    }
    return by_backend[keras.backend.backend()]


def _by_keras(kind: Literal["onnx", "tf_saved_model"], trainable: Any, path: Path, inputs: Any) -> None:
    """Write the model by Keras, with the names and types of the data's inputs."""
    named = inputs if isinstance(inputs, dict) else {"inputs": inputs}
    specs = {
        name: keras.InputSpec(shape=(None, *array.shape[1:]), dtype=str(array.dtype), name=name)
        for name, array in named.items()
    }
    model = trainable.model
    signature = arrange(model, specs if isinstance(inputs, dict) else specs["inputs"], None)[0]
    model.export(path, format=kind, verbose=False, input_signature=[signature])


def _by_torch(writer: str, trainable: Any, path: Path, inputs: Any) -> None:
    """Write the model by torch, on whose backend it is a module."""
    from hopyard.frameworks.torch import export

    model = trainable.model
    net = export.Net(model, lambda inputs: model(arrange(model, inputs, None)[0]))
    write: Callable[[Any, Path, Any], None] = getattr(export, writer)
    write(net, path, inputs)
