from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.columns import Columns, aligned
from hopyard.data.dataset import Dataset
from hopyard.data.partitions.loader import PartitionLoader, sizes
from hopyard.data.partitions.mapped import open_partition
from hopyard.errors import SpecError
from rows import is_aligned


def columns(rows: int) -> Columns:
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    return Columns({"x": x, "z": x.astype(np.uint8)[:, :1]}, np.arange(rows), np.ones(rows, np.float32), rows)


@given(st.integers(0, 300), st.integers(1, 50))
def test_sizes(rows: int, batch: int) -> None:
    cut = sizes(rows, batch)
    assert sum(cut) == rows
    assert all(size == batch for size in cut[:-1])
    assert not cut or cut[-1] <= batch + 1
    if batch > 1 and rows > 1:
        assert 1 not in cut


def test_a_last_batch_of_one_joins_the_one_before() -> None:
    assert sizes(9, 4) == [4, 5]
    assert sizes(1, 4) == [1]
    assert sizes(3, 1) == [1, 1, 1]


@given(st.integers(1, 200), st.integers(1, 70), st.none() | st.integers(0, 2**62))
def test_batches_are_the_rows_in_order(rows: int, batch: int, shuffle: int | None) -> None:
    data = columns(rows)
    feed = PartitionLoader(data, batch, shuffle, seed=5)
    for _ in range(2):  # iterating again gives the same
        got: list[Any] = []
        for part in feed:
            assert part.seed == 5
            for array in (*part.inputs.values(), part.targets, part.weights):
                assert is_aligned(array)
                assert len(array) == part.rows
            assert np.array_equal(part.inputs["x"][:, 0], part.targets * 3)
            got.append(part.targets.copy())
        assert [len(part) for part in got] == list(feed.sizes)
        order = np.arange(rows) if feed.order is None else feed.order
        assert np.array_equal(np.concatenate(got), order)


def test_the_order_depends_on_the_seed_only() -> None:
    assert not np.array_equal(PartitionLoader(columns(50), 8, 1).order, PartitionLoader(columns(50), 8, 2).order)
    assert np.array_equal(PartitionLoader(columns(50), 8, 1).order, PartitionLoader(columns(50), 16, 1).order)


def test_changing_a_batch_changes_no_data() -> None:
    data = columns(10)
    for shuffle in (None, 3):
        for batch in PartitionLoader(data, 4, shuffle):
            batch.inputs["x"][...] = -1
            batch.targets += 1
    assert np.array_equal(data.targets, np.arange(10))
    assert data.inputs["x"].min() == 0


def test_without_targets_and_weights() -> None:
    (batch,) = PartitionLoader(Columns(np.zeros((3, 2)), None, None, 3), 8, 0)
    assert batch.targets is None
    assert batch.weights is None
    assert list(PartitionLoader(Columns(np.zeros((0, 2)), None, None, 0), 8, 0)) == []


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True, "8", None])
def test_bad_batch_size(batch_size: Any) -> None:
    with pytest.raises(SpecError, match="batch_size"):
        PartitionLoader(columns(4), batch_size)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "bool"])
def test_mapped_columns_are_aligned(cache: Path, dtype: str) -> None:
    x = np.arange(70 * 7).reshape(70, 7).astype(dtype)
    manifest = Dataset.numpy(x, np.arange(70.0), weight=np.ones(70), partitions=3).prepare(cache)
    for number in range(3):
        data = open_partition(manifest, "train", number)
        for array in (data.inputs, data.targets, data.weights):
            assert is_aligned(array)
        assert data.inputs.dtype == dtype
        for batch in PartitionLoader(data, 5, 1):
            assert is_aligned(batch.inputs)
            assert is_aligned(batch.targets)


@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from(["uint8", "float32", "int64", "float64"]))
def test_aligned(shape: list[int], dtype: str) -> None:
    array = aligned(tuple(shape), dtype)
    assert array.shape == tuple(shape)
    assert array.dtype == dtype
    assert array.size == 0 or is_aligned(array)


def test_a_mapping_becomes_a_torch_tensor_without_a_warning(cache: Path) -> None:
    torch = pytest.importorskip("torch")
    manifest = Dataset.numpy(np.ones((8, 2)), np.arange(8), partitions=1).prepare(cache)
    data = open_partition(manifest, "train", 0)
    tensor = torch.from_numpy(data.inputs)
    tensor += 1  # private: the file stays
    assert np.load(Path(manifest.path) / "train-00000" / "inputs-0.npy").max() == 1


def test_taking_an_input_out_of_a_batch_changes_no_other(cache: Path) -> None:
    manifest = Dataset.numpy({"x": np.ones((8, 2)), "z": np.ones(8)}, np.ones(8), partitions=1).prepare(cache)
    for _ in range(2):
        data = open_partition(manifest, "train", 0)
        for batch in PartitionLoader(data, 2, 1):
            assert sorted(batch.inputs) == ["x", "z"]
            del batch.inputs["z"]
        del data.inputs["z"]
