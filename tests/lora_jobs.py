"""Recipes for fine-tuning: a small transformer whose weights come from a file, with adapters that are trained.

A config may have trouble, as in jobs.py: {"at": 7, "do": "kill"} in the seventh training batch of a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import hopyard as hy
from jobs import WIDTH, do, first_time

SIZE = 16
LORA: list[dict[str, Any]] = [{"rank": 2, "lr": 0.05}, {"rank": 4, "lr": 0.02}]


class Block(torch.nn.Module):
    """Attention and a layer of neurons, each with dropout and a norm."""

    query: torch.nn.Module
    value: torch.nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = [torch.nn.Linear(SIZE, SIZE) for _ in range(4)]
        self.up, self.down = torch.nn.Linear(SIZE, 4 * SIZE), torch.nn.Linear(4 * SIZE, SIZE)
        self.first, self.second = torch.nn.LayerNorm(SIZE), torch.nn.LayerNorm(SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / SIZE**0.5
        attended = self.out(torch.softmax(scores, 2) @ self.value(x))
        x = self.first(x + F.dropout(attended, 0.1, self.training))
        return self.second(x + F.dropout(self.down(F.gelu(self.up(x))), 0.1, self.training))


class Encoder(torch.nn.Module):
    """Tokens to classes, as BERT does it; the head of its pretraining shares the weights of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(2 * WIDTH, SIZE)
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.norm = torch.nn.BatchNorm1d(SIZE)
        self.decoder = torch.nn.Linear(SIZE, 2 * WIDTH, bias=False)
        self.decoder.weight = self.embedding.weight
        self.head = torch.nn.Linear(SIZE, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x > 0).long() + 2 * torch.arange(WIDTH)
        return self.head(self.norm(self.blocks(self.embedding(tokens)).mean(1)))


class Lora(torch.nn.Module):
    """A linear layer that stays as it is, plus a product of two small matrices that are trained."""

    def __init__(self, linear: Any, rank: int) -> None:
        super().__init__()
        self.linear = linear
        self.down = torch.nn.Parameter(torch.randn(rank, linear.in_features) / rank)
        self.up = torch.nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + x @ self.down.T @ self.up.T


class Troubled(hy.torch.Model):
    """A Model that does what its config says."""

    def __init__(self, config: dict[str, Any], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, batch_size=16, **more)
        self._config, self._batches = config, 0

    def _backward(self, *arguments: Any) -> float:
        self._batches += 1
        if self._config.get("at") == self._batches and first_time(self._config.get("once")):
            do(self._config["do"])
        return super()._backward(*arguments)


def weights(path: Path, seed: int = 0) -> str:
    """Write the weights of an encoder; the name of the file."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        torch.save(Encoder().state_dict(), path)
    return str(path)


def encoder(config: dict[str, Any]) -> Encoder:
    net = Encoder()
    net.load_state_dict(torch.load(config["base"], weights_only=True))
    return net


def lora(config: dict[str, Any]) -> Any:
    """Adapters of queries and values, and a new head; the optimizer is given all parameters."""
    net = encoder(config).requires_grad_(False)
    for block in net.blocks:
        block.query, block.value = Lora(block.query, config["rank"]), Lora(block.value, config["rank"])
    net.head = torch.nn.Linear(SIZE, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
    return Troubled(config, net, optimizer, F.cross_entropy, clip_norm=1.0)


class Distilled(torch.nn.Module):
    """A net and its teacher, which follows it by a moving average after each training batch."""

    def __init__(self, net: torch.nn.Module, teacher: torch.nn.Module) -> None:
        super().__init__()
        self.net, self.teacher = net, teacher.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                for own, other in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                    own.lerp_(other, 0.1)
        return self.net(x) + 0.1 * self.teacher(x)


def distilled(config: dict[str, Any]) -> Any:
    """With a teacher, which the config declares or not."""
    net = Distilled(*[torch.nn.Linear(WIDTH, 2) for _ in range(2)])
    optimizer = torch.optim.SGD(net.net.parameters(), lr=config["lr"])
    return hy.torch.Model(net, optimizer, F.cross_entropy, batch_size=16, state=config.get("state", ()))
