"""What the tests of the data room share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data.manifest import Manifest
from hopyard.data.partitions.mapped import open_partition


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def table() -> pa.Table:
    """300 rows of most kinds of columns; `n` is the row number."""
    rng = np.random.default_rng(7)
    n = np.arange(300)
    images = rng.integers(0, 256, (300, 4)).astype(np.uint8)
    return pa.table(
        {
            "n": n,
            "a": rng.normal(5, 3, 300),
            "b": rng.integers(0, 9, 300).astype(np.int32),
            "flag": n % 3 == 0,
            "carrier": np.array(["UA", "AA", "DL"])[n % 3],
            "image": pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), 4),
            "words": pa.array([[i, i + 1] for i in n.tolist()], pa.list_(pa.int64())),
            "late": (n % 4).astype(np.int16),
            "delay": rng.normal(0, 1, 300).astype(np.float32),
            "weight": rng.random(300),
            "held": n % 5 == 0,
        }
    )


@pytest.fixture
def files(tmp_path: Path, table: pa.Table) -> Path:
    """The table as three Parquet files of several row groups."""
    folder = tmp_path / "flights"
    folder.mkdir()
    for number in range(3):
        pq.write_table(table.slice(number * 100, 100), folder / f"part-{number}.parquet", row_group_size=37)
    return folder


def rows_of(manifest: Manifest, kind: Any = "train") -> list[Any]:
    """The columns of all partitions of one kind."""
    parts = manifest.train if kind == "train" else manifest.validate
    return [open_partition(manifest, kind, number) for number in range(len(parts))]


@pytest.fixture
def read() -> Any:
    return rows_of
