"""A Keras model in a gang: what its members exchange in each step, after a round, and at a partition's end.

Exchanged are copies of variables on the host, so this is the same for each backend. With gradients, the model's
optimizer steps along their means over all members (`averaging`), and so all hold the same variables at any time. With
parameters (local SGD), each member goes its own way for a round (`rounds`).

At each partition's end what does not train is made equal: statistics of batch norm become their mean over the members,
weighted by rows; whole numbers, such as the states of seed generators, those of rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from hopyard.frameworks.keras import internals
from hopyard.frameworks.keras.optimizers import fresh_slots, inner_of, reset_fault, slots_of
from hopyard.frameworks.keras.rows import RowBatches
from hopyard.frameworks.keras.state import frozen_in
from hopyard.frameworks.rounds import Rounds
from hopyard.ports.states import Tree
from hopyard.ports.training import Exchange
from hopyard.spec import Gang

Each = Callable[[Any], Any] | None
"""Runs around each batch; None: nothing does."""


class Gradients:
    """The means of gradients over all members, piece by piece: what a compiled step calls. Owner of the sums over the
    pieces of a batch."""

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        self.error: Exception | None = None
        """What the exchange raised inside a step, whose framework raises something of its own for it."""
        self._lasts: Iterator[bool] = iter(())
        self._counted = True
        self._sums: list[Any] = []
        self._rows = 0

    @property
    def pieces(self) -> int:
        """Into how many pieces a batch is cut."""
        return 1 if self.exchange is None else self.exchange.gang.accumulate

    def begin(self, lasts: Sequence[bool], counted: bool = True) -> None:
        """Begin some steps.

        Args:
            lasts: of each piece, whether it is the last one of its batch.
            counted: whether this member's gradients count; not those of rows that only stand for none.
        """
        self.error, self._lasts, self._counted, self._sums, self._rows = None, iter(lasts), counted, [], 0

    def mean(self, gradients: list[Any], rows: int) -> tuple[bool, list[Any]]:
        """Take the gradients of a piece, as arrays of NumPy or torch that may be changed. Returns whether the optimizer
        steps now, and along which gradients."""
        assert self.exchange is not None
        try:
            rows = rows if self._counted else 0
            if self.pieces > 1:
                scaled = [gradient * rows for gradient in gradients]
                if self._sums:
                    scaled = [total + share for total, share in zip(self._sums, scaled, strict=True)]
                self._sums = scaled
                self._rows += rows
                if not next(self._lasts):
                    return False, gradients
                gradients, rows = [total / max(self._rows, 1) for total in self._sums], self._rows
                self._sums, self._rows = [], 0
            self.exchange.mean(gradients, rows)
        except Exception as error:
            self.error = error
            raise
        return True, gradients


@contextmanager
def averaging(optimizer: Any, step: Callable[[list[Any], Callable[[list[Any]], None]], None]) -> Iterator[None]:
    """A context manager in which `step(gradients, apply)` is called in the place of the optimizer's `apply`."""
    apply = optimizer.apply

    def apply_means(grads: Any, trainable_variables: Any = None) -> None:
        step(list(grads), lambda means: apply(means, trainable_variables))

    object.__setattr__(optimizer, "apply", apply_means)  # not tracked as a part of the optimizer
    try:
        yield
    finally:
        object.__delattr__(optimizer, "apply")


class Member:
    """The part of a `Model` that belongs to a gang. Owner of its rounds and of its gradients' means.

    Args:
        model: compiled.
        host: `host(variable)` returns a variable's values as a NumPy array.
        buffers: `buffers(model)` returns what the State has beside variables.
    """

    def __init__(
        self,
        model: keras.Model,
        host: Callable[[Any], Any],
        buffers: Callable[[keras.Model], Sequence[Any]],
    ) -> None:
        self.rounds = Rounds()
        self._gradients = Gradients()
        self._model, self._host, self._buffers = model, host, buffers
        self._fresh: list[Any] | None = None
        """What the optimizer's slots are at first; None: not known yet."""

    def set_exchange(self, exchange: Exchange | None) -> None:
        """Train as a member of a gang from now on; None: alone."""
        self.rounds.exchange = self._gradients.exchange = exchange

    def train(self, rows: RowBatches, loop: Any, each: Each) -> None:
        """Train over a partition."""
        exchange = self.rounds.exchange
        if exchange is None or exchange.gang.serial or (exchange.size == 1 and self._gradients.pieces == 1):
            loop.train(rows, each)
            return
        before = self._values(self._fractions()) if exchange.size > 1 else []
        if self.rounds.averages:
            self._take_rounds(rows, loop, each)
        else:
            self._take_steps(rows, loop, each)
        if exchange.size > 1:
            self._end(exchange, before, rows.rows)

    def load(self, tree: Tree) -> Tree:
        """Take what the State of a model has for its gang. Returns what this member has of its own; None: what rank 0
        has, which is the model's."""
        return self.rounds.load(tree, lambda values: [np.array(value) for value in values])

    def _take_steps(self, rows: RowBatches, loop: Any, each: Each) -> None:
        """Train with the means of gradients."""
        for part in rows.stretches():
            if part is None:
                self._stand_in(rows.first_row(), loop, each)
            else:
                pieces, lasts = part.in_pieces(self._gradients.pieces)
                self._gradients.begin(lasts)
                self._train_with_means(pieces, loop, each)

    def _stand_in(self, row: RowBatches, loop: Any, each: Each) -> None:
        """Go over some row for a batch of which this member has none, as it takes part in the exchange and in the step;
        undo whatever else comes of that."""
        variables = [*self._still(), *self._model.metrics_variables]
        before = [np.array(self._host(variable)) for variable in variables]
        self._gradients.begin([True], counted=False)
        self._train_with_means(row, loop, each)
        for variable, values in zip(variables, before, strict=True):
            variable.assign(values)

    def _train_with_means(self, rows: RowBatches, loop: Any, each: Each) -> None:
        try:
            loop.train(rows, each, self._gradients)
        except Exception:
            if self._gradients.error is not None:
                raise self._gradients.error from None
            raise

    def _take_rounds(self, rows: RowBatches, loop: Any, each: Each) -> None:
        """Train in rounds, the last of which ends with the partition."""
        trained, first = self._model.trainable_variables, 0
        while first < rows.count:
            self.rounds.begin(lambda: self._values(trained))
            end = min(first + self.rounds.left, rows.count)
            part = rows.segment(first, end)
            if part.rows:
                loop.train(part, each)
            self.rounds.add(part.rows, end - first)
            now = self._values(trained)
            self.rounds.mean(now)
            self._assign(trained, now)
            self._end_round()
            first = end

    def _end_round(self) -> None:
        """Do with the optimizer what `inner=` says."""
        exchange, optimizer = self.rounds.exchange, self._model.optimizer
        assert exchange is not None
        if exchange.gang.inner == "average":
            slots = slots_of(optimizer)
            own = self._values(slots)
            exchange.average(own, self.rounds.rows)
            self._assign(slots, own)
        elif exchange.gang.inner == "reset":
            if self._fresh is None:
                self._fresh = fresh_slots(optimizer, self._model.trainable_variables, self._host)
            self._assign(slots_of(optimizer), self._fresh)
            inner_of(optimizer).iterations.assign(0)

    def _end(self, exchange: Exchange, before: list[Any], rows: int) -> None:
        """End a partition: make equal what does not train. Weights that nobody changed do not travel."""
        fractions = self._fractions()
        now = self._values(fractions)
        changed = [not np.array_equal(one, other) for one, other in zip(before, now, strict=True)]
        anywhere = [any(flags) for flags in zip(*exchange.gather(bytes(changed)), strict=True)]
        which = [number for number, flag in enumerate(anywhere) if flag]
        now = [now[n] for n in which]
        exchange.average(now, rows)
        self._assign([fractions[n] for n in which], now)
        whole = [variable for variable in self._still() if not _has_fractions(variable)]
        values = [np.array(self._host(variable)) for variable in whole]
        exchange.broadcast(values)
        for variable, value in zip(whole, values, strict=True):
            variable.assign(value)

    def _still(self) -> list[Any]:
        """Return what the State of the model has beside the variables that train."""
        apart = {id(each) for each in (*self._model.trainable_variables, *frozen_in(self._model).values())}
        others = [variable for variable in self._model.variables if id(variable) not in apart]
        return [*others, *self._buffers(self._model)]

    def _fractions(self) -> list[Any]:
        return [variable for variable in self._still() if _has_fractions(variable)]

    def _values(self, variables: Sequence[Any]) -> list[Any]:
        """Return copies of variables' values, flat, of a dtype that NumPy has."""
        arrays = [np.array(self._host(variable)).reshape(-1) for variable in variables]
        return [array if array.dtype.kind == "f" else array.astype(np.float32) for array in arrays]

    @staticmethod
    def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value.reshape(tuple(variable.shape)))


def _has_fractions(variable: Any) -> bool:
    return bool(keras.backend.is_float_dtype(str(variable.dtype)))


def gang_fault(model: keras.Model, gang: Gang, hooks_of_batches: bool) -> str:
    """Return why a model cannot be a member of such a gang, in one sentence; "": it can."""
    if gang.exchange == "parameters":
        return reset_fault(model.optimizer) if gang.inner == "reset" else ""
    if keras.backend.backend() == "jax":
        return (
            "a gang cannot average the gradients of a Keras model on JAX, whose step is compiled as a whole: train it "
            "with parallel=hy.LocalSGD(), or with KERAS_BACKEND=tensorflow or torch"
        )
    losses = keras.tree.flatten(internals.compile_arguments(model).get("loss"))
    for reduction in {getattr(loss, "reduction", "mean") for loss in losses}:
        if reduction not in ("sum_over_batch_size", "mean"):
            return (
                f"a loss with reduction={reduction!r} has no gradients that a gang can average, as it weighs its "
                'members by their rows: give the loss reduction="sum_over_batch_size", as Keras does, or train with '
                "parallel=hy.LocalSGD()"
            )
    if gang.accumulate > 1 and hooks_of_batches:
        return (
            f"hy.AllReduce(accumulate={gang.accumulate}) calls a model several times for a batch, and so cannot call "
            "callbacks that have hooks of batches: leave these out, or accumulate"
        )
    return ""
