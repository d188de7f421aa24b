"""Loops over rows with Keras on PyTorch: step by step, as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import torch

from hopyard.frameworks.keras import internals
from hopyard.frameworks.keras.gang import Gradients, averaging
from hopyard.frameworks.keras.rows import RowBatches, leaves, map_arrays
from hopyard.meter import StepMeter


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of a torch module, such as the running mean of a batch norm, which is read and written like Keras'
    variables."""

    path: str
    value: torch.Tensor
    name: str = "buffer"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its values."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> str:
        """NumPy's name of the dtype, as in Keras."""
        return str(self.value.dtype).removeprefix("torch.")

    def assign(self, values: Any) -> None:
        """Copies values in."""
        with torch.no_grad():
            self.value.copy_(keras.ops.convert_to_tensor(values, dtype=self.dtype))


def buffers(model: keras.Model) -> list[Buffer]:
    """Return the buffers of all torch modules in the model: training changes them, and Keras does not know them."""
    by_id: dict[int, Buffer] = {}
    for layer in internals.layers(model):
        for path, tensor in layer.named_buffers():
            by_id.setdefault(id(tensor), Buffer(f"{layer.name}/{path}", tensor))
    return list(by_id.values())


def host(variable: Any) -> Any:
    """Return a variable's values; a view where they are on the host."""
    return keras.ops.convert_to_numpy(variable.value)


class Loop:
    """The steps of one model; nothing is compiled, also with `compile(jit_compile=True)`: the numbers are the same.

    Args:
        model: compiled, and built as far as a batch builds it.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._meter = StepMeter()
        self.traces = 0
        self.nondeterminism: list[str] = []

    def train(
        self, rows: RowBatches, each: Callable[[Any], Any] | None = None, gradients: Gradients | None = None
    ) -> None:
        """Trains over the rows; metrics and State stay in the model's variables. If set, `each(step)` runs around every
        batch, and the optimizer steps along the means that `gradients` returns."""
        self._model.train()
        step = self._model.train_step if gradients is None else partial(self._step_with_means, gradients)
        for batch in rows.batches():
            call = partial(step, _tensors(batch))
            with self._meter.step("train"):
                call() if each is None else each(call)

    def _step_with_means(self, gradients: Gradients, batch: Any) -> None:
        def step(own: list[Any], apply: Callable[[list[Any]], None]) -> None:
            reached = [gradient for gradient in own if gradient is not None]
            steps, means = gradients.mean(reached, leaves(batch)[0].shape[0])
            if steps:
                mean = iter(means)
                apply([None if gradient is None else next(mean) for gradient in own])

        with averaging(self._model.optimizer, step):
            self._model.train_step(batch)

    def evaluate(self, rows: RowBatches) -> None:
        """Computes loss and metrics over the rows, in the variables of the metrics."""
        self._model.eval()
        with torch.no_grad():
            for batch in rows.batches():
                with self._meter.step("validate"):
                    self._model.test_step(_tensors(batch))


def _tensors(data: Any) -> Any:
    return map_arrays(keras.ops.convert_to_tensor, data)
