"""Checks that a Keras model and a dataset fit: shapes of inputs, ranges of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

Info = Mapping[str, tuple[tuple[Any, ...], str]]
"""Array name → (shape of one row, NumPy dtype); a single input is "inputs", a single label "targets"."""


SINGLE = ("inputs", "targets")


def zeros(info: Info, single: str) -> Any:
    """Return two rows of zeros in the form of the data: an array, a dict of arrays, or None."""
    arrays = {
        name: np.zeros((2, *(3 if axis is None else axis for axis in shape)), dtype)
        for name, (shape, dtype) in info.items()
    }
    return None if not arrays else arrays[single] if list(arrays) == [single] else arrays


def arrange(model: keras.Model, x: Any, y: Any) -> tuple[Any, Any]:
    """Return inputs and labels, which the data has by name, in the form that a functional model takes: an array, a
    tuple, or a dict. For other models they are unchanged."""
    return _arranged(x, _form(model, "input")), _arranged(y, _form(model, "output"))


def _form(model: keras.Model, side: str) -> Any:
    """Return the name of a single input or output, or a tuple or dict of names; None when the model does not say."""
    if isinstance(model, keras.Sequential):
        return side
    try:
        struct = getattr(model, side)
    except AttributeError:  # a subclass, or not built yet
        return None
    names = [tensor.name for tensor in model.inputs] if side == "input" else list(model.output_names)
    if isinstance(struct, dict):
        return {key: key for key in struct}
    if isinstance(struct, (list, tuple)):
        return tuple(names) if len(names) == len(struct) else None
    return names[0]


def _arranged(data: Any, form: Any) -> Any:
    if not isinstance(data, dict) or form is None:
        return data
    if isinstance(form, str):
        return data[form] if form in data else next(iter(data.values())) if len(data) == 1 else data
    if isinstance(form, tuple):
        return tuple(data[name] for name in form) if all(name in data for name in form) else data
    return {name: data[name] for name in form} if all(name in data for name in form) else data


def misfit(model: keras.Model, inputs: Info, targets: Info | None = None) -> str:
    """Return why the model cannot take such rows; "" when it can, or when only a call can show it."""
    return _inputs_misfit(model, inputs) or ("" if targets is None else _labels_misfit(model, targets))


def _labels_misfit(model: keras.Model, targets: Info) -> str:
    names = _form(model, "output")
    if model.loss is not None and not targets:
        outputs = f" for {', '.join(map(repr, names))}" if isinstance(names, (dict, tuple)) else ""
        return f"the data has no label, but the model's loss needs one{outputs}: name it, Dataset(…, label=…)"
    if not isinstance(names, (dict, tuple)) or len(names) < 2 or model.loss is None:
        return ""
    if isinstance(model.loss, dict):
        labelled = {name for name, loss in model.loss.items() if loss is not None}
    elif isinstance(model.loss, (list, tuple)):
        labelled = {name for name, loss in zip(names, model.loss, strict=False) if loss is not None}
    else:  # one loss for all
        labelled = set(names)
    missing = [name for name in names if name in labelled and name not in targets]
    if not missing:
        return ""
    labels = "one label without a name" if list(targets) == ["targets"] else ", ".join(map(repr, targets))
    return (
        f"the model's output {missing[0]!r} has no label in the data, which has {labels}: give the Dataset "
        f"label={{…}}, output name → column, for {', '.join(map(repr, names))}"
    )


def _inputs_misfit(model: keras.Model, inputs: Info) -> str:
    tensors = getattr(model, "inputs", None)
    if not tensors:
        return ""
    single = list(inputs) == ["inputs"]
    if single and len(tensors) > 1:
        return (
            f"the model has {len(tensors)} inputs ({', '.join(tensor.name for tensor in tensors)}), the data has one: "
            "give the Dataset features as a dict, input name → columns"
        )
    names = ["inputs"] if single else [tensor.name for tensor in tensors]
    if len(tensors) == len(inputs) == 1:
        names = list(inputs)
    missing = [name for name in names if name not in inputs]
    if missing:
        return (
            f"the model's input {missing[0]!r} is not in the data, which has {', '.join(map(repr, inputs))}: name "
            "each keras.Input as the Dataset does"
        )
    for name, tensor in zip(names, tensors, strict=True):
        shape, needed = tuple(inputs[name][0]), tuple(tensor.shape[1:])
        if not _fits(shape, needed):
            return (
                f"the model's input {tensor.name!r} takes rows of shape {_text(needed)}, those of the data have shape "
                f"{_text(shape)}: in recipe(config, ctx) write keras.Input(shape=ctx.inputs[{name!r}][0]), or reshape "
                "in the model or in the Dataset's transform"
            )
    return ""


def _fits(shape: tuple[int, ...], needed: tuple[int | None, ...]) -> bool:
    """Whether the shapes match; Keras itself adds or drops a last axis of size 1."""
    if len(shape) == len(needed) + 1 and shape[-1] == 1:
        shape = shape[:-1]
    elif len(shape) == len(needed) - 1 and needed[-1] == 1:
        shape = (*shape, 1)
    return len(shape) == len(needed) and all(n in (None, m) for n, m in zip(needed, shape, strict=True))


def _text(shape: tuple[int | None, ...]) -> str:
    return str(tuple("any" if n is None else n for n in shape)).replace("'any'", "any")


def label_fault(model: keras.Model, low: float, high: float) -> str:
    """Return what is wrong with labels of [low, high] for a model of one output; "" when nothing is, or when it is not
    known. TensorFlow on the CPU and JAX accept a class number out of range without an error."""
    outputs = getattr(model, "outputs", None)
    if not outputs or len(outputs) != 1:
        return ""
    loss = model.loss
    whole = float(low).is_integer() and float(high).is_integer()
    if isinstance(loss, (dict, list, tuple)) and len(loss) == 1:
        (loss,) = loss.values() if isinstance(loss, dict) else loss
    name = _loss_name(loss)
    if name == "sparse_categorical_crossentropy":
        if not whole:
            return f"labels go from {low:g} to {high:g}: sparse categorical cross-entropy takes whole numbers from 0"
        classes = outputs[0].shape[-1]
        ignored = getattr(loss, "ignore_class", None)
        wrong = [int(label) for label in (low, high) if label != ignored and not 0 <= label < (classes or high + 1)]
        if wrong and classes is None:
            return f"labels go from {low:g} to {high:g}: class numbers begin at 0"
        if wrong:
            return (
                f"labels go from {low:g} to {high:g}, but the model has {classes} outputs, for labels 0 to "
                f"{classes - 1}: label {wrong[0]} has none; give the model {int(high) + 1} outputs, or number the "
                "labels from 0"
            )
    if name in ("binary_crossentropy", "binary_focal_crossentropy") and (low < 0 or high > 1):
        return f"labels go from {low:g} to {high:g}, binary cross-entropy takes 0 to 1"
    return ""


def _loss_name(loss: Any) -> str:
    """Return the name of the Keras function that a loss is, in any form and under any name; "" for other losses."""
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:
            return ""
    if isinstance(loss, type):  # "SparseCategoricalCrossentropy"
        loss = loss()
    function = getattr(loss, "fn", loss)
    from_keras = str(getattr(function, "__module__", "")).startswith("keras.")
    return str(getattr(function, "__name__", "")) if from_keras else ""
