"""Going over rows with Keras on PyTorch: step by step, as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import torch

from hopyard.frameworks.keras_rows import Rows
from hopyard.frameworks.keras_rows import each as over_leaves


def host(variable: Any) -> Any:
    """A variable's values; a view where they are on the host."""
    return keras.ops.convert_to_numpy(variable.value)


class Loop:
    """The steps of one model; nothing is compiled, unless the model is (`jit_compile=True`).

    Args:
        model: compiled, and built as far as a batch builds it.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self.traces = 0
        self.notes: list[str] = []

    def train(self, rows: Rows, each: Callable[[Any], Any] | None = None) -> None:
        """Train over the rows; metrics and State are left in the model's variables. `each(step)` runs around every
        batch, when it is given."""
        self._model.train()
        for batch in rows.batches():
            call = partial(self._model.train_step, _tensors(batch))
            call() if each is None else each(call)

    def evaluate(self, rows: Rows) -> None:
        """Loss and metrics over the rows, left in the variables of the metrics."""
        self._model.eval()
        with torch.no_grad():
            for batch in rows.batches():
                self._model.test_step(_tensors(batch))


def _tensors(data: Any) -> Any:
    return over_leaves(keras.ops.convert_to_tensor, data)
