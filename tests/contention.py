"""Runs whose gangs fit alone, and not together, into the places that both want. Their recipe is in NumPy, so that
workers start fast: torch, which sums up what they exchange, is imported once a gang trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hopyard as hy
from hopyard.core.runs.events import Yielded
from hopyard.frameworks.linear import Linear
from jobs import WIDTH, dataset, digests, journal

SECONDS = 200.0
"""Limit for two runs, one after the other, on a machine that does other work."""


class Member(Linear):
    """A Linear that averages its gradients with the others of its gang."""

    exchange: Any = None

    def set_exchange(self, exchange: Any) -> None:
        self.exchange = exchange

    def train(self, batch: Any) -> Any:
        inputs, error, sums = self._pass(batch)
        gradients = [inputs.T @ error, error.sum(0)]
        if self.exchange is not None:
            self.exchange.mean(gradients, batch.rows)
        self.weights -= self.lr * gradients[0]
        self.bias -= self.lr * gradients[1]
        return sums


def member(config: dict[str, Any]) -> Member:
    return Member(WIDTH, 2, lr=config["lr"], batch_size=16)


def fit(directory: Path, engine: Any, members: int, wait: bool = False) -> hy.Run:
    gang = hy.AllReduce(members)
    return hy.fit(
        member, {"lr": 0.05}, dataset(), epochs=2, engine=engine, parallel=gang, directory=directory, wait=wait
    )


def alone(folder: Path, members: int) -> list[str]:
    """Return the digests of such a run."""
    return digests(fit(folder / "run", hy.Local(members, devices=None), members, wait=True))


def both(folder: Path, engine: Callable[[], Any], members: int = 3) -> list[hy.Run]:
    """Return two runs that were started together, once both have ended."""
    runs = [fit(folder / name, engine(), members) for name in ("one", "other")]
    for run in runs:
        run.wait(timeout=SECONDS)
    return runs


def yielded(directory: Path) -> list[Yielded]:
    """Return how a run has left places to others so far."""
    return [line for line in journal(directory) if isinstance(line, Yielded)]
