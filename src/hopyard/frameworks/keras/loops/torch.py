"""Going over rows with Keras on PyTorch: step by step, as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import torch

from hopyard.frameworks.keras import internals
from hopyard.frameworks.keras.rows import RowBatches, map_arrays
from hopyard.meter import Steps


@dataclass(frozen=True, slots=True)
class Buffer:
    """What a torch module keeps beside its parameters, such as the running mean of a batch norm, read and written as
    Keras' variables are."""

    path: str
    value: torch.Tensor
    name: str = "buffer"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its values."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> str:
        """NumPy's name of it, as Keras has it."""
        return str(self.value.dtype).removeprefix("torch.")

    def assign(self, values: Any) -> None:
        """Copy in."""
        with torch.no_grad():
            self.value.copy_(keras.ops.convert_to_tensor(values, dtype=self.dtype))


def buffers(model: keras.Model) -> list[Buffer]:
    """Those of all torch modules in the model: training changes them, and Keras does not know of them."""
    found: dict[int, Buffer] = {}
    for layer in internals.layers(model):
        for path, tensor in layer.named_buffers():
            found.setdefault(id(tensor), Buffer(f"{layer.name}/{path}", tensor))
    return list(found.values())


def host(variable: Any) -> Any:
    """A variable's values; a view where they are on the host."""
    return keras.ops.convert_to_numpy(variable.value)


class Loop:
    """The steps of one model; nothing is compiled, also with `compile(jit_compile=True)`: the numbers are the same.

    Args:
        model: compiled, and built as far as a batch builds it.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._meter = Steps()
        self.traces = 0
        self.nondeterminism: list[str] = []

    def train(self, rows: RowBatches, each: Callable[[Any], Any] | None = None) -> None:
        """Train over the rows; metrics and State are left in the model's variables. `each(step)` runs around every
        batch, when it is given."""
        self._model.train()
        for batch in rows.batches():
            call = partial(self._model.train_step, _tensors(batch))
            with self._meter.step("train"):
                call() if each is None else each(call)

    def evaluate(self, rows: RowBatches) -> None:
        """Loss and metrics over the rows, left in the variables of the metrics."""
        self._model.eval()
        with torch.no_grad():
            for batch in rows.batches():
                with self._meter.step("validate"):
                    self._model.test_step(_tensors(batch))


def _tensors(data: Any) -> Any:
    return map_arrays(keras.ops.convert_to_tensor, data)
