"""Kills members of a gang at random moments, and compares the bits with those of a run to which nothing happened.

    python benchmarks/gang_kills.py [--kills 20] [--workers 3] [--seed 0] [--gpus 0,1,2]

Each kill waits until the gang that was formed after the last one has finished a unit, and then for a random part of
half a second, so that it comes in the middle of whatever is done: a step, an exchange, the State's way into memory, a
validation. Prints, for each, which rank was killed, when the driver knew it, and how long the next gang took from its
formation to its first answer. Ends with 1 where a digest differs, and hangs nowhere: a run that takes longer than ten
minutes is ended as such.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Done, Formed, Joined
from hopyard.store.journal import read
from hopyard.store.layout import Layout

LIMIT = 600.0
"""Seconds after which a run counts as hung."""


def recipe(config):
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    return hy.torch.Model(net, optimizer, torch.nn.functional.cross_entropy, batch_size=48)


def start(directory: Path, workers: int, gpus: list[int] | None, epochs: int) -> hy.Run:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24_000, 16)).astype("float32")
    data = hy.Dataset.numpy(x, (x.sum(1) > 0).astype("int64"), validation=0.1, partitions=8)
    engine, parallel = hy.Local(workers, devices=gpus), hy.LocalSGD(every=7, outer=hy.Nesterov(0.7, 0.9))
    return hy.fit(recipe, {}, data, epochs=epochs, engine=engine, parallel=parallel, directory=directory, wait=False)


def kill(directory: Path, run: hy.Run, kills: int, choose: random.Random) -> list[tuple[float, int, int]]:
    """(time, slot, rank) of each kill."""
    killed: list[tuple[float, int, int]] = []
    begin = time.monotonic()
    while not run.done and len(killed) < kills:
        if time.monotonic() - begin > LIMIT:
            raise SystemExit(f"the run hangs after {len(killed)} kills: see {directory}")
        time.sleep(0.05)
        lines = list(read(Layout(directory).journal, CODEC)) if Layout(directory).journal.exists() else []
        pids = {line.slot: line.pid for line in lines if isinstance(line, Joined)}
        formed = [(number, line) for number, line in enumerate(lines) if isinstance(line, Formed)]
        if not formed or (killed and formed[-1][1].at < killed[-1][0]):
            continue
        number, gang = formed[-1]
        if any(isinstance(line, Lost) for line in lines[number:]):
            continue
        if not any(isinstance(line, Done) for line in lines[number:]):
            continue
        time.sleep(choose.random() / 2)
        rank = choose.randrange(len(gang.members))
        slot = gang.members[rank]
        os.kill(pids[slot], signal.SIGKILL)
        killed.append((time.time(), slot, rank))
    return killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--gpus", type=lambda text: [int(gpu) for gpu in text.split(",")], help="one for each worker")
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        quiet = start(Path(folder) / "quiet", arguments.workers, arguments.gpus, arguments.epochs)
        quiet.wait(LIMIT)
        directory = Path(folder) / "killed"
        run = start(directory, arguments.workers, arguments.gpus, arguments.epochs)
        killed = kill(directory, run, arguments.kills, random.Random(arguments.seed))
        run.wait(LIMIT)
        lines = list(read(Layout(directory).journal, CODEC))
        noticed, again = [], []
        for at, slot, rank in killed:
            lost = next(line.at for line in lines if isinstance(line, Lost) and line.slot == slot)
            formed = next((line.at for line in lines if isinstance(line, Formed) and line.at >= lost), None)
            done = next((line.at for line in lines if isinstance(line, Done) and formed and line.at > formed), None)
            noticed.append(lost - at)
            if formed is not None and done is not None:
                again.append(done - formed)
                print(
                    f"rank {rank} killed: noticed after {noticed[-1]:.3f} s; formed to first answer {again[-1]:.3f} s"
                )
        same = run.trials[0].digest == quiet.trials[0].digest
        print(
            f"{len(killed)} kills of {arguments.workers}: noticed after {statistics.median(noticed):.3f} s (at most "
            f"{max(noticed):.3f}), formed to first answer {statistics.median(again):.3f} s (at most {max(again):.3f}); "
            f"digests {'equal' if same else 'DIFFER'}; run {run.status}"
        )
        return 0 if same and run.status == "completed" else 1


if __name__ == "__main__":
    sys.exit(main())
