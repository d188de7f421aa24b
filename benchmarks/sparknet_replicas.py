"""Nets of a gang that averages its parameters, all in one batched product: what `sparknet.py` measures.

A *group* is the K members that train one net together. All groups of a call have equal K and τ; they differ in
learning rate and seed, and are independent of each other. Members take rows as those of `hy.LocalSGD` do: each batch
of K × b rows is cut into shares of b. One thing differs from it: rounds do not end with a partition, as SparkNet's do
not, and an epoch's last rows, too few for a batch, are left out.

The net has one hidden layer (ReLU) and a softmax. Biases are the last rows of the weights.

Source: Moritz et al., "SparkNet: Training Deep Networks in Spark", ICLR 2016, §2.1 and algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from hopyard.core.runs.order import shuffle_seed
from hopyard.data.assignment import permutation

Curve = list[tuple[int, float]]
"""(steps that each member has made, accuracy of the mean net on the test rows)."""


@dataclass(frozen=True)
class Rows:
    """Training and test rows: inputs of (rows, numbers + 1), whose last number is 1; classes of (rows,), from 0."""

    inputs: torch.Tensor
    targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor
    classes: int = 10


@dataclass(frozen=True)
class Cell:
    """One cell of a table: how a gang trains.

    Args:
        workers, every: K and τ.
        batch_size: of each member.
        optimizer: "sgd", "momentum" (0.9) or "adam".
        inner: what becomes of the members' optimizers after a round, as in `hy.LocalSGD`.
    """

    workers: int
    every: int
    batch_size: int = 1
    optimizer: str = "sgd"
    inner: str = "keep"


def initial(rows: Rows, hidden: int, seed: int) -> list[torch.Tensor]:
    """Return the weights of a new net: (numbers + 1, hidden), (hidden + 1, classes)."""
    generator = torch.Generator().manual_seed(seed)
    weights = []
    for inputs, outputs in ((rows.inputs.shape[1] - 1, hidden), (hidden, rows.classes)):
        layer = torch.rand(inputs + 1, outputs, generator=generator, dtype=torch.float64) * 2 - 1
        weights.append((layer * inputs**-0.5).to(rows.inputs.dtype))
    return weights


def visits(count: int, batch: int, seed: int, epoch: int) -> np.ndarray:
    """Return the rows that an epoch visits, in whole batches: (batches, batch). The order is that of a run with one
    partition."""
    order = permutation(shuffle_seed(seed, 0, epoch, 0), count)
    return order[: count - count % batch].reshape(-1, batch)


def with_one(inputs: torch.Tensor) -> torch.Tensor:
    """Return inputs with a last column of ones, which biases multiply."""
    return torch.cat([inputs, torch.ones(*inputs.shape[:-1], 1, dtype=inputs.dtype)], -1)


def _adam(count: int, state: list[torch.Tensor], gradient: torch.Tensor) -> torch.Tensor:
    """Return the direction of Adam's step number `count`, with the defaults of torch."""
    first, second = state
    first.mul_(0.9).add_(gradient, alpha=0.1)
    second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    return (first / (1 - 0.9**count)) / (second / (1 - 0.999**count)).sqrt_().add_(1e-8)


def _momentum(count: int, state: list[torch.Tensor], gradient: torch.Tensor) -> torch.Tensor:
    """Return the direction of a step with momentum 0.9."""
    return state[0].mul_(0.9).add_(gradient)


DIRECTIONS: dict[str, tuple[int, Callable[[int, list[torch.Tensor], torch.Tensor], torch.Tensor]]] = {
    "momentum": (1, _momentum),
    "adam": (2, _adam),
}
"""Optimizer → how many arrays it has for each of weights, and its direction."""


@dataclass
class Replicas:
    """The members of all groups. Owner of their weights and optimizers.

    Args:
        cell: how they train.
        lrs: learning rate of each group.
        weights: for each layer (groups, K, inputs + 1, outputs).
    """

    cell: Cell
    lrs: torch.Tensor
    weights: list[torch.Tensor]
    count: int = 0
    """Steps of the optimizers since they began."""
    state: list[list[torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.cell.optimizer != "sgd":
            arrays = DIRECTIONS[self.cell.optimizer][0]
            self.state = [[torch.zeros_like(layer) for _ in range(arrays)] for layer in self.weights]

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Take a step of each member.

        Args:
            inputs: (groups × K, b, numbers + 1), the last one 1.
            targets: (groups × K, b).
        """
        first, second = (layer.flatten(0, 1) for layer in self.weights)  # views
        members, rows = targets.shape
        hidden = torch.bmm(inputs, first).relu_()
        error = torch.baddbmm(second[:, -1:], hidden, second[:, :-1]).softmax(-1)
        error.scatter_add_(2, targets[..., None], torch.full((members, rows, 1), -1.0, dtype=error.dtype))
        back = torch.bmm(error, second[:, :-1].mT).mul_(hidden > 0)
        scale = (self.lrs / rows).repeat_interleave(self.cell.workers)[:, None, None]
        if self.cell.optimizer == "sgd":  # the step itself is a product: gradients need no memory of their own
            error.mul_(scale)
            first.baddbmm_(inputs.mT, back.mul_(scale), alpha=-1)
            second.baddbmm_(with_one(hidden).mT, error, alpha=-1)
            return
        self.count += 1
        direction = DIRECTIONS[self.cell.optimizer][1]
        gradients = torch.bmm(inputs.mT, back), torch.bmm(with_one(hidden).mT, error)
        lrs = self.lrs[:, None, None, None]
        for layer, gradient, state in zip(self.weights, gradients, self.state, strict=True):
            layer.sub_(direction(self.count, state, gradient.view_as(layer) / rows) * lrs)

    def average(self) -> None:
        """End a round: members go on from the mean of their groups."""
        if self.cell.workers == 1:
            return
        for layer in self.weights:
            layer.copy_(layer.mean(1, keepdim=True).expand_as(layer))
        for arrays in self.state if self.cell.inner != "keep" else ():
            for array in arrays:
                array.copy_(array.mean(1, keepdim=True).expand_as(array) if self.cell.inner == "average" else array * 0)
        if self.cell.inner == "reset":
            self.count = 0

    def accuracy(self, rows: Rows) -> torch.Tensor:
        """Return the accuracy of each group's net on the test rows; members must be equal."""
        first, second = (layer[:, 0] for layer in self.weights)
        hidden = torch.matmul(rows.test_inputs, first).relu_()
        outputs = torch.matmul(with_one(hidden), second)
        return (outputs.argmax(-1) == rows.test_targets).double().mean(-1)

    def keep(self, groups: torch.Tensor) -> None:
        """Drop all other groups."""
        self.lrs = self.lrs[groups]
        self.weights = [layer[groups] for layer in self.weights]
        self.state = [[array[groups] for array in arrays] for arrays in self.state]


@dataclass(frozen=True)
class Plan:
    """How long nets are trained, and which ones.

    Args:
        hidden: numbers of the hidden layer.
        lrs, seeds: there is a group for each pair of them.
        target: a group ends when its accuracy is reached.
        steps: all end after so many steps of each member.
        look: the accuracy is looked at where rounds end, about every so many steps.
    """

    hidden: int
    lrs: tuple[float, ...]
    seeds: tuple[int, ...]
    target: float
    steps: int
    look: int


def train(rows: Rows, cell: Cell, plan: Plan) -> tuple[dict[tuple[float, int], Curve], Replicas]:
    """Train one group for each learning rate and seed.

    Returns:
        The curve of each (learning rate, seed); the members of the groups that have not reached the accuracy.
    """
    names = [(lr, seed) for lr in plan.lrs for seed in plan.seeds]
    starts = {seed: initial(rows, plan.hidden, seed) for seed in plan.seeds}
    weights = [torch.stack([starts[seed][n].expand(cell.workers, -1, -1) for _, seed in names]) for n in range(2)]
    replicas = Replicas(cell, torch.tensor([lr for lr, _ in names], dtype=rows.inputs.dtype), weights)
    curves = {name: [(0, value)] for name, value in zip(names, replicas.accuracy(rows).tolist(), strict=True)}
    done, epoch, next_look = 0, 0, plan.look
    while names and done < plan.steps:
        orders = {seed: visits(len(rows.inputs), cell.workers * cell.batch_size, seed, epoch) for seed in plan.seeds}
        index = torch.from_numpy(np.stack([orders[seed] for _, seed in names]))  # (groups, batches, K × b)
        epoch += 1
        for number in range(index.shape[1]):
            batch = index[:, number].reshape(-1, cell.batch_size)
            replicas.step(rows.inputs[batch], rows.targets[batch])
            done += 1
            if done % cell.every and cell.workers > 1:  # a net alone is there after each step
                continue
            replicas.average()
            if done < next_look:
                continue
            next_look += plan.look
            values = replicas.accuracy(rows).tolist()
            for name, value in zip(names, values, strict=True):
                curves[name].append((done, value))
            others = [n for n, value in enumerate(values) if value < plan.target]
            if len(others) < len(names):
                replicas.keep(torch.tensor(others, dtype=torch.int64))
                index, names = index[others], [names[n] for n in others]
            if not names or done >= plan.steps:
                break
    return curves, replicas


def steps_to(curve: Curve, target: float) -> float:
    """Return after how many steps a curve first reaches an accuracy, interpolated; infinity: never."""
    for (before, low), (after, high) in pairwise(curve):
        if high >= target:
            return before + (after - before) * (target - low) / (high - low)
    return math.inf
