"""The slots of a Keras optimizer: what it has for each variable that trains, such as momenta."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hopyard.frameworks.keras import internals

_RATE = "learning_rate"
"""Keras' name for the variable of the learning rate, where it is no schedule."""


def inner_of(optimizer: Any) -> Any:
    """Return the optimizer that has the slots: the one inside a LossScaleOptimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def slots_of(optimizer: Any) -> list[Any]:
    """Return the slots; not the counter of steps, the learning rate, or the scale of a loss."""
    inner = inner_of(optimizer)
    return [each for each in inner.variables if each is not inner.iterations and each.name != _RATE]


def fresh_slots(optimizer: Any, variables: Sequence[Any], host: Callable[[Any], Any]) -> list[Any]:
    """Return what the slots are before the first step. Slots of one number throughout take no memory.

    Args:
        optimizer: the optimizer.
        variables: those that train.
        host: `host(variable)` returns a variable's values as a NumPy array.
    """
    inner, counts = inner_of(optimizer), internals.name_counts()
    fresh = type(inner).from_config(inner.get_config())
    fresh.build(variables)
    internals.set_name_counts(counts)
    return [_compact(np.array(host(slot))) for slot in slots_of(fresh)]


def _compact(array: Any) -> Any:
    if array.size and (array == array.flat[0]).all():
        return np.broadcast_to(array.flat[0], array.shape)
    return array


def reset_fault(optimizer: Any) -> str:
    """Return why an optimizer cannot begin anew in the middle of training, in one sentence; "": it can."""
    inner = inner_of(optimizer)
    try:
        config = inner.get_config()
        type(inner).from_config(config)
    except Exception as error:  # noqa: BLE001 - whatever a user's optimizer raises
        return (
            f'inner="reset" makes the optimizer {inner.name!r} anew from its get_config(), which raised '
            f'{type(error).__name__}: {error}; choose inner="keep" or "average"'
        )
    if not isinstance(config.get(_RATE), (int, float)):
        return (
            'inner="reset" begins to count an optimizer\'s steps anew, and with it the schedule of its learning rate: '
            'choose inner="keep" or "average", or give the optimizer a number'
        )
    if getattr(inner, "use_ema", False):
        return (
            'inner="reset" would lose the averages of weights that an optimizer with use_ema=True keeps: choose '
            'inner="keep" or "average"'
        )
    return ""
