"""Keras' global settings, and the private parts of Keras that Hopyard uses. No other module may name these.

tests/frameworks/test_internals.py tries each of these and names the versions for which they hold.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Mapping
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.utils import module_utils, naming

_UIDS = "object_name_uids"
UNRELATED = frozenset({"_tracker", "_lock", "_variables", "_metrics", "_path"})
"""Attributes of losses and metrics that say nothing about what they compute."""
NO_DECAY = "_exclude_from_weight_decay"
"""Prefix of the attributes in which an optimizer keeps the arguments of `exclude_from_weight_decay`."""


def global_settings() -> tuple[Any, ...]:
    """Return Keras' global settings, on which a step depends when it is traced."""
    config = keras.config
    return config.dtype_policy(), config.floatx(), config.epsilon(), config.image_data_format()


def apply_settings(settings: tuple[Any, ...]) -> None:
    """Sets Keras' global settings to a result of `global_settings`."""
    if global_settings() == settings:
        return
    policy, floatx, epsilon, image_format = settings
    keras.config.set_floatx(floatx)
    keras.config.set_epsilon(epsilon)
    keras.config.set_image_data_format(image_format)
    keras.config.set_dtype_policy(policy)


def name_counts() -> dict[str, int]:
    """Return how many objects have had each name: for 3 of "auc", the next one is called "auc_3"."""
    return dict(global_state.get_global_attribute(_UIDS) or {})


def set_name_counts(counts: Mapping[str, int]) -> None:
    """Continues the counts of names from these numbers.

    `keras.utils.clear_session` resets them too, but forgets all compiled functions."""
    naming.reset_uids()
    empty = collections.defaultdict(int)  # type: ignore[var-annotated]
    global_state.get_global_attribute(_UIDS, default=empty, set_to_default=True).update(counts)


def serialized(part: Any) -> dict[str, Any]:
    """Return the config of a model or an optimizer.

    Keras compares each value in it with TensorFlow's types, and so imports TensorFlow where it is installed, for five
    seconds, whatever the backend. Where it is not imported, no value can be of it."""
    tensorflow = module_utils.tensorflow
    available = tensorflow._available
    if "tensorflow" not in sys.modules:
        tensorflow._available = False
    try:
        result: dict[str, Any] = keras.saving.serialize_keras_object(part)
    finally:
        tensorflow._available = available
    return result


def existing_generator() -> Any:
    """Return the generator of `keras.random`; None when nothing has drawn from it yet.

    Does not create one: that would be TensorFlow's first operation, after which its threads cannot be set."""
    return global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)


def global_generator() -> Any:
    """Return the generator of `keras.random`, created when there is none."""
    return seed_generator.global_seed_generator()


def set_global_generator(generator: Any) -> None:
    """Makes `keras.random` draw from this generator."""
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)


def layers(model: keras.Model) -> list[Any]:
    """Return the model itself and all its layers, including nested ones."""
    return list(model._flatten_layers())


def kernels(model: keras.Model) -> list[Any]:
    """Return the weights that train unless they are frozen. Other variables, such as statistics of batch norm, never
    train."""
    return [variable for layer in layers(model) for variable in layer._trainable_variables]


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Return the arguments of `compile`: argument name → value."""
    return dict(model._compile_config.config)


def build(model: keras.Model, batch: Any) -> None:
    """Creates what needs a batch: variables of metrics, of losses by output, and of a model without an Input.

    `fit` does so at its start; there is no public way to do it without a step. `batch` is (x,) or (x, y)."""
    model._symbolic_build(data_batch=batch)


def loss_tracker(model: keras.Model) -> keras.Metric | None:
    """Return the metric in which Keras' own steps keep the loss."""
    return model._loss_tracker
