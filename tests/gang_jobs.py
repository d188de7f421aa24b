"""A recipe for gangs, with and without trouble (see jobs.py). Its config says which member has it: {"rank": 1, "at": 7,
"do": "kill"} kills the second one in its seventh batch."""

from __future__ import annotations

from typing import Any

import torch

import hopyard as hy
from jobs import WIDTH, do, first_time


class Wide(torch.nn.Module):
    """Inputs as float64, in which a gang computes what one worker does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


def network(config: dict[str, Any]) -> Any:
    net = torch.nn.Sequential(Wide(), torch.nn.Linear(WIDTH, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=config.get("lr", 0.05))
    return Troubled(config, net, optimizer, torch.nn.functional.cross_entropy, {"accuracy": hy.torch.accuracy})


class Troubled(hy.torch.Model):
    """A Model that does what its config says, in one member of a gang."""

    def __init__(self, config: dict[str, Any], net: Any, optimizer: Any, *more: Any) -> None:
        super().__init__(net, optimizer, *more, batch_size=16)
        self._config, self._batches, self._rank = config, 0, -1

    def set_exchange(self, exchange: Any) -> None:
        super().set_exchange(exchange)
        self._rank = exchange.rank

    def _backward(self, *arguments: Any) -> float:
        config = self._config
        if self._rank >= 0:
            self._batches += 1
        if config.get("rank", -2) == self._rank and config["at"] == self._batches and first_time(config.get("once")):
            do(config["do"])
        return super()._backward(*arguments)
