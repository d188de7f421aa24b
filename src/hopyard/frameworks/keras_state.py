"""What the State of a Keras model is, how it is copied into a model that is already compiled, and which models differ
in nothing else.

A State holds every variable of model and optimizer by position (Keras numbers its paths anew in each process): weights,
statistics of batch norm, seed generators, momenta, step, learning rate, loss scale. A learning-rate schedule is a
function of the step. Variables of metrics are not part of it: they are read and reset with each partition.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from hopyard.core.order import keyed
from hopyard.errors import SpecError
from hopyard.frameworks import is_leaf, lift_array, lower_array

SEED = "seed_generator_state"
"""Keras' name of the variable of a `SeedGenerator`."""
_OVERRIDES = {"call", "train_step", "test_step", "compute_loss", "compute_metrics", "train_function", "test_function"}


def variables(model: keras.Model) -> list[Any]:
    """All that a State holds, in its order: the model's, then the optimizer's."""
    return [*model.variables, *model.optimizer.variables]


def take(model: keras.Model, host: Callable[[Any], Any]) -> dict[str, Any]:
    """The State as arrays. `host(variable)` gives a variable's values as a NumPy array."""
    return {
        "model": [lower_array(host(variable)) for variable in model.variables],
        "optimizer": [lower_array(host(variable)) for variable in model.optimizer.variables],
    }


def put(model: keras.Model, tree: dict[str, Any]) -> None:
    """Copy in.

    Raises:
        SpecError: it is of a model that was built differently; nothing is changed then.
    """
    pairs = []
    for role, here in (("model", model.variables), ("optimizer", model.optimizer.variables)):
        saved = tree[role]
        if len(saved) != len(here):
            raise SpecError(
                f"the State has {len(saved)} variables of the {role}, the built one {len(here)}: the recipe must build "
                "the same for the same config"
            )
        for variable, value in zip(here, saved, strict=True):
            array = lift_array(value) if is_leaf(value) else np.asarray(value)
            if tuple(array.shape) != tuple(variable.shape):
                raise SpecError(
                    f"{role} variable {variable.path!r} has shape {tuple(variable.shape)}, the State's has "
                    f"{tuple(array.shape)}: the recipe must build the same for the same config"
                )
            pairs.append((variable, array))
    for variable, array in pairs:
        # seeds are signed on one backend, unsigned on another; a copy, as JAX would go on to use the memory it is given
        variable.assign(array.astype(variable.dtype) if variable.name == SEED else np.array(array))


def seeds(model: keras.Model) -> list[Any]:
    """The variables of the model's seed generators."""
    return [variable for variable in model.variables if variable.name == SEED]


def reseed(found: Sequence[Any], seed: int) -> None:
    """Start each seed generator anew, from a number of its own."""
    for position, variable in enumerate(found):
        variable.assign(np.array([keyed(seed, "keras", position) & 0x7FFFFFFF, 0], dtype=variable.dtype))


def likeness(model: keras.Model) -> str:
    """Equal for compiled models that differ in nothing but their State; "" where that cannot be told, because code of
    the user is part of the model or of how it is compiled.

    Equal must be: `get_config()` (so dropout rates and names) but for seeds, which only first weights depend on, and
    generators that begin anew with each partition; what trains; the optimizer's config without its learning rate (a
    variable, unless it is a schedule); loss, metrics and their weights; dtypes; eager or compiled.
    """
    if not _plain(model):
        return ""
    try:
        told = keras.saving.serialize_keras_object(model)
        compiled = model.get_compile_config() or {}
    except Exception:  # noqa: BLE001 - whatever a model raises that cannot be serialized
        return ""
    if not _ours(told) or not _ours(compiled):
        return ""
    told.pop("compile_config", None)
    optimizer = compiled.get("optimizer")
    config = optimizer.get("config", {}) if isinstance(optimizer, dict) else {}
    if isinstance(config.get("learning_rate"), (int, float)):
        config = config | {"learning_rate": None}
    about = [
        told,
        compiled | {"optimizer": [optimizer and optimizer.get("class_name"), config]},
        [bool(variable.trainable) for variable in model.variables],
        [len(model.optimizer.variables), keras.config.epsilon(), keras.config.floatx()],
    ]
    return hashlib.blake2b(json.dumps(_seedless(about), sort_keys=True).encode(), digest_size=16).hexdigest()


def _plain(model: keras.Model) -> bool:
    """Whether no code but Keras' own runs in a step, as far as objects tell."""
    optimizer = model.optimizer
    parts = [model, *model._flatten_layers(include_self=False)]
    return (
        type(optimizer).__module__.startswith("keras.")
        and not any(key.startswith("_exclude_from_weight_decay") for key in vars(optimizer))
        and all(
            type(part).__module__.startswith("keras.")
            and not hasattr(part, "adapt")  # what it learned are constants of the compiled step, not variables
            and type(part).__name__ != "Lambda"
            and not _replaced(part)
            for part in parts
        )
    )


def _replaced(part: Any) -> bool:
    return any(vars(part).get(name) is not None for name in _OVERRIDES)


def _seedless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _seedless(item) for key, item in value.items() if key != "seed"}
    return [_seedless(item) for item in value] if isinstance(value, (list, tuple)) else value


def _ours(value: Any) -> bool:
    """Whether a serialized object names nothing but Keras' own classes."""
    if isinstance(value, dict):
        if value.get("registered_name") is not None or value.get("class_name") in ("function", "__lambda__"):
            return False
        module = value.get("module")
        if isinstance(module, str) and "class_name" in value and module.split(".")[0] not in ("keras", "builtins"):
            return False
        return all(map(_ours, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_ours, value))
    return value is None or isinstance(value, (str, int, float, bool))
