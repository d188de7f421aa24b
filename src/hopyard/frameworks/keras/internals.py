"""What Hopyard uses of Keras that Keras does not publish. No other module may name it.

tests/frameworks/test_internals.py tries each of these and names the versions for which they hold.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.utils import naming

_UIDS = "object_name_uids"
UNRELATED = frozenset({"_tracker", "_lock", "_variables", "_metrics", "_path"})
"""Attributes of losses and metrics that say nothing about what they compute."""
NO_DECAY = "_exclude_from_weight_decay"
"""How the attributes begin in which an optimizer keeps what `exclude_from_weight_decay` was given."""


def name_counts() -> dict[str, int]:
    """How often each name was given to an object: the next one of "auc" is called "auc_3"."""
    return dict(global_state.get_global_attribute(_UIDS) or {})


def set_name_counts(counts: Mapping[str, int]) -> None:
    """Count names from these numbers on.

    `keras.utils.clear_session` resets them too, but forgets all compiled functions."""
    naming.reset_uids()
    empty = collections.defaultdict(int)  # type: ignore[var-annotated]
    global_state.get_global_attribute(_UIDS, default=empty, set_to_default=True).update(counts)


def existing_generator() -> Any:
    """The generator of `keras.random`; None when nothing has drawn from it yet.

    Does not make one: that would be TensorFlow's first operation, after which it takes no number of threads."""
    return global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)


def global_generator() -> Any:
    """The generator of `keras.random`, made when there is none."""
    return seed_generator.global_seed_generator()


def set_global_generator(generator: Any) -> None:
    """Let `keras.random` draw from this generator."""
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)


def layers(model: keras.Model) -> list[Any]:
    """The model itself and all its layers, those inside layers too."""
    return list(model._flatten_layers())


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """What `compile` was called with: argument name → value."""
    return dict(model._compile_config.config)


def build(model: keras.Model, batch: Any) -> None:
    """Create what only a batch can: variables of metrics, of losses by output, and of a model without an Input.

    `fit` does so at its start; there is no public way to do it without a step. `batch` is (x,) or (x, y)."""
    model._symbolic_build(data_batch=batch)


def loss_tracker(model: keras.Model) -> keras.Metric | None:
    """The metric in which Keras' own steps keep the loss."""
    return model._loss_tracker
