"""Steps of a gang beside those of DistributedDataParallel: the same net, the same rows, gloo, two processes.

    python benchmarks/allreduce.py [--workers 2] [--repeats 7]

Each process goes over the same partition by turns: in a plain loop around DDP, and as a member of a gang
(`hy.torch.Model` with the exchange of `hy.AllReduce`). Prints the ratio of the throughputs, medians of interleaved
repeats, for nets of about 12 MB and about 1 MB of parameters.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import hopyard as hy
from hopyard.data.columns import Columns
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.exchange.exchange import GangExchange
from hopyard.exchange.group import Group
from hopyard.spec import Gang

SIZES = {"12 MB": 1536, "1 MB": 384}
"""Parameters → width of the two hidden layers."""
BATCH = 256
STEPS = 20


class Meeting:
    """A board for processes that share a TCPStore."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, group: int, key: str, value: bytes) -> None:
        self._store.set(f"{group}/{key}", value)

    def get(self, group: int, key: str) -> bytes:
        return self._store.get(f"{group}/{key}")


def net(width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


def seconds(work: Callable[[], Any]) -> float:
    dist.barrier()
    begin = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - begin


def ddp(width: int, columns: Columns, rank: int, size: int) -> Callable[[], None]:
    module = torch.nn.parallel.DistributedDataParallel(net(width))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    loader = PartitionLoader(columns, BATCH, 1, 0, (rank, size))

    def work() -> None:
        for batch in loader:
            optimizer.zero_grad()
            outputs = module(torch.from_numpy(batch.inputs))
            torch.nn.functional.cross_entropy(outputs, torch.from_numpy(batch.targets)).backward()
            optimizer.step()

    return work


def gang(width: int, columns: Columns, rank: int, size: int, store: Any) -> Callable[[], None]:
    module = net(width)
    model = hy.torch.Model(module, torch.optim.SGD(module.parameters(), lr=0.01), torch.nn.functional.cross_entropy)
    meeting: Any = Meeting(store)
    exchange = GangExchange(rank, size, Gang(size), lambda: Group(rank, size, meeting, width, "127.0.0.1"))
    model.set_exchange(exchange)
    loader = PartitionLoader(columns, BATCH, 1, 0, (rank, size))
    return lambda: model.train_partition(loader)


def member(rank: int, size: int, port: int, repeats: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.PrefixStore("ddp", store), rank=rank, world_size=size)
    rng = np.random.default_rng(0)
    rows = BATCH * STEPS
    columns = Columns(rng.standard_normal((rows, 64), np.float32), rng.integers(0, 10, rows), None, rows)
    for name, width in SIZES.items():
        works = {
            "ddp": ddp(width, columns, rank, size),
            "gang": gang(width, columns, rank, size, dist.PrefixStore("gang", store)),
        }
        for work in works.values():
            work()
        times: dict[str, list[float]] = {each: [] for each in works}
        for _ in range(repeats):
            for each, work in works.items():
                times[each].append(seconds(work))
        if rank == 0:
            ratio = statistics.median([a / b for a, b in zip(times["ddp"], times["gang"], strict=True)])
            each = ", ".join(f"{kind} {1000 * statistics.median(some) / STEPS:.1f} ms" for kind, some in times.items())
            print(f"{name}: a gang's throughput ÷ DDP's {ratio:.2f} (a step: {each})", flush=True)
    sys.stdout.flush()
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank >= 0:
        member(arguments.rank, arguments.workers, arguments.port, arguments.repeats)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--workers", str(arguments.workers), "--repeats", str(arguments.repeats)]
    members = [
        subprocess.Popen([*command, "--port", str(port), "--rank", str(rank)]) for rank in range(arguments.workers)
    ]
    return max(process.wait() for process in members)


if __name__ == "__main__":
    sys.exit(main())
