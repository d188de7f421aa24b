"""A recipe for gangs, with and without trouble (see jobs.py). Its config says which member has it: {"rank": 1, "at": 7,
"do": "kill"} kills the second one in its seventh batch, {"rank": 1, "within": True} while it averages."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

import torch

import hopyard as hy
from hopyard.exchange import blocks
from jobs import WIDTH, do, first_time


class Wide(torch.nn.Module):
    """Inputs as float64, in which a gang computes what one worker does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


class Large(torch.nn.Sequential):
    """With parameters of several pieces of what goes over sockets."""

    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__(*layers)
        self.scale = torch.nn.Parameter(torch.ones(1_000_000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale[:2]


def network(config: dict[str, Any]) -> Any:
    layers = Wide(), torch.nn.Linear(WIDTH, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    net = (Large if "within" in config else torch.nn.Sequential)(*layers).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=config.get("lr", 0.05))
    return Troubled(config, net, optimizer, torch.nn.functional.cross_entropy, {"accuracy": hy.torch.accuracy})


def average_small_pieces(kill: bool) -> None:
    """Average in more pieces than are under way at a time; if asked, be killed in the middle of the second average."""
    setattr(blocks, "PIECE_BYTES", 1 << 19)  # noqa: B010
    if not kill:
        return
    go_on, calls = blocks._Piece.average, itertools.count()

    def killed(*arguments: Any) -> None:
        if next(calls) == 25:
            os.kill(os.getpid(), signal.SIGKILL)
        go_on(*arguments)

    setattr(blocks._Piece, "average", killed)  # noqa: B010


class Troubled(hy.torch.Model):
    """A Model that does what its config says, in one member of a gang."""

    def __init__(self, config: dict[str, Any], net: Any, optimizer: Any, *more: Any) -> None:
        super().__init__(net, optimizer, *more, batch_size=16)
        self._config, self._batches, self._rank = config, 0, -1

    def set_exchange(self, exchange: Any) -> None:
        super().set_exchange(exchange)
        self._rank = exchange.rank
        if "within" in self._config:
            average_small_pieces(exchange.rank == self._config.get("rank") and first_time(self._config.get("once")))

    def _backward(self, *arguments: Any) -> float:
        config = self._config
        if self._rank >= 0:
            self._batches += 1
        if (
            config.get("rank", -2) == self._rank
            and config.get("at") == self._batches
            and first_time(config.get("once"))
        ):
            do(config["do"])
        return super()._backward(*arguments)
