"""The data room against its limits: bare pyarrow for the first pass, bare NumPy for later ones.

First pass: one Parquet file → partitions that trials can map, against the least that any such pass must do: decode
each row group with as many threads, stack the float32 matrix, `tofile`. Ours also checks for NaN, deals rows to
partitions and hashes them. Later pass: all partitions in shuffled batches, against `permutation` and `take(out=)` into
an aligned buffer, on the same rows in memory. Medians of interleaved repeats; ratio = our throughput / theirs.

    python benchmarks/data_vs_limit.py [--rows 2000000] [--repeats 9] [--batch 256]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.columns import aligned
from hopyard.data.dataset import Dataset
from hopyard.data.partitions.loader import PartitionLoader, sizes
from hopyard.data.partitions.mapped import open_partition

FEATURES = [f"f{i}" for i in range(20)]


def write(path: Path, rows: int) -> None:
    """20 number columns (7 doubles, 7 floats, 6 whole numbers) and a label, in row groups of 200,000."""
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for i, name in enumerate(FEATURES):
        made[name] = rng.integers(0, 1000, rows) if i >= 14 else rng.normal(size=rows)
        if i < 14 and i % 2:
            made[name] = made[name].astype(np.float32)
    pq.write_table(pa.table({**made, "y": rng.integers(0, 2, rows)}), path, row_group_size=200_000)


def bare_first(path: Path, out: Path) -> None:
    """Row group by row group: whole tables would need memory for all rows, and are slower."""
    file = pq.ParquetFile(path)
    with (out / "x.bin").open("wb") as x, (out / "y.bin").open("wb") as y:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=[*FEATURES, "y"], use_threads=True)
            matrix = np.empty((table.num_rows, len(FEATURES)), np.float32)
            for i, name in enumerate(FEATURES):
                matrix[:, i] = table[name].to_numpy()
            matrix.tofile(x)
            table["y"].to_numpy().tofile(y)


def bare_later(parts: list[tuple[Any, Any]], batch: int) -> None:
    rng = np.random.default_rng(1)
    for x, y in parts:
        order = rng.permutation(len(x))
        xs, ys = aligned((batch + 1, *x.shape[1:]), x.dtype), aligned((batch + 1,), y.dtype)
        start = 0
        for rows in sizes(len(x), batch):
            index = order[start : start + rows]
            np.take(x, index, axis=0, out=xs[:rows], mode="clip")
            np.take(y, index, axis=0, out=ys[:rows], mode="clip")
            start += rows


def later(manifest: Any, batch: int, epoch: int) -> None:
    for number in range(len(manifest.train)):
        columns = open_partition(manifest, "train", number)
        for _ in PartitionLoader(columns, batch, shuffle=epoch * 100 + number):
            pass


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batch", type=int, default=256)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hopyard-bench-"))
    try:
        write(folder / "rows.parquet", given.rows)
        cache = folder / "cache"
        data = Dataset.parquet(folder / "rows.parquet", features=FEATURES, label="y", partitions=8)
        split = Dataset.parquet(folder / "rows.parquet", features=FEATURES, label="y", partitions=8, validation=0.2)
        times: dict[str, list[float]] = {}

        def measure(name: str, function: Callable[[], object]) -> None:
            times.setdefault(name, []).append(seconds(function))

        for repeat in range(given.repeats + 1):
            measure("first pass, bare pyarrow", lambda: bare_first(folder / "rows.parquet", folder))
            measure("first pass, hopyard", lambda: data.prepare(cache))
            shutil.rmtree(cache)
            measure("first pass, hopyard, validation=0.2", lambda: split.prepare(cache))
            shutil.rmtree(cache)
            if not repeat:
                times.clear()  # warm caches
        manifest = data.prepare(cache)
        parts = []
        for number in range(8):
            columns = open_partition(manifest, "train", number)
            parts.append((np.array(columns.inputs), np.array(columns.targets)))
        for repeat in range(given.repeats + 1):
            measure("later pass, bare NumPy", lambda: bare_later(parts, given.batch))
            measure("later pass, hopyard", lambda: later(manifest, given.batch, repeat))  # noqa: B023 - called at once
            if not repeat:
                [times.pop(name) for name in list(times) if name.startswith("later")]
        found = {name: statistics.median(values) for name, values in times.items()}
        print(f"{given.rows:,} rows, 20 features and a label; batches of {given.batch}; {pa.cpu_count()} threads")
        for name, value in found.items():
            print(f"{name:40s} {value:7.3f} s  {given.rows / value / 1e6:7.2f} M rows/s")

        def ratio(theirs: str, ours: str) -> str:
            return f"{ours:40s} {found[theirs] / found[ours]:7.2f} of {theirs}"

        print(ratio("first pass, bare pyarrow", "first pass, hopyard, validation=0.2"))
        print(ratio("first pass, bare pyarrow", "first pass, hopyard"), "(target 0.8)")
        print(ratio("later pass, bare NumPy", "later pass, hopyard"), "(target 0.9)")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
