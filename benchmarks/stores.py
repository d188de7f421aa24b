"""HDFS and S3: what Hopyard reads and stores there, as a ratio to bare hdfs-native and s3fs with the same bytes.

    python benchmarks/stores.py

Servers of the tests, on this machine (tests/stores). Medians of interleaved repeats.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from hopyard.filesystems import Directory, open_url
from hopyard.spec import Ref
from hopyard.store.states import FsspecStore
from stores.servers import client, hdfs, s3

MIB = 1 << 20
STATE = 64 * MIB
RANGE = 8 * MIB
REPEATS = 9


def compare(name: str, ours: Callable[[int], Any], bare: Callable[[int], Any], limit: str) -> None:
    """Print the ratio of the medians of both times."""
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for turn in range(REPEATS):
        for kind, act in (("ours", ours), ("bare", bare)) if turn % 2 else (("bare", bare), ("ours", ours)):
            begin = time.perf_counter()
            act(turn)
            times[kind].append(time.perf_counter() - begin)
    mine, plain = (statistics.median(each[1:]) for each in times.values())
    print(f"{name:32} {mine:.3f} s, bare {plain:.3f} s: {mine / plain:.2f} ({limit})", flush=True)


def measure(url: str) -> None:
    """Compare States and ranges of partitions at a URL."""
    kind = url.partition("://")[0]
    data = os.urandom(STATE)
    store, (system, root) = FsspecStore(f"{url}/states"), open_url(f"{url}/bare")
    system.makedirs(root, exist_ok=True)
    compare(
        f"{kind}: a State of 64 MB, put",
        lambda turn: store.put(Ref(0, turn, 1), memoryview(data)),
        lambda turn: system.pipe_file(f"{root}/{turn}", data),
        "at most 1.3",
    )
    compare(
        f"{kind}: a State of 64 MB, get",
        lambda turn: store.get(Ref(0, turn, 1)),
        lambda turn: system.cat_file(f"{root}/{turn}"),
        "at most 1.25",
    )
    directory = Directory(f"{url}/bare")
    spans = [(at, at + RANGE) for at in range(0, STATE, RANGE)]
    names = [f"{root}/1"] * len(spans)
    compare(
        f"{kind}: 8 ranges of 8 MB",
        lambda turn: directory.ranges([("1", *span) for span in spans]),
        lambda turn: system.cat_ranges(names, *map(list, zip(*spans, strict=True))),
        "at most 1.25",
    )


def main() -> None:
    """Start each server in turn."""
    for start in (s3, hdfs):
        with tempfile.TemporaryDirectory() as folder, start(Path(folder)) as server, client(server):
            measure(server.url)


if __name__ == "__main__":
    main()
