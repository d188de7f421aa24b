"""Rows of any length against a DataLoader of PyTorch with the same collation: `pad_sequence`, and a mask.

Both visit all rows in shuffled batches, as tensors: the DataLoader those of a list of tensors in memory, in its own
process; ours those of a partition in the cache. Medians of interleaved repeats; ratio = our rows a second / theirs.

    python benchmarks/ragged.py [--rows 20000] [--tokens 24] [--repeats 9] [--batch 32]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import hopyard as hy
from hopyard.data.manifest import Manifest
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.data.partitions.mapped import open_partition
from hopyard.frameworks.torch.tensors import tensors

CPU = torch.device("cpu")


def collate(rows: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One batch, as anybody writes it."""
    ids = pad_sequence([row for row, _ in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row, _ in rows])
    return ids, torch.arange(ids.shape[1]) < lengths[:, None], torch.tensor([label for _, label in rows])


def theirs(rows: list[tuple[torch.Tensor, int]], batch: int) -> int:
    """Tokens of one pass."""
    loader = DataLoader(rows, batch_size=batch, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]
    return sum(int(mask.sum()) for _, mask, _ in loader)


def ours(manifest: Manifest, batch: int, epoch: int) -> int:
    """The same of the cache."""
    found = 0
    for each in PartitionLoader(open_partition(manifest, "train", 0), batch, shuffle=epoch):
        inputs, _ = tensors(each.inputs, CPU), tensors(each.targets, CPU)
        found += int(inputs["ids_mask"].sum())
    return found


def timed(function: Callable[[], int]) -> tuple[float, int]:
    start = time.perf_counter()
    tokens = function()
    return time.perf_counter() - start, tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=24, help="of a row, on average")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    lengths = 1 + rng.geometric(1 / given.tokens, given.rows).clip(max=16 * given.tokens)
    rows = [rng.integers(1, 30_000, length) for length in lengths]
    labels = rng.integers(0, 2, given.rows)
    folder = tempfile.mkdtemp(prefix="hopyard-bench-")
    try:
        table = pa.table({"ids": rows, "y": labels})
        manifest = hy.Dataset.arrow(table, features="ids", label="y", ragged=["ids"], partitions=1).prepare(folder)
        items = [(torch.from_numpy(row), int(label)) for row, label in zip(rows, labels, strict=True)]
        times: dict[str, list[float]] = {"DataLoader": [], "hopyard": []}
        for repeat in range(given.repeats + 1):
            for name, function in (("DataLoader", lambda: theirs(items, given.batch)),
                                   ("hopyard", lambda: ours(manifest, given.batch, repeat))):  # fmt: skip # noqa: B023
                seconds, tokens = timed(function)
                assert tokens == lengths.sum(), (name, tokens)
                if repeat:  # the first warms the caches
                    times[name].append(seconds)
        found: dict[str, Any] = {name: statistics.median(each) for name, each in times.items()}
        print(f"{given.rows:,} rows of {lengths.mean():.0f} tokens on average; batches of {given.batch}; one thread")
        for name, seconds in found.items():
            print(f"{name:12s} {given.rows / seconds:12,.0f} rows/s")
        print(f"ratio {found['DataLoader'] / found['hopyard']:.2f} (target 0.9)")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
