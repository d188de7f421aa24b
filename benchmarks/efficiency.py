"""A whole selection against the plain loop that one would write without Hopyard.

    python benchmarks/efficiency.py [--repeats 3] [--quick]

16 configurations, 2 workers of one thread. The plain loop has its data as aligned tensors in memory, one thread, two
processes at once with 8 configurations each, the same visit order, gathers and validation; it must end in bitwise the
same weights, so the work is the same. Both clocks start when torch is imported; what torch puts off until its first
optimizer (it imports its compiler) is in both. Ratio = Hopyard's wall time from the moment its agents are up to the
result ÷ half the sum over the configurations of the plain loop's time. Both in turn, medians. Start-up: until the
agents are up, ÷ as many simultaneous bare `import torch`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import hopyard as hy
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Began, Dispatch, Done, Finished, Joined
from hopyard.engines import followers
from hopyard.store.journal import read
from hopyard.store.layout import Layout

FEATURES, PARTITIONS, EPOCHS, CONFIGS, WORKERS = 40, 4, 2, 16, 2
SIZES = {"long": 24_000, "short": 1_600}
"""Rows of a training partition: units of about 0.3 s and 20 ms."""


def configs() -> list[dict[str, Any]]:
    space = hy.Space(
        lr=hy.choice([1e-3, 3e-3]),
        width=hy.choice([64, 128]),
        batch_size=hy.choice([64, 128]),
        dropout=hy.choice([0.0, 0.2]),
    )
    return list(space.grid())


def make(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, FEATURES)).astype(np.float32)
    y = (x @ rng.standard_normal(FEATURES) + rng.standard_normal(rows) > 0).astype(np.int64)
    return x, y


def recipe(config: dict[str, Any]) -> Any:
    import torch

    net = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, config["width"]),
        torch.nn.ReLU(),
        torch.nn.Dropout(config["dropout"]),
        torch.nn.Linear(config["width"], 2),
    )
    return hy.torch.Model(
        net,
        optimizer=torch.optim.Adam(net.parameters(), lr=config["lr"]),
        loss=torch.nn.functional.cross_entropy,
        metrics={"accuracy": hy.torch.accuracy},
        batch_size=config["batch_size"],
    )


def plain(folder: Path, part: int) -> None:
    """One of the two processes: its configurations, one after the other. Prints seconds and a digest of each."""
    import torch
    from blake3 import blake3

    from hopyard.core.runs import order
    from hopyard.data.assignment import permutation
    from hopyard.data.manifest import Manifest
    from hopyard.data.partitions.loader import sizes
    from hopyard.data.partitions.mapped import open_partition

    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")
    manifest = Manifest.load(folder / "manifest.json")

    def tensors(kind: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        found = []
        for number in range(PARTITIONS):
            columns = open_partition(manifest, kind, number)
            found.append((torch.from_numpy(np.array(columns.inputs)), torch.from_numpy(np.array(columns.targets))))
        return found

    train, validate = tensors("train"), tensors("validate")
    print("ready", flush=True)
    sys.stdin.readline()
    for trial, config in enumerate(configs()):
        if trial % WORKERS != part:
            continue
        began = time.perf_counter()
        torch.manual_seed(order.build_seed(0, trial))
        net = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, config["width"]),
            torch.nn.ReLU(),
            torch.nn.Dropout(config["dropout"]),
            torch.nn.Linear(config["width"], 2),
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
        for epoch in range(EPOCHS):
            net.train()
            for step in range(PARTITIONS):
                first = order.spread(PARTITIONS)[trial % PARTITIONS]
                _, p = order.visit(first, epoch * PARTITIONS + step, PARTITIONS)
                torch.manual_seed(order.partition_seed(0, trial, epoch, p))
                x, y = train[p]
                rows = torch.from_numpy(permutation(order.shuffle_seed(0, trial, epoch, p), len(x)))
                at, total = 0, torch.zeros(())
                for count in sizes(len(x), config["batch_size"]):
                    index = rows[at : at + count]
                    at += count
                    loss = torch.nn.functional.cross_entropy(net(x[index]), y[index])
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    total += loss.detach() * count
                total.item()
            net.eval()
            with torch.inference_mode():
                lost = right = 0.0
                for x, y in validate:
                    at = 0
                    for count in sizes(len(x), config["batch_size"]):
                        outputs, targets = net(x[at : at + count]), y[at : at + count]
                        at += count
                        lost += torch.nn.functional.cross_entropy(outputs, targets).item() * count
                        right += (outputs.argmax(1) == targets).sum().item()
        seconds = time.perf_counter() - began
        digest = blake3(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
        print(json.dumps([trial, seconds, digest]), flush=True)


def run_plain(folder: Path) -> tuple[float, dict[int, str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--plain", str(folder)]
    jobs = [
        subprocess.Popen([*command, str(n)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for n in range(WORKERS)
    ]
    for job in jobs:
        assert job.stdout and job.stdout.readline() == "ready\n"
    for job in jobs:
        assert job.stdin
        job.stdin.write("go\n")
        job.stdin.flush()
    lines = [json.loads(line) for job in jobs for line in job.communicate()[0].splitlines()]
    return sum(seconds for _, seconds, _ in lines) / WORKERS, {trial: digest for trial, _, digest in lines}


def run_hopyard(
    data: Any, folder: Path, group: Any, track: tuple[str, ...] = ()
) -> tuple[float, float, float, dict[int, str]]:
    """(seconds from the agents up to the result, seconds until they are up, median seconds of a partition, digests of
    the final weights)."""
    from blake3 import blake3

    with tempfile.TemporaryDirectory(dir=folder) as name, contextlib.redirect_stdout(io.StringIO()):
        run = hy.select(
            recipe,
            None,
            data,
            search=hy.Configs(configs()),
            epochs=EPOCHS,
            metric="val_loss",
            mode="min",
            engine=hy.Local(workers=WORKERS),
            parallel=hy.Hopper(group=group),
            directory=Path(name) / "run",
            track=track,
        )
        for follower in followers._running:  # it would go on in a folder that is about to be removed
            follower.kill()
            follower.wait()
        lines = list(read(Layout(run.directory).journal, CODEC))
        began = next(line.at for line in lines if isinstance(line, Began))
        up = max(line.at for line in lines if isinstance(line, Joined))
        end = next(line.at for line in lines if isinstance(line, Finished))
        made = {}
        for trial in run.trials:
            weights = b"".join(p.detach().numpy().tobytes() for p in trial.model("last").parameters())
            made[trial.id] = blake3(weights).hexdigest()
        trained = {line.unit.lease for line in lines if isinstance(line, Dispatch) and line.unit.kind == "train"}
        units = [
            part.seconds for line in lines if isinstance(line, Done) and line.lease in trained for part in line.parts
        ]
        return end - up, up - began, statistics.median(units), made


def bare_import() -> float:
    began = time.perf_counter()
    jobs = [subprocess.Popen([sys.executable, "-c", "import torch"]) for _ in range(WORKERS)]
    for job in jobs:
        job.wait()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="short units only")
    parser.add_argument("--plain", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.plain:
        plain(Path(asked.plain[0]), int(asked.plain[1]))
        return
    figures = []
    startup = []
    for size in ("short",) if asked.quick else ("short", "long"):
        x, y = make(int(SIZES[size] * PARTITIONS / 0.8))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            data = hy.Dataset.numpy(x, y, validation=0.2, partitions=PARTITIONS)
            data.prepare().save(folder / "manifest.json")
            ratios: dict[Any, list[float]] = {"auto": [], "off": []}
            for repeat in range(asked.repeats):
                limit, reference = run_plain(folder)
                for group, found in ratios.items():
                    if size == "long" and group == "off":
                        continue
                    seconds, up, unit, made = run_hopyard(data, folder, group)
                    assert made == reference, "the weights differ: not the same work"
                    found.append(seconds / limit)
                    startup.append(up / bare_import())
                    print(
                        f"{size} units ({unit * 1e3:.0f} ms), grouping {group}, repeat {repeat}: plain {limit:.2f} s, "
                        f"Hopyard {seconds:.2f} s, ratio {seconds / limit:.3f}; bitwise equal; start-up {up:.2f} s, "
                        f"{startup[-1]:.2f} × bare imports",
                        flush=True,
                    )
            figures += [(size, group, statistics.median(found)) for group, found in ratios.items() if found]
    print(f"start-up ÷ bare `import torch`: {statistics.median(startup):.2f} (at most 1.5)")
    for size, group, ratio in figures:
        print(f"{size} units, grouping {group}: {ratio:.3f} (at most {1.05 if size == 'long' else 1.3})")


if __name__ == "__main__":
    main()
