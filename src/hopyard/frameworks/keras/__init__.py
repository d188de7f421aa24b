"""Keras 3: `Model`, on TensorFlow, JAX or PyTorch.

A step stays Keras' own (`train_step`, `test_step`). On TensorFlow a partition is one compiled call, on JAX a call of a
compiled step for each batch, on PyTorch Keras' steps one by one. A State has every variable of model and optimizer by
position. Seed generators begin anew with each partition, names with each build. Models that are equal in
configuration, optimizer, loss, metrics and dtypes, without code of the user, are built and traced once in a worker
(`sharing`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopyard.frameworks.keras.model import Model

_WHERE = {"Model": "model"}

__all__ = ["Model"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
