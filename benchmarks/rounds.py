"""Rounds of local SGD over a slow network, beside τ·C + S, and an exchange beside what the network allows.

    python benchmarks/rounds.py [--workers 2,5] [--every 1,5,10,25,50] [--megabit 100] [--delays 0,50,200]

K hosts in network namespaces, one worker of the product on each, which train by `hy.fit(parallel=hy.LocalSGD(…))`. Each
first probes, in its gang, C, the seconds of a step (padded by a sleep), and S, those of an exchange of the parameters;
then it goes over rounds of each τ. Hosts send 100 Mbit/s at most, through a bridge; then through a relay that passes
each packet on 50 and 200 ms later.

Goals: rounds within 10 % of τ·C + S; S within 1.15 of a ring over a network without delay, 2(K − 1)/K · M/B. Without
the right to make namespaces it says so and ends well.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

import hopyard as hy
import slow_network

ROUNDS = 5
"""Rounds of each τ that are timed, after one that is not. Medians count: TCP that probes its path (BBR) slows down for
a moment every ten seconds."""
PROBES = 5
NUMBERS = 1_250_000
"""Parameters: 5 MB."""


def median_of(times: Sequence[float]) -> float:
    """Return the median of what passes between one time and the next."""
    return statistics.median([after - before for before, after in pairwise(times)])


class Watched:
    """An exchange that notes when averages are done, and whose rounds are as long as the partition says."""

    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange
        self.gang = exchange.gang
        self.times: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exchange, name)

    def average(self, arrays: Sequence[Any], rows: float) -> None:
        self._exchange.average(arrays, rows)
        self.times.append(time.perf_counter())


class Net(torch.nn.Module):
    """Many parameters, of which few cost time."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(8, 2)
        self.unused = torch.nn.Parameter(torch.ones(NUMBERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


class Member(hy.torch.Model):
    """A model that probes its gang in its first partition, and then times the rounds of one τ in each."""

    def __init__(self, config: dict[str, Any]) -> None:
        net = Net()

        def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            time.sleep(config["pad"])
            return torch.nn.functional.cross_entropy(outputs, targets)

        super().__init__(net, torch.optim.SGD(net.parameters(), lr=0.01), loss, batch_size=1)
        self._config = config
        self._watched: Any = None
        self._partition = 0

    def set_exchange(self, exchange: Any) -> None:
        self._watched = None if exchange is None else Watched(exchange)
        super().set_exchange(self._watched)

    def train_partition(self, batches: Any) -> Any:
        if self._watched is None:
            return super().train_partition(batches)
        every, number = self._config["every"], self._partition
        self._partition += 1
        return self._probe(batches) if not number else self._rounds(batches, every[number - 1])

    def _probe(self, batches: Any) -> Any:
        watched = self._watched
        arrays = [torch.ones_like(each) for each in self.module.parameters()]
        watched.gather(b"")
        for _ in range(PROBES + 1):
            watched.average(arrays, 1.0)
        exchange = median_of(watched.times)
        super().set_exchange(None)
        some = list(islice(batches, 11))
        super().train_partition(some[:1])
        begin = time.perf_counter()
        super().train_partition(some[1:])
        step = (time.perf_counter() - begin) / 10
        self._write("probe", {"S": exchange, "C": step})
        watched.gather(b"")
        super().set_exchange(watched)
        return {}

    def _rounds(self, batches: Any, every: int) -> Any:
        watched = self._watched
        watched.gang = msgspec.structs.replace(watched.gang, every=every)
        watched.times.clear()
        sums = super().train_partition(islice(batches, every * (ROUNDS + 1)))
        self._write(f"every {every}", {"round": median_of(watched.times[: ROUNDS + 1])})
        return sums

    def _write(self, what: str, values: dict[str, float]) -> None:
        path = Path(self._config["folder"]) / f"{what} {self._watched.rank}.json"
        path.write_text(json.dumps(values))


def measure(workers: int, every: Sequence[int], rate: float, delay: float, pad: float) -> dict[str, dict[str, float]]:
    """The members' probes and rounds, each as rank 0 saw it."""
    rows = workers * max(*every, 3) * (ROUNDS + 1)
    partitions = len(every) + 1
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((rows * partitions, 8), np.float32)
    data = hy.Dataset.numpy(inputs, rng.integers(0, 2, len(inputs)), partitions=partitions)
    with tempfile.TemporaryDirectory() as folder, slow_network.network(workers, rate, delay) as network:
        config = {"every": list(every), "folder": folder, "pad": pad}
        hy.fit(
            Member,
            config,
            data,
            epochs=1,
            engine=slow_network.Hosts(network=network),
            parallel=hy.LocalSGD(every=max(every)),
            directory=Path(folder) / "run",
            exact=False,
        )
        files = Path(folder).glob("* 0.json")
        return {path.name.rpartition(" ")[0]: json.loads(path.read_text()) for path in files}


def report(workers: int, every: Sequence[int], rate: float, delay: float, pad: float) -> bool:
    values = measure(workers, every, rate, delay, pad)
    exchange, step = values["probe"]["S"], values["probe"]["C"]
    ring = 2 * (workers - 1) / workers * 4 * NUMBERS / rate
    goal = ""
    well = True
    if not delay:
        well = exchange <= 1.15 * ring
        goal = f", {exchange / ring:.2f} of a ring's {ring:.3f} s (goal: at most 1.15)"
    print(f"K = {workers}, {delay * 1000:.0f} ms each way: C = {step * 1000:.1f} ms, S = {exchange:.3f} s{goal}")
    for each in every:
        seconds, expected = values[f"every {each}"]["round"], each * step + exchange
        well &= abs(seconds / expected - 1) <= 0.1
        print(
            f"  τ = {each}: a round {seconds:.3f} s, τ·C + S {expected:.3f} s: {100 * (seconds / expected - 1):+.1f} %"
        )
    sys.stdout.flush()
    return well


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=numbers, default=[2, 5])
    parser.add_argument("--every", type=numbers, default=[1, 5, 10, 25, 50])
    parser.add_argument("--megabit", type=float, default=100.0)
    parser.add_argument("--delays", type=numbers, default=[0, 50, 200])
    parser.add_argument("--pad", type=float, default=0.04, help="seconds that a step sleeps")
    arguments = parser.parse_args()
    if reason := slow_network.refusal():
        print(f"left out: {reason}")
        return 0
    logging.basicConfig(level=logging.WARNING)
    well = [
        report(workers, arguments.every, arguments.megabit * 1e6 / 8, delay / 1000, arguments.pad)
        for delay in arguments.delays
        for workers in arguments.workers
    ]
    print("all within the goals" if all(well) else "NOT all within the goals")
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
