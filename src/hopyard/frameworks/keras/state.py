"""The State of a Keras model, and how it is copied into a model that is already compiled.

A State holds every variable of model and optimizer by position (Keras numbers its paths anew in each process): weights,
statistics of batch norm, seed generators, momenta, step, learning rate, loss scale; and on PyTorch the buffers of torch
modules in the model, which Keras does not know. The weights of layers with `trainable=False` are left out. A
learning-rate schedule is a function of the step. Variables of metrics are not part of it: they are read and reset with
each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np

from hopyard.core.keyed import keyed
from hopyard.errors import SpecError
from hopyard.frameworks.keras import internals
from hopyard.frameworks.tree import lift_array, lower_array
from hopyard.ports.states import Leaf

SEED = "seed_generator_state"
"""Keras' name for the variable of a `SeedGenerator`."""


def frozen_in(model: keras.Model) -> dict[int, Any]:
    """Return position → variable of the weights that would train, were their layers not made `trainable=False`, or
    given LoRA by `enable_lora`."""
    kernels, trained = ({id(each) for each in some} for some in (internals.kernels(model), model.trainable_variables))
    return {number: each for number, each in enumerate(model.variables) if id(each) in kernels - trained}


def state_of(
    model: keras.Model, host: Callable[[Any], Any], buffers: Sequence[Any] = (), frozen: Collection[int] = ()
) -> dict[str, Any]:
    """Return the State as arrays.

    Args:
        model: the model.
        host: `host(variable)` returns a variable's values as a NumPy array.
        buffers: other parts of the State, with the attributes of variables.
        frozen: positions of the variables of the model that are left out.
    """
    roles = _roles(model, buffers, frozen)
    return {role: [lower_array(host(each)) for each in values] for role, values in roles.items()}


def load_state(
    model: keras.Model, tree: dict[str, Any], buffers: Sequence[Any] = (), frozen: Collection[int] = ()
) -> None:
    """Copies a State into the model.

    Args:
        model: the model.
        tree: the result of `state_of`.
        buffers: other parts of the State.
        frozen: positions of the variables of the model that it leaves out.

    Raises:
        SpecError: it is of a model that was built differently; nothing is changed then.
    """
    pairs = []
    for role, variables in _roles(model, buffers, frozen).items():
        saved = tree.get(role, [])
        if len(saved) != len(variables):
            raise SpecError(
                f"the State has {len(saved)} variables of the {role}, the built one {len(variables)}: the recipe must "
                "build the same for the same config"
            )
        for variable, value in zip(variables, saved, strict=True):
            array = lift_array(value) if isinstance(value, Leaf) else np.asarray(value)
            if tuple(array.shape) != tuple(variable.shape):
                raise SpecError(
                    f"{role} variable {variable.path!r} has shape {tuple(variable.shape)}, the State's has "
                    f"{tuple(array.shape)}: the recipe must build the same for the same config"
                )
            if str(array.dtype) != str(variable.dtype) and not (array.dtype.kind in "iu" and "int" in variable.dtype):
                raise SpecError(  # whole numbers are wider on one backend than on another
                    f"{role} variable {variable.path!r} is of {variable.dtype}, the State's of {array.dtype}: the "
                    "recipe must build the same for the same config"
                )
            pairs.append((variable, array))
    for variable, array in pairs:
        # seeds are signed on one backend, unsigned on another; a copy, as JAX would go on to use the memory of `array`
        variable.assign(array.astype(variable.dtype) if variable.name == SEED else np.array(array))


def _roles(model: keras.Model, buffers: Sequence[Any], frozen: Collection[int]) -> dict[str, Sequence[Any]]:
    variables = [each for number, each in enumerate(model.variables) if number not in frozen]
    roles = {"model": variables, "optimizer": model.optimizer.variables}
    return roles | {"buffers": buffers} if buffers else roles


def seed_variables(model: keras.Model) -> list[Any]:
    """Return the variables of the model's seed generators."""
    return [variable for variable in model.variables if variable.name == SEED]


def reseed_variables(variables: Sequence[Any], seed: int) -> None:
    """Restarts each seed generator from a number of its own."""
    for position, variable in enumerate(variables):
        variable.assign(np.array([keyed(seed, "keras", position) & 0x7FFFFFFF, 0], dtype=variable.dtype))
