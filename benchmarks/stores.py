"""HDFS and S3: what Hopyard reads and stores there, as a ratio to bare hdfs-native and s3fs with the same bytes.

    python benchmarks/stores.py

Servers of the tests, on this machine (tests/stores). Medians of interleaved repeats. A partition of a DataFrame is read
as a worker reads it: digests are compared, rows are ordered by their names, and columns are written to the cache.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import hopyard as hy
from hopyard.data.shared.fetch import fetch, load
from hopyard.data.shared.segments import infos, ranges
from hopyard.filesystems import open_url
from hopyard.spec import Ref
from hopyard.store.states import FsspecStore
from stores.servers import client, hdfs, s3

MIB = 1 << 20
STATE = 64 * MIB
REPEATS = 9
WIDTH = 256
ROWS = 2 * STATE // (4 * WIDTH)
"""Of both partitions of a DataFrame; a row has 1 kB."""


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
    """Compare States at a URL."""
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


def write_rows(folder: Path) -> str:
    """Write the rows of a DataFrame to two partitions on the local disk, and return their folder."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    row = f"transform(sequence(1, {WIDTH}), i -> cast(hash(id, i) / 2147483648 AS FLOAT)) AS x"
    df = spark.range(ROWS).selectExpr("id AS n", "id % 2 AS y", row).repartition(4)
    data = hy.Dataset.spark(df, features=["x"], label="y", key="n", path=folder, partitions=2)
    data.prepare()
    spark.stop()
    return str(data.url)


def measure_rows(rows: str, url: str) -> None:
    """Compare reading a partition of a DataFrame at a URL."""
    system, root = open_url(f"{url}/rows")
    system.makedirs(root, exist_ok=True)
    for path in Path(rows).iterdir():
        system.put_file(str(path), f"{root}/{path.name}")
    manifest = hy.Dataset.open(f"{url}/rows").prepare()
    assert manifest.stored is not None
    index = load(manifest.stored)
    run, layout = index.run("train", 0), infos(manifest.fields, index.words)
    spans = [
        (f"{root}/{segment.name}", start, stop)
        for segment in index.segments
        for _, start, stop in ranges(layout, segment, run)
    ]
    size = sum(stop - start for _, start, stop in spans)

    def ours(turn: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            fetch(Path(folder), manifest, "train", 0)

    compare(
        f"{url.partition('://')[0]}: a partition of {size / MIB:.0f} MB",
        ours,
        lambda turn: system.cat_ranges(*map(list, zip(*spans, strict=True))),
        "at most 1.25",
    )


def main() -> None:
    """Start each server in turn."""
    with tempfile.TemporaryDirectory() as place:
        rows = write_rows(Path(place))
        for start in (s3, hdfs):
            (folder := Path(place, start.__name__)).mkdir()
            with start(folder) as server, client(server):
                measure(server.url)
                measure_rows(rows, server.url)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
