"""Loops over rows with Keras on JAX: a compiled step, called batch by batch.

XLA compiles for fixed shapes, so a short last batch costs one more compilation; the arrays of model, optimizer and
metrics stay on the device from the first batch of a partition to its last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import keras
import numpy as np

from hopyard.frameworks.keras.rows import Pace, RowBatches, leaves
from hopyard.meter import StepMeter


def host(variable: Any) -> Any:
    """Return a variable's values, as a view."""
    return np.asarray(variable.value)


class Loop:
    """The compiled steps of one model. It owns their traces.

    Args:
        model: compiled, and built as far as a batch builds it.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._meter = StepMeter()
        self._pace = Pace()
        self.traces = 0
        self.nondeterminism: list[str] = []
        self._train, self._test = self._traced(model.train_step), self._traced(model.test_step)
        if not model.run_eagerly:
            self._train = jax.jit(self._train, donate_argnums=0)
            self._test = jax.jit(self._test, donate_argnums=0)

    def train(self, rows: RowBatches, each: Callable[[Any], Any] | None = None) -> None:
        """Trains over the rows; metrics and State stay in the model's variables. If set, `each(step)` runs around every
        batch, with the variables up to date before and after."""
        model = self._model
        groups = [
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        ]
        if each is None:
            self._over("train", self._train, groups, rows.batches())
            return
        for batch in rows.batches():
            each(partial(self._over, "train", self._train, groups, [batch]))

    def evaluate(self, rows: RowBatches) -> None:
        """Computes loss and metrics over the rows, in the variables of the metrics."""
        model = self._model
        groups = [model.trainable_variables, model.non_trainable_variables, model.metrics_variables]
        self._over("validate", self._test, groups, rows.batches())

    def _traced(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def traced(state: Any, data: Any) -> Any:
            self.traces += 1
            return step(state, data)[1]

        return traced

    def _over(self, phase: str, step: Callable[..., Any], groups: list[Any], batches: Any) -> None:
        """Runs the steps. JAX returns from a step before it is computed, so this waits for it now and then: otherwise
        hundreds of steps, counted already, would be computed after the last one has begun, without any progress."""
        state: Any = tuple([variable.value for variable in group] for group in groups)
        pending, start = 0, time.perf_counter()
        for batch in batches:
            with self._meter.step(phase, leaves(batch)[0].shape[0]):
                state = step(state, batch)
            pending += 1
            if pending >= self._pace.batches:
                jax.block_until_ready(state)  # type: ignore[no-untyped-call]
                now = time.perf_counter()
                self._pace.record(pending, now - start)
                pending, start = 0, now
        for group, values in zip(groups, state, strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)
