"""Finds compiled Keras models that differ only in their State, so that a worker need compile only one of them.

A step depends on more than variables: rates, norms, losses, code. Two models can be shared only where all of that is
known and equal. For layers and optimizers `get_config()` has it; for losses and metrics it lacks some (the delta of
Huber, an axis, a dtype), so their attributes are compared.
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


class _NotComparable(Exception):
    """The model has code of the user, or something that cannot be compared."""


def sharing_key(model: keras.Model) -> str:
    """Return a key that is equal for compiled models that differ only in their State; "" where this is not known,
    because code of the user is part of the model or of the arguments of `compile`.

    These must be equal: `get_config()` (so dropout rates and names) except for seeds, which affect only first weights
    and generators that restart with each partition; which variables train; the optimizer's config without its learning
    rate (a variable, unless it is a schedule); loss, metrics and their weights; dtypes; eager or compiled.
    """
    try:
        description = _description(model)
    except Exception:  # noqa: BLE001 - _NotComparable, or whatever a model raises that cannot be serialized
        return ""
    return hashlib.blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=16).hexdigest()


def _description(model: keras.Model) -> Any:
    optimizer, arguments = model.optimizer, internals.compile_arguments(model)
    optimizers = [optimizer, *filter(None, [getattr(optimizer, "inner_optimizer", None)])]
    for part in (*optimizers, *internals.layers(model)):
        _check_code(part)
    if any(key.startswith(internals.NO_DECAY) for each in optimizers for key in vars(each)):
        raise _NotComparable
    config = internals.serialized(model)
    config.pop("compile_config", None)
    optimizer_config = internals.serialized(optimizer)
    for inner_config in (
        optimizer_config["config"],
        (optimizer_config["config"].get("inner_optimizer") or {}).get("config", {}),
    ):
        if isinstance(inner_config.get("learning_rate"), (int, float)):
            inner_config["learning_rate"] = None
    _check_names(config)
    _check_names(optimizer_config)
    return [
        _seedless(config),
        optimizer_config,
        {name: _inventory(value) for name, value in sorted(arguments.items()) if name != "optimizer"},
        [bool(variable.trainable) for variable in model.variables],
        [len(optimizer.variables), keras.config.epsilon(), keras.config.floatx(), keras.config.image_data_format()],
    ]


def _check_code(part: Any) -> None:
    """Raises _NotComparable when other code than Keras' own runs in this layer or optimizer, by its attributes."""
    kind = type(part)
    if not _is_keras(kind) or kind.__name__ == "Lambda":
        raise _NotComparable
    if hasattr(part, "adapt"):  # the results of `adapt` are constants of the compiled step, not variables
        raise _NotComparable
    for name, value in vars(part).items():
        if isinstance(value, (FunctionType, MethodType, BuiltinFunctionType)) and not _is_keras(value):
            raise _NotComparable
        if callable(value) and not isinstance(value, type) and name in _STEPS:
            raise _NotComparable
        if callable(value) and not _is_keras(value if hasattr(value, "__qualname__") else type(value)):
            raise _NotComparable


_STEPS = {"call", "train_step", "test_step", "compute_loss", "compute_metrics", "train_function", "test_function"}
"""Methods that a user may replace in an object."""


def _is_keras(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == "keras"


def _check_names(value: Any) -> None:
    """Raises _NotComparable when a serialized object names a class or a function that is not Keras' own."""
    if isinstance(value, dict):
        module = value.get("module")
        if "class_name" in value and (
            value["class_name"] in ("function", "__lambda__")
            or (isinstance(module, str) and module.split(".")[0] not in ("keras", "builtins"))
        ):
            raise _NotComparable
        for item in value.values():
            _check_names(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_names(item)
    elif value is not None and not isinstance(value, _SCALARS):
        raise _NotComparable


def _inventory(value: Any) -> Any:
    """Return the contents of a loss, a metric, or a structure of these, as plain values."""
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
        raise _NotComparable
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
