"""A torch model in a gang: what its members exchange in each step, after a round, and at a partition's end.

With gradients, all members hold the same parameters and optimizers at any time. With parameters (local SGD), each goes
its own way for a round; then p ← start + mean(p − start), weighted by the rows of the round, or a step of an outer
optimizer along that mean. Equal numbers stay as they are to the bit, because differences are averaged.

At each partition's end buffers are made equal: those with fractions (batch norm's statistics) to their mean over the
members, weighted by rows; all others to those of rank 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from hopyard.core.runs.order import shard
from hopyard.errors import SpecError
from hopyard.frameworks.torch.tensors import copy_into
from hopyard.ports import Exchange, Tree
from hopyard.spec import Batch


class Member:
    """The part of a `Model` that belongs to a gang. Owner of the outer optimizer's momentum.

    Args:
        parameters: those that the optimizer changes.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.exchange: Exchange | None = None
        self.others: list[Tree] = []
        """What the other members have of their own, by rank, on rank 0 at a unit's end."""
        self._parameters = list(parameters)
        self._velocity: list[torch.Tensor] | None = None
        self._error: list[torch.Tensor] | None = None
        """What rounding has taken from this member's changes so far, where they travel compressed."""
        self._buffers: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        """The buffers with fractions at the partition's beginning."""
        self._start: list[torch.Tensor] = []
        """The parameters at the round's beginning."""
        self._steps = 0
        self._rows = self._partition_rows = 0.0

    @property
    def averages(self) -> bool:
        """Whether parameters are exchanged, not gradients."""
        return self.exchange is not None and self.exchange.size > 1 and self.exchange.gang.exchange == "parameters"

    @property
    def pieces(self) -> int:
        """Into how many pieces a batch is cut."""
        return 1 if self.exchange is None else self.exchange.gang.accumulate

    def begin(self, buffers: Sequence[torch.Tensor]) -> None:
        """Begin a partition. `buffers`: all that the model has."""
        if self.exchange is None or self.exchange.size == 1:
            return
        self._buffers = list(buffers)
        self._before = [buffer.clone() for buffer in self._buffers if buffer.is_floating_point()]
        self._partition_rows = 0.0
        self._begin_round()

    def _begin_round(self) -> None:
        self._steps, self._rows = 0, 0.0
        if self.averages:
            self._start = [parameter.detach().clone() for parameter in self._parameters]

    def gradients(self, rows: float) -> float:
        """Average the gradients of a step, which this member has of so many rows. Returns the rows of all members, of
        whose gradients the step is made.

        A parameter that no member's loss has reached keeps no gradient, as in a model that trains alone.
        """
        exchange = self.exchange
        self._partition_rows += rows
        self._rows += rows
        if exchange is None or exchange.size == 1 or self.averages:
            return rows
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in trained):
            raise SpecError("a gang cannot average sparse gradients: make the embedding with sparse=False")
        reached = torch.tensor([float(parameter.grad is not None) for parameter in trained])
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        total = exchange.mean([reached, *(parameter.grad for parameter in trained)], rows)
        for parameter, share in zip(trained, reached.tolist(), strict=True):
            if not share:
                parameter.grad = None
        return total

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Count a step, of all members; average where the round ends."""
        if self.averages:
            assert self.exchange is not None
            self._steps += 1
            if self._steps == self.exchange.gang.every:
                self._average(optimizer)

    def end(self, optimizer: torch.optim.Optimizer) -> None:
        """End a partition, and with it the round."""
        exchange = self.exchange
        if exchange is None or exchange.size == 1:
            return
        if self._steps:
            self._average(optimizer)
        changed = [buffer for buffer in self._buffers if buffer.is_floating_point()]
        changes = [now - before for now, before in zip(changed, self._before, strict=True)]
        if changes:
            exchange.mean(changes, self._partition_rows)
            for buffer, before, change in zip(changed, self._before, changes, strict=True):
                buffer.copy_(before + change)
        exchange.broadcast([buffer for buffer in self._buffers if not buffer.is_floating_point()])
        self._buffers, self._before, self._start = [], [], []

    @torch.no_grad()
    def _average(self, optimizer: torch.optim.Optimizer) -> None:
        """End a round.

        Source: DiLoCo (arXiv:2311.08105), algorithm 1, with the mean change in place of its negative, the outer
        gradient; without an outer optimizer SparkNet (ICLR 2016), algorithm 1.
        """
        exchange = self.exchange
        assert exchange is not None
        outer, inner = exchange.gang.outer, exchange.gang.inner
        changes = [now - start for now, start in zip(self._parameters, self._start, strict=True)]
        if exchange.gang.compress:
            self._round(changes)
        if exchange.mean(changes, self._rows):
            if outer is not None:
                if self._velocity is None:
                    self._velocity = [torch.zeros_like(change) for change in changes]
                for velocity, change in zip(self._velocity, changes, strict=True):
                    velocity.mul_(outer.momentum).add_(change)
                    change.add_(velocity, alpha=outer.momentum).mul_(outer.lr)
            for parameter, start, change in zip(self._parameters, self._start, changes, strict=True):
                parameter.copy_(start + change)
        if inner == "reset":
            optimizer.state.clear()
        elif inner == "average":
            self._average_optimizer(optimizer)
        self._begin_round()

    def _round(self, changes: list[torch.Tensor]) -> None:
        """Round the changes to what can travel, and keep what that takes away for the next round."""
        exchange = self.exchange
        assert exchange is not None
        if self._error is not None:
            for change, error in zip(changes, self._error, strict=True):
                change.add_(error)
        self._error = [change.clone() for change in changes]
        if self._rows:
            for change, error in zip(changes, self._error, strict=True):
                change.copy_(exchange.rounded(change))
                error.sub_(change)

    def _average_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Average what the members' optimizers have for each parameter. A member that took no step has nothing yet."""
        exchange = self.exchange
        assert exchange is not None
        own = {
            (number, name): value
            for number, parameter in enumerate(self._parameters)
            for name, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        }
        described = [[*key, list(value.shape), str(value.dtype).removeprefix("torch.")] for key, value in own.items()]
        gathered = [json.loads(text) for text in exchange.gather(json.dumps(described).encode())]
        shapes = {(number, name): (shape, dtype) for each in gathered for number, name, shape, dtype in each}
        values = []
        for key in sorted(shapes):
            shape, dtype = shapes[key]
            value = own.get(key)
            if value is None:
                parameter = self._parameters[key[0]]
                value = torch.zeros(shape, dtype=getattr(torch, dtype), device=parameter.device if shape else None)
                optimizer.state[parameter][key[1]] = value
            values.append(value)
        bases = [value.clone() for value in values]
        exchange.broadcast(bases)
        changes = [value - base for value, base in zip(values, bases, strict=True)]
        exchange.mean(changes, self._rows)
        for value, base, change in zip(values, bases, changes, strict=True):
            value.copy_(base + change)

    def state(self) -> Tree:
        """Return what the State of a model has for its gang; None: nothing."""
        if not self.averages:
            return None
        return {"outer": self._velocity, "error": self._error, "others": self.others}

    def load(self, tree: Tree) -> Tree:
        """Take what the State of a model has for its gang. Returns what this member has of its own; None: what rank 0
        has, which is the model's."""
        self.others = []
        rank = 0 if self.exchange is None else self.exchange.rank
        own = tree["others"][rank - 1] if tree is not None and rank else None
        error = own["error"] if own is not None else tree["error"] if tree is not None else None
        self._error = self._tensors(error)
        self._velocity = self._tensors(None if tree is None else tree["outer"])
        return own

    @property
    def error(self) -> list[torch.Tensor] | None:
        """What rounding has taken from this member's changes so far; None: nothing."""
        return self._error

    def _tensors(self, values: list[Any] | None) -> list[torch.Tensor] | None:
        """Return copies of arrays that are like the parameters."""
        return None if values is None else [_copied(v, p) for v, p in zip(values, self._parameters, strict=True)]


def _copied(value: Any, parameter: torch.Tensor) -> torch.Tensor:
    tensor = torch.empty_like(parameter, requires_grad=False)
    copy_into(tensor, value)
    return tensor


def cut(batch: Batch, pieces: int) -> list[Batch]:
    """Return the pieces of a batch, which differ by one row at most; none is empty."""
    if pieces == 1:
        return [batch]
    bounds = [shard(batch.rows, pieces, piece) for piece in range(pieces)]
    return [_piece(batch, first, last) for first, last in bounds if last > first]


def _piece(batch: Batch, first: int, last: int) -> Batch:
    inputs, targets, weights = (_rows(part, first, last) for part in (batch.inputs, batch.targets, batch.weights))
    return Batch(inputs, targets, weights, last - first, batch.seed)


def _rows(part: Any, first: int, last: int) -> Any:
    if isinstance(part, dict):
        return {name: array[first:last] for name, array in part.items()}
    return None if part is None else part[first:last]
