"""A torch model in a gang: what its members exchange in each step, after a round, and at a partition's end.

With gradients, all members hold the same parameters and optimizers at any time. With parameters (local SGD), each goes
its own way for a round (`rounds`).

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
from hopyard.frameworks.rounds import Rounds
from hopyard.frameworks.torch.tensors import copy_into
from hopyard.ports.states import Tree
from hopyard.spec import Batch


class Member:
    """The part of a `Model` that belongs to a gang.

    Args:
        parameters: those that the optimizer changes.

    Attributes:
        parameters: the same; the model takes out what is frozen.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.rounds = Rounds()
        self.parameters = list(parameters)
        self._buffers: list[torch.Tensor] = []
        self._rows = 0.0
        """Rows that this member has seen in the partition."""

    @property
    def pieces(self) -> int:
        """Into how many pieces a batch is cut."""
        return 1 if self.rounds.exchange is None else self.rounds.exchange.gang.accumulate

    def begin(self, buffers: Sequence[torch.Tensor]) -> None:
        """Begin a partition. `buffers`: all that the model has."""
        if self.rounds.exchange is None or self.rounds.exchange.size == 1:
            return
        self._buffers = list(buffers)
        self._rows = 0.0
        if self.rounds.averages:
            self.rounds.begin(lambda: [parameter.detach().clone() for parameter in self.parameters])

    def gradients(self, rows: float) -> float:
        """Average the gradients of a step, which this member has of so many rows. Returns the rows of all members, of
        whose gradients the step is made.

        A parameter that no member's loss has reached keeps no gradient, as in a model that trains alone.
        """
        exchange = self.rounds.exchange
        self._rows += rows
        if self.rounds.averages:
            self.rounds.add(rows)
        if exchange is None or exchange.size == 1 or self.rounds.averages:
            return rows
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in trained):
            raise SpecError("a gang cannot average sparse gradients: make the embedding with sparse=False")
        device = trained[0].device if trained else None
        reached = torch.tensor([float(parameter.grad is not None) for parameter in trained], device=device)
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        total = exchange.mean([reached, *(parameter.grad for parameter in trained)], rows)
        for parameter, share in zip(trained, reached.tolist(), strict=True):
            if not share:
                parameter.grad = None
        return total

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Average after a step, of all members, with which the round ends."""
        if self.rounds.averages and not self.rounds.left:
            self._average(optimizer)

    @torch.no_grad()
    def end(self, optimizer: torch.optim.Optimizer) -> None:
        """End a partition, and with it the round."""
        exchange = self.rounds.exchange
        if exchange is None or exchange.size == 1:
            return
        if self.rounds.averages and self.rounds.begun:
            self._average(optimizer)
        exchange.average([buffer for buffer in self._buffers if buffer.is_floating_point()], self._rows)
        exchange.broadcast([buffer for buffer in self._buffers if not buffer.is_floating_point()])
        self._buffers = []
        self.rounds.begin(lambda: [])

    @torch.no_grad()
    def _average(self, optimizer: torch.optim.Optimizer) -> None:
        """End a round."""
        assert self.rounds.exchange is not None
        self.rounds.mean(self.parameters)
        inner = self.rounds.exchange.gang.inner
        if inner == "reset":
            optimizer.state.clear()
        elif inner == "average":
            self._average_optimizer(optimizer)
        self.rounds.begin()

    def _average_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Average what the members' optimizers have for each parameter. A member that took no step has nothing yet."""
        exchange = self.rounds.exchange
        assert exchange is not None
        own = {
            (number, name): value
            for number, parameter in enumerate(self.parameters)
            for name, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        }
        described = [
            [*key, list(value.shape), str(value.dtype).removeprefix("torch."), value.device.type]
            for key, value in own.items()
        ]
        gathered = [json.loads(text) for text in exchange.gather(json.dumps(described).encode())]
        shapes = {(number, name): more for each in gathered for number, name, *more in each}
        values = []
        for key in sorted(shapes):
            shape, dtype, kind = shapes[key]
            value = own.get(key)
            if value is None:
                parameter = self.parameters[key[0]]
                value = torch.zeros(
                    shape, dtype=getattr(torch, dtype), device="cpu" if kind == "cpu" else parameter.device
                )
                optimizer.state[parameter][key[1]] = value
            values.append(value)
        exchange.average(values, self.rounds.rows)

    def load(self, tree: Tree) -> Tree:
        """Take what the State of a model has for its gang. Returns what this member has of its own; None: what rank 0
        has, which is the model's."""
        return self.rounds.load(
            tree, lambda values: [_copied(v, p) for v, p in zip(values, self.parameters, strict=True)]
        )


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
