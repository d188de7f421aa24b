"""What gangs exchange, beside others, in two processes of this host; medians of interleaved repeats.

    python benchmarks/allreduce.py [--workers 2] [--repeats 7] [--only ddp | average | keras | gpus]

`ddp`: each process goes over the same partition by turns, in a plain loop around DistributedDataParallel, and as a
member of a gang (`hy.torch.Model` with the exchange of `hy.AllReduce`); nets of about 12 MB and 1 MB of parameters.

`average`: the end of a round of `hy.LocalSGD`, from parameters that members have changed to their mean in place, beside
push and pull of the same bytes over one bare TCP connection on loopback with buffers that are there.

`gpus`: the first two on GPUs, between them (NCCL) and through the host's memory. Needs a GPU for each process, or one
that NCCL lets all have (NCCL_MULTI_RANK_GPU_ENABLE=1).

`keras`: a step of a Keras model in a gang beside one of a loop of one's own under MultiWorkerMirroredStrategy.

Goals, throughput ÷ the other's: DDP 0.95 at 12 MB and 0.8 at 1 MB; push and pull 0.5 at 10 MB and at 40 MB;
Keras 1.0 at 12 MB.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import torch
import torch.distributed as dist

import hopyard as hy
from hopyard.data.columns import Columns
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.exchange.exchange import GangExchange
from hopyard.exchange.group import Group
from hopyard.frameworks.rounds import Rounds
from hopyard.spec import Gang

SIZES = {"12 MB": (1536, 0.95), "1 MB": (384, 0.8)}
"""Parameters → (width of the two hidden layers, goal)."""
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
    """Return the time from when the first member begins until the last one ends; all clocks are the host's."""
    dist.barrier()
    begin = time.perf_counter()
    work()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    times = torch.tensor([-begin, time.perf_counter()], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return float(times.sum())


def ddp(
    width: int, columns: Columns, rank: int, size: int, device: str = "cpu", group: Any = None
) -> Callable[[], None]:
    module = torch.nn.parallel.DistributedDataParallel(net(width).to(device), process_group=group)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    loader = PartitionLoader(columns, BATCH, 1, 0, (rank, size))

    def work() -> None:
        for batch in loader:
            optimizer.zero_grad()
            outputs = module(torch.from_numpy(batch.inputs).to(device))
            torch.nn.functional.cross_entropy(outputs, torch.from_numpy(batch.targets).to(device)).backward()
            optimizer.step()

    return work


def gang(
    width: int,
    columns: Columns,
    rank: int,
    size: int,
    store: Any,
    device: str = "cpu",
    gpu_interface: str | None = None,
) -> Callable[[], None]:
    module = net(width)
    model = hy.torch.Model(module, torch.optim.SGD(module.parameters(), lr=0.01), torch.nn.functional.cross_entropy)
    meeting: Any = Meeting(store)
    exchange = GangExchange(Gang(size), Group(rank, size, meeting, width, "127.0.0.1", gpu_interface))
    model.set_exchange(exchange)
    model.to_device(device)
    loader = PartitionLoader(columns, BATCH, 1, 0, (rank, size))
    return lambda: model.train_partition(loader)


def average(
    megabytes: int,
    rank: int,
    size: int,
    store: Any,
    device: str = "cpu",
    gpu_interface: str | None = None,
) -> Callable[[], None]:
    """The end of a round: parameters in ten arrays."""
    meeting: Any = Meeting(store)
    gang = Gang(size, "parameters", every=1)
    exchange = GangExchange(gang, Group(rank, size, meeting, megabytes, "127.0.0.1", gpu_interface))
    parameters = [torch.full((megabytes * 25_000,), float(rank), device=device) for _ in range(10)]
    rounds = Rounds()
    rounds.exchange = exchange
    rounds.begin()
    rounds.add(1.0)

    def work() -> None:
        rounds.mean(parameters)
        rounds.begin()
        rounds.add(1.0)

    return work


def push_pull(megabytes: int, rank: int, store: Any) -> Callable[[], None]:
    """As many bytes from rank 1 to rank 0 and back, over one connection."""
    if rank > 1:
        return lambda: None
    buffer = np.ones(megabytes * 1_000_000, np.uint8)
    view = memoryview(buffer)
    if rank:
        host, port = store.get(f"raw {megabytes}").decode().split()
        line = socket.create_connection((host, int(port)))
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            store.set(f"raw {megabytes}", f"127.0.0.1 {server.getsockname()[1]}")
            line, _ = server.accept()
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def receive() -> None:
        done = 0
        while done < len(view):
            done += line.recv_into(view[done:])

    def work() -> None:
        for sends in (rank == 1, rank == 0):
            line.sendall(view) if sends else receive()

    return work


def keras_ports(rank: int, size: int, store: Any) -> list[int]:
    """A free port of each member."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        store.set(f"port {rank}", str(server.getsockname()[1]))
    return [int(store.get(f"port {each}")) for each in range(size)]


def compare(
    name: str, works: dict[str, Callable[[], None]], repeats: int, rank: int, steps: int, goals: Sequence[float]
) -> None:
    """Print how many times the throughput of the others that of the first is: medians of interleaved repeats."""
    for work in works.values():
        work()
        work()
    times: dict[str, list[float]] = {each: [] for each in works}
    for _ in range(repeats):
        for each, work in works.items():
            times[each].append(seconds(work))
    if rank == 0:
        first, *others = works
        print(f"{name}: {first} {1000 * statistics.median(times[first]) / steps:.1f} ms")
        for other, goal in zip(others, goals, strict=True):
            ratio = statistics.median([a / b for a, b in zip(times[first], times[other], strict=True)])
            took = 1000 * statistics.median(times[other]) / steps
            print(f"  {other} {took:.1f} ms, throughput ÷ {first} {ratio:.2f} (goal {goal})", flush=True)


def mirrored(width: int, columns: Columns, rank: int, size: int) -> Callable[[], None]:
    """A loop of one's own under MultiWorkerMirroredStrategy, over this member's share of each batch."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        first = tf.random_normal_initializer(stddev=0.05, seed=1)
        shapes = [(64, width), (width, width), (width, 10)]
        weights = [tf.Variable(first(shape)) for shape in shapes]
        biases = [tf.Variable(tf.zeros(shape[1])) for shape in shapes]
    variables = [*weights, *biases]

    @tf.function
    def step(rows: Any, targets: Any) -> None:
        def on_each(rows: Any, targets: Any) -> None:
            with tf.GradientTape() as tape:
                hidden = tf.nn.relu(rows @ weights[0] + biases[0])
                logits = tf.nn.relu(hidden @ weights[1] + biases[1]) @ weights[2] + biases[2]
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))
            means = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, variables))
            for variable, gradient in zip(variables, means, strict=True):
                variable.assign_sub(0.01 * gradient)

        strategy.run(on_each, (rows, targets))

    loader = PartitionLoader(columns, BATCH, 1, 0, (rank, size))

    def work() -> None:
        for batch in loader:
            step(tf.constant(batch.inputs), tf.constant(batch.targets))

    return work


def keras_gang(width: int, columns: Columns, rank: int, size: int, store: Any) -> Callable[[], None]:
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(width, "relu"), keras.layers.Dense(width, "relu"), keras.layers.Dense(10)]
    net = keras.Sequential([keras.Input((64,)), *layers])
    net.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model = hy.keras.Model(net, batch_size=BATCH)
    model.set_schema({"inputs": ((64,), "float32")}, {"targets": ((), "int64")})
    meeting: Any = Meeting(store)
    exchange = GangExchange(Gang(size), Group(rank, size, meeting, 1, "127.0.0.1"))
    model.set_exchange(exchange)
    loader = PartitionLoader(columns, BATCH, 1, 0, (rank, size))
    return lambda: model.train_partition(loader)


def between_gpus(rank: int, size: int, store: Any, repeats: int, columns: Columns) -> None:
    """Goals are those of hosts for DDP; the host's memory is what NCCL spares."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_float32_matmul_precision("high")
    nccl = dist.new_group(backend="nccl")
    for name, (width, goal) in SIZES.items():
        by_nccl, by_host = (dist.PrefixStore(f"{place} {name}", store) for place in ("gpus", "host"))
        works = {
            "DDP": ddp(width, columns, rank, size, "cuda", nccl),
            "a gang": gang(width, columns, rank, size, by_nccl, "cuda", ""),
            "a gang through the host's memory": gang(width, columns, rank, size, by_host, "cuda"),
        }
        compare(f"{name} on GPUs, a step", works, repeats, rank, STEPS, [goal, 0])
    for megabytes in (10, 40):
        by_nccl, by_host = (dist.PrefixStore(f"{place} {megabytes}", store) for place in ("gpus", "host"))
        works = {
            "an average through the host's memory": average(megabytes, rank, size, by_host, "cuda"),
            "between GPUs": average(megabytes, rank, size, by_nccl, "cuda", ""),
        }
        compare(f"{megabytes} MB on GPUs", works, 3 * repeats, rank, 1, [1])


def member(rank: int, size: int, port: int, repeats: int, only: str) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.PrefixStore("ddp", store), rank=rank, world_size=size)
    for megabytes, goal in ((10, 0.5), (40, 0.5)) if only in ("", "average") else ():
        meeting = dist.PrefixStore("average", store)
        works = {
            "push and pull": push_pull(megabytes, rank, meeting),
            "an average": average(megabytes, rank, size, meeting),
        }
        compare(f"{megabytes} MB", works, 3 * repeats, rank, 1, [goal])
    rng = np.random.default_rng(0)
    rows = BATCH * STEPS
    columns = Columns(rng.standard_normal((rows, 64), np.float32), rng.integers(0, 10, rows), None, rows)
    for name, (width, goal) in SIZES.items() if only in ("", "ddp") else ():
        works = {
            "DDP": ddp(width, columns, rank, size),
            "a gang": gang(width, columns, rank, size, dist.PrefixStore("gang", store)),
        }
        compare(f"{name}, a step", works, repeats, rank, STEPS, [goal])
    if only == "gpus":
        between_gpus(rank, size, store, repeats, columns)
    if only in ("", "keras") and importlib.util.find_spec("tensorflow") is not None:
        peers = [f"127.0.0.1:{each}" for each in keras_ports(rank, size, store)]
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": peers}, "task": {"type": "worker", "index": rank}})
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        width, _ = SIZES["12 MB"]
        works = {
            "MultiWorkerMirroredStrategy": mirrored(width, columns, rank, size),
            "a Keras gang": keras_gang(width, columns, rank, size, dist.PrefixStore("keras", store)),
        }
        compare("12 MB, a step", works, repeats, rank, STEPS, [1.0])
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=["ddp", "average", "keras", "gpus"], default="")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank >= 0:
        member(arguments.rank, arguments.workers, arguments.port, arguments.repeats, arguments.only)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--workers", str(arguments.workers), "--repeats", str(arguments.repeats)]
    command += ["--only", arguments.only] if arguments.only else []
    members = [
        subprocess.Popen([*command, "--port", str(port), "--rank", str(rank)]) for rank in range(arguments.workers)
    ]
    return max(process.wait() for process in members)


if __name__ == "__main__":
    sys.exit(main())
