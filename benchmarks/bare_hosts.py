"""A selection on two hosts by ssh, which network namespaces play, beside `Local(2)`: the same work, so the same bits.

    python benchmarks/bare_hosts.py [--repeats 3] [--homes]   # some minutes; needs root, and an sshd or its package

With `--homes`: wall time of the same selection over 32 partitions with one home each (`hy.Hopper(copies=1)`) ÷ that
with `copies=None`, in turns.

Up: from the call of `select` until the agents of both hosts are ready, less two simultaneous logins that import torch.
Efficiency: wall time from then on to the result ÷ that of `Local(2)`, on the long units of `efficiency.py`.
Rows and States go over the network: the hosts share no file and no memory with this process or with each other.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import hopyard as hy  # noqa: E402
from efficiency import PARTITIONS, SIZES, configs, make, recipe  # noqa: E402
from hopyard.core.runs.codec import CODEC  # noqa: E402
from hopyard.core.runs.events import Finished, Joined  # noqa: E402
from hopyard.store.journal import read  # noqa: E402
from hopyard.store.layout import Layout  # noqa: E402
from hosts import Hosts  # noqa: E402

MANY = 32
"""Partitions, where each has a home."""


def logins(hosts: Hosts, code: str) -> float:
    """Seconds of logins to all hosts at once that run this code."""
    began = time.time()
    command = shlex.join([sys.executable, "-P", "-c", code])
    processes = [subprocess.Popen([*hosts.ssh.split(), name, command]) for name in hosts.names]
    for process in processes:
        assert not process.wait()
    return time.time() - began


def selected(
    engine: Any, data: hy.Dataset, directory: Path, trials: int = 16, epochs: int = 2, **more: Any
) -> tuple[float, float, list[str]]:
    """(seconds until all workers are ready, seconds from then to the result, digests)"""
    began = time.time()
    run = hy.select(
        recipe,
        None,
        data,
        search=hy.Configs(configs()[:trials]),
        epochs=epochs,
        metric="val_loss",
        mode="min",
        engine=engine,
        directory=directory,
        **more,
    )
    lines = list(read(Layout(directory).journal, CODEC))
    joined = [line.at for line in lines if isinstance(line, Joined)]
    (finished,) = (line.at for line in lines if isinstance(line, Finished))
    assert len(joined) == 2
    return max(joined) - began, finished - max(joined), [trial.digest for trial in run.trials]


def homes(folder: Path, repeats: int) -> None:
    """Compare one home for each partition with rows that go everywhere."""
    data = hy.Dataset.numpy(*make(int(SIZES["long"] * MANY / 0.8)), validation=0.2, partitions=MANY)
    table = data.prepare()
    hosts = Hosts(folder)
    ratios: list[float] = []
    try:
        engine = hy.Hosts([f"{name}:1" for name in hosts.names], ssh=hosts.ssh)
        for number in range(-1, repeats):  # the first time, rows come to the hosts
            seconds: dict[int | None, float] = {}
            digests = []
            for copies in (1, None) if number % 2 else (None, 1):
                how = {"trials": 6, "epochs": 1, "parallel": hy.Hopper(copies=copies)}
                directory = folder / f"homes{number}{copies}"
                _, seconds[copies], found = selected(engine, data, directory, **how)
                hosts_of = hy.load(directory).summary()["hosts"].values()
                moved = sum(host["fetched_bytes"] for host in hosts_of) / table.bytes
                print(f"copies={copies}: {seconds[copies]:.2f} s, rows moved {moved:.2f} times the table", flush=True)
                digests.append(found)
            assert digests[0] == digests[1]
            ratios += [seconds[1] / seconds[None]] if number >= 0 else []
    finally:
        hosts.close()
    print(f"one home each / rows everywhere: {statistics.median(ratios):.3f} (at most 1.05)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--homes", action="store_true")
    options = parser.parse_args()
    repeats = options.repeats
    folder = Path(tempfile.mkdtemp())
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    if options.homes:
        homes(folder, repeats)
        return
    data = hy.Dataset.numpy(*make(int(SIZES["long"] * PARTITIONS / 0.8)), validation=0.2, partitions=PARTITIONS)
    data.prepare()
    hosts = Hosts(folder)
    ups, limits, theirs, ours = [], [], [], []
    try:
        logins(hosts, "import torch, torch._dynamo")  # reads torch's files
        for number in range(repeats):
            bare = logins(hosts, "pass")
            limit = logins(hosts, "import torch, torch._dynamo")
            engine = hy.Hosts([f"{name}:1" for name in hosts.names], ssh=hosts.ssh)
            up, seconds, digests = selected(engine, data, folder / f"hosts{number}")
            _, local, others = selected(hy.Local(2, devices=None), data, folder / f"local{number}")
            assert digests == others
            assert hosts.nothing_left()
            print(
                f"logins {bare:.2f} s, with import torch {limit:.2f} s | up {up:.2f} s | hosts {seconds:.2f} s | "
                f"Local(2) {local:.2f} s",
                flush=True,
            )
            ups.append(up), limits.append(limit), ours.append(seconds), theirs.append(local)
    finally:
        hosts.close()
    print(f"up - logins that import torch: {statistics.median(ups) - statistics.median(limits):+.2f} s (at most +1.0)")
    print(f"hosts / Local(2): {statistics.median(ours) / statistics.median(theirs):.3f} (at most 1.03)")


if __name__ == "__main__":
    main()
