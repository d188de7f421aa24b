"""Hop of a 100 MB State between two workers of one host, against `torch.save` + `torch.load` of the same.

Measured is what training waits for: from the last optimizer step in one process to the first possible step in the
other. Hopyard: state → lay into shared memory → a word through a pipe → take → copy into the built model. torch:
`torch.save` of model and optimizer `state_dict` into a file of /dev/shm → the path through the same pipe →
`torch.load` → `load_state_dict`. Both go to and fro between the same two processes with the same models, in turns.

    python benchmarks/hop.py [--megabytes 100] [--rounds 21]

Goal: ratio ≤ 1/3, in one run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from hopyard.frameworks.torch.model import Model
from hopyard.frameworks.torch.runtime import install
from hopyard.frameworks.tree import capture, restore
from hopyard.spec import Ref
from hopyard.store.arena import Arena, memory_root, take
from hopyard.store.states import LocalStore
from hopyard.store.tree import decode, digest, plan
from hopyard.system.scratch import Folder, sweep

LAYERS = 8


def build(megabytes: int, seed: int) -> Model:
    """Module and Adam: three times the parameters."""
    torch.manual_seed(seed)
    width = int((megabytes * 1e6 / 3 / 4 / LAYERS) ** 0.5)
    net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(LAYERS)))
    model = Model(net, torch.optim.Adam(net.parameters(), lr=1e-3), torch.nn.functional.mse_loss)
    net(torch.randn(8, width)).square().mean().backward()
    model.optimizer.step()
    return model


class Peer:
    """One of the two workers: can hand over and take over in both ways."""

    def __init__(self, folder: Path, slot: int, megabytes: int) -> None:
        install(False, 1)
        self.folder, self.slot = folder, slot
        self.model = build(megabytes, slot)
        self.arena = Arena(folder, slot, 4 << 30)
        self.count = 0
        self.parts: dict[str, list[float]] = {}

    def give(self, way: str) -> tuple[str, Any]:
        self.count += 1
        if way == "torch":
            path = self.folder / f"{self.slot}.pt"
            both = {"model": self.model.module.state_dict(), "optimizer": self.model.optimizer.state_dict()}
            torch.save(both, path)
            return "torch", path
        ref = Ref(self.slot, self.count, 1)
        start = time.perf_counter()
        where = self.arena.lay(ref, plan(capture(self.model)))
        self.parts.setdefault("lay", []).append(time.perf_counter() - start)
        self.arena.settle(where)
        return "hop", (where, ref)

    def get(self, way: str, what: Any) -> None:
        if way == "torch":
            both = torch.load(what)
            self.model.module.load_state_dict(both["model"])
            self.model.optimizer.load_state_dict(both["optimizer"])
            return
        start = time.perf_counter()
        taken = take(self.folder, *what)
        assert taken is not None
        restore(self.model, decode(taken.data))
        assert taken.intact()
        self.parts.setdefault("take", []).append(time.perf_counter() - start)


def serve(folder: Path, megabytes: int, pipe: Connection) -> None:
    """The other worker: takes what comes and gives it back at once, until told to end."""
    peer = Peer(folder, 1, megabytes)
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        peer.get(*message)
        pipe.send(peer.give(message[0]))
    pipe.send({name: statistics.median(values) for name, values in peer.parts.items()})


def median_ms(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=21)
    told = parser.parse_args()
    root = memory_root(Path(tempfile.gettempdir()))
    sweep(root)
    folder = Folder(root, f"benchmark-{os.getpid()}")
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=serve, args=(folder.path, told.megabytes, other))
    process.start()
    try:
        peer = Peer(folder.path, 0, told.megabytes)
        assert pipe.recv() == "ready"
        hops: dict[str, list[float]] = {"hop": [], "torch": []}
        for n in range(told.rounds + 8):  # the first ones make files and mappings
            for way, times in hops.items():
                start = time.perf_counter()
                pipe.send(peer.give(way))
                peer.get(*pipe.recv())
                if n >= 8:
                    times.append((time.perf_counter() - start) / 2)  # to and fro are two hops
        parts(peer, told.rounds)
        hop, torch_ = (statistics.median(hops[way]) * 1e3 for way in ("hop", "torch"))
        pipe.send(None)
        print("in the other worker:", {name: f"{value * 1e3:.1f} ms" for name, value in pipe.recv().items()})
        print(f"hop {hop:.1f} ms (from {min(hops['hop']) * 1e3:.1f} to {max(hops['hop']) * 1e3:.1f})")
        print(f"torch.save + torch.load {torch_:.1f} ms", end=" ")
        print(f"(from {min(hops['torch']) * 1e3:.1f} to {max(hops['torch']) * 1e3:.1f})")
        print(f"ratio {hop / torch_:.3f} (goal: at most 0.333)")
    finally:
        process.join(10)
        folder.close()


def parts(peer: Peer, rounds: int) -> None:
    """What a hop is made of, and what follows it in the background."""
    layout = plan(capture(peer.model))
    print(f"State of {layout.total / 1e6:.1f} MB, {len(layout.leaves)} tensors")
    print(f"state and plan {median_ms(lambda: plan(capture(peer.model)), rounds):.2f} ms")
    for name in ("lay", "take"):
        print(f"{name} {statistics.median(peer.parts[name][8:]) * 1e3:.1f} ms")
    where = peer.arena.lay(Ref(9, 0, 1), layout)
    print(f"seal (BLAKE3) {median_ms(lambda: digest(peer.arena.view(where)), rounds):.1f} ms")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        store = LocalStore(Path(directory))

        def durable() -> None:
            store.put(Ref(9, 0, 1), peer.arena.view(where))

        times = []
        for _ in range(5):
            store.delete(Ref(9, 0, 1))
            times.append(median_ms(durable, 1))
        print(f"durable write {statistics.median(times):.1f} ms")


if __name__ == "__main__":
    main()
