"""The nets of `benchmarks/sparknet.py`, many in one product, take the steps that gangs of `hy.LocalSGD` take."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopyard as hy
from gang_threads import exchanges, together
from hopyard.core.runs.order import shuffle_seed
from hopyard.data.columns import Columns
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.spec import Gang

REPLICAS = Path(__file__).parents[2] / "benchmarks" / "sparknet_replicas.py"
ROWS, HIDDEN, EPOCHS = 48, 6, 2


def benchmark() -> Any:
    name = "sparknet_replicas"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, REPLICAS)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def trained(layers: list[torch.Tensor], columns: Columns, gang: Gang, batch_size: int, optimizer: str) -> list[Any]:
    """The weights of all members of a gang of the product, as the benchmark has them."""

    def built() -> hy.torch.Model:
        linear = [torch.nn.Linear(layer.shape[0] - 1, layer.shape[1]).double() for layer in layers]
        for each, layer in zip(linear, layers, strict=True):
            each.weight.data.copy_(layer[:-1].T)
            each.bias.data.copy_(layer[-1])
        net = torch.nn.Sequential(linear[0], torch.nn.ReLU(), linear[1])
        kinds = {
            "sgd": torch.optim.SGD(net.parameters(), lr=0.1),
            "momentum": torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
            "adam": torch.optim.Adam(net.parameters(), lr=0.1),
        }
        return hy.torch.Model(net, kinds[optimizer], torch.nn.functional.cross_entropy)

    models = [built() for _ in range(gang.size)]

    def work(exchange: Any) -> list[torch.Tensor]:
        model, rank = models[exchange.rank], (exchange.rank, exchange.size)
        model.set_exchange(exchange)
        for epoch in range(EPOCHS):
            shuffle = shuffle_seed(5, 0, epoch, 0)
            model.train_partition(PartitionLoader(columns, batch_size * gang.size, shuffle, 0, rank))
        return [torch.cat([each.weight.T, each.bias[None]]).detach() for each in (model.module[0], model.module[2])]

    return together(work, exchanges(gang))


@pytest.mark.parametrize(
    ("optimizer", "inner"),
    [("sgd", "keep"), ("momentum", "keep"), ("momentum", "average"), ("adam", "average"), ("adam", "reset")],
)
def test_a_cell_of_the_tables_is_a_gang_of_the_product(optimizer, inner):
    sparknet = benchmark()
    rng = np.random.default_rng(0)
    columns = Columns(rng.standard_normal((ROWS, 5)), rng.integers(0, 3, ROWS), None, ROWS)
    inputs, targets = sparknet.with_one(torch.from_numpy(columns.inputs)), torch.from_numpy(columns.targets)
    rows = sparknet.Rows(inputs, targets, inputs, targets, 3)
    cell = sparknet.Cell(3, 4, 2, optimizer, inner)  # 48 rows: 8 steps of 3 × 2, two rounds of 4
    plan = sparknet.Plan(HIDDEN, (0.2, 0.1), (4, 5), target=2.0, steps=EPOCHS * ROWS // 6, look=8)
    curves, replicas = sparknet.train(rows, cell, plan)
    assert [steps for steps, _ in curves[0.1, 5]] == [0, 8, 16]
    members = trained(
        sparknet.initial(rows, HIDDEN, 5), columns, Gang(3, "parameters", every=4, inner=inner), 2, optimizer
    )
    for fused, *real in zip(replicas.weights, *members, strict=True):
        for member in real:
            torch.testing.assert_close(fused[3, 0], member, rtol=1e-9, atol=1e-12)


def test_a_batch_of_averages_after_each_step_is_one_net():
    """With τ = 1 and plain SGD, K members are one net with K times the batch."""
    sparknet = benchmark()
    rng = np.random.default_rng(1)
    inputs = sparknet.with_one(torch.from_numpy(rng.standard_normal((24, 5))))
    targets = torch.from_numpy(rng.integers(0, 3, 24))
    rows = sparknet.Rows(inputs, targets, inputs, targets, 3)
    plan = sparknet.Plan(HIDDEN, (0.1,), (0,), target=2.0, steps=12, look=100)
    _, gang = sparknet.train(rows, sparknet.Cell(4, 1, 2), plan)
    _, alone = sparknet.train(rows, sparknet.Cell(1, 1, 8), plan)
    for one, other in zip(gang.weights, alone.weights, strict=True):
        torch.testing.assert_close(one[0, 0], other[0, 0], rtol=1e-9, atol=1e-12)


def test_steps_to_an_accuracy_are_interpolated():
    sparknet = benchmark()
    assert sparknet.steps_to([(0, 0.1), (100, 0.5), (200, 0.9), (300, 0.4)], 0.8) == pytest.approx(175)
    assert sparknet.steps_to([(0, 0.1), (100, 0.5)], 0.8) == float("inf")
