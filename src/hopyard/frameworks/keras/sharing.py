"""Which compiled Keras models differ in nothing but their State, so that a worker need compile only one of them.

A step is made of more than variables: rates, norms, losses, code. Two models are alike only where all of that can be
told and is equal. Layers and optimizers tell by `get_config()`; losses and metrics do not tell all (the delta of Huber,
an axis, a dtype), so their attributes are looked at.
"""

from __future__ import annotations

import hashlib
import json
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import keras
import numpy as np

from hopyard.frameworks.keras import internals

_SCALARS = (bool, int, float, str)


class _Unlike(Exception):
    """Code of the user, or something that cannot be told."""


def sharing_key(model: keras.Model) -> str:
    """Equal for compiled models that differ in nothing but their State; "" where that cannot be told, because code of
    the user is part of the model or of how it is compiled.

    Equal must be: `get_config()` (so dropout rates and names) but for seeds, which only first weights depend on, and
    generators that begin anew with each partition; what trains; the optimizer's config without its learning rate (a
    variable, unless it is a schedule); loss, metrics and their weights; dtypes; eager or compiled.
    """
    try:
        about = _about(model)
    except Exception:  # noqa: BLE001 - _Unlike, or whatever a model raises that cannot be serialized
        return ""
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()


def _about(model: keras.Model) -> Any:
    optimizer, asked = model.optimizer, internals.compile_arguments(model)
    optimizers = [optimizer, *filter(None, [getattr(optimizer, "inner_optimizer", None)])]
    for part in (*optimizers, *internals.layers(model)):
        _plain(part)
    if any(key.startswith(internals.NO_DECAY) for one in optimizers for key in vars(one)):
        raise _Unlike
    told = keras.saving.serialize_keras_object(model)
    told.pop("compile_config", None)
    rates = keras.saving.serialize_keras_object(optimizer)
    for inner in (rates["config"], (rates["config"].get("inner_optimizer") or {}).get("config", {})):
        if isinstance(inner.get("learning_rate"), (int, float)):
            inner["learning_rate"] = None
    _ours(told)
    _ours(rates)
    return [
        _seedless(told),
        rates,
        {name: _inventory(value) for name, value in sorted(asked.items()) if name != "optimizer"},
        [bool(variable.trainable) for variable in model.variables],
        [len(optimizer.variables), keras.config.epsilon(), keras.config.floatx(), keras.config.image_data_format()],
    ]


def _plain(part: Any) -> None:
    """No code but Keras' own runs in this layer or optimizer, as far as its attributes tell."""
    kind = type(part)
    if not _is_keras(kind) or kind.__name__ == "Lambda":
        raise _Unlike
    if hasattr(part, "adapt"):  # what it learned are constants of the compiled step, not variables
        raise _Unlike
    for name, value in vars(part).items():
        if isinstance(value, (FunctionType, MethodType, BuiltinFunctionType)) and not _is_keras(value):
            raise _Unlike
        if callable(value) and not isinstance(value, type) and name in _STEPS:
            raise _Unlike
        if callable(value) and not _is_keras(value if hasattr(value, "__qualname__") else type(value)):
            raise _Unlike


_STEPS = {"call", "train_step", "test_step", "compute_loss", "compute_metrics", "train_function", "test_function"}
"""Methods that a user may replace in an object."""


def _is_keras(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == "keras"


def _ours(value: Any) -> None:
    """Raises _Unlike when a serialized object names a class or a function that is not Keras' own."""
    if isinstance(value, dict):
        module = value.get("module")
        if "class_name" in value and (
            value["class_name"] in ("function", "__lambda__")
            or (isinstance(module, str) and module.split(".")[0] not in ("keras", "builtins"))
        ):
            raise _Unlike
        for item in value.values():
            _ours(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _ours(item)
    elif value is not None and not isinstance(value, _SCALARS):
        raise _Unlike


def _inventory(value: Any) -> Any:
    """What a loss, a metric, or a structure of such is made of."""
    if value is None or isinstance(value, _SCALARS):
        return value
    if isinstance(value, (list, tuple)):
        return [_inventory(item) for item in value]
    if isinstance(value, dict):
        return [[_inventory(key), _inventory(item)] for key, item in value.items()]
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return [str(array.dtype), array.shape, hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()]
    if isinstance(value, keras.Variable):
        return [tuple(value.shape), str(value.dtype)]
    if (not _is_keras(value) and not _is_keras(type(value))) or isinstance(value, (MethodType, ModuleType)):
        raise _Unlike
    if isinstance(value, (FunctionType, type)):
        return f"{value.__module__}.{value.__qualname__}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return [
        kind,
        {key: _inventory(item) for key, item in sorted(vars(value).items()) if key not in internals.UNRELATED},
    ]


def _seedless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _seedless(item) for key, item in value.items() if key != "seed"}
    return [_seedless(item) for item in value] if isinstance(value, (list, tuple)) else value
