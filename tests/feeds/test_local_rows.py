"""Blocks of rows that this process holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import hopyard as hy
from hopyard.errors import DataError
from hopyard.feeds.local_rows import ROWS, blocks_of
from hopyard.feeds.rows import unpacked
from hopyard.formats.arrow import to_numpy


def test_dicts_are_columns_of_one_type_in_all_blocks() -> None:
    blocks = list(blocks_of([{"a": n if n else 0.5, "b": str(n)} for n in range(ROWS + 10)]))
    assert [block.num_rows for block in blocks] == [ROWS, 10]
    assert {str(block.schema.field("a").type) for block in blocks} == {"double"}


def test_arrays_keep_their_shape() -> None:
    images = np.arange(24.0).reshape(2, 3, 4)
    (block,) = blocks_of([{"image": image, "label": n} for n, image in enumerate(images)])
    assert np.array_equal(to_numpy(block.column(0), "image", "here"), images)
    (block,) = blocks_of(hy.Dataset.numpy(images.astype(np.float32), np.arange(2), partitions=1))
    assert np.array_equal(to_numpy(block.column(0), "inputs", "here"), images)
    with pytest.raises(DataError, match=r"column 'image': .* same shape"):
        list(blocks_of([{"image": image} for image in (images[0], images[0].T)]))


@pytest.mark.parametrize("values", [np.array([[[1.0, -9.0]], [[2.0, 3.0]]]), np.array([[1.0, -9.0], [2.0, 3.0]])])
def test_masked_values_are_null(values: Any) -> None:
    with pytest.raises(DataError, match=r"column 'm': .*mask"):
        list(blocks_of([{"m": value} for value in np.ma.masked_equal(values, -9.0)]))


def test_an_input_keeps_its_name_and_its_rows() -> None:
    n = np.arange(3.0, dtype=np.float32)
    data = hy.Dataset.numpy({"weights": n, "a": n + 1}, {"a": n + 2}, weight=n + 3, partitions=1)
    (block,) = blocks_of(data)
    assert block.to_pydict() == {
        "weights": [0, 1, 2], "a": [1, 2, 3], "targets.a": [2, 3, 4], "weights.weights": [3, 4, 5]
    }  # fmt: skip


def test_nan_is_a_number_and_none_is_null() -> None:
    frame = pd.DataFrame({"a": [1.0, float("nan")], "b": ["x", None], "c": [np.ones((2, 2))] * 2})
    (block,) = blocks_of(frame)
    assert block.column(0).null_count == 0 and block.column(1).null_count == 1
    assert to_numpy(block.column(2), "c", "here").shape == (2, 2, 2)
    assert unpacked(block)[0][2].shape == (2, 2)


def test_little_data_is_enough_for_each_worker() -> None:
    assert [block.num_rows for block in blocks_of([{"a": 1}, {"a": 2}, {"a": 3}], 3)] == [1, 1, 1]
    assert len(list(blocks_of([1, 2, 3, 4, 5], 4))) == 5
    data = hy.Dataset.numpy(np.zeros((50, 3), np.float32), np.zeros(50), weight=np.ones(50), partitions=2)
    blocks = list(blocks_of(data, 4))
    assert len(blocks) >= 4 and sum(block.num_rows for block in blocks) == 50
    assert set(blocks[0].schema.names) == {"inputs", "targets", "weights"}
    assert list(blocks_of([], 3)) == []


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"a": 1}, {"b": 2}], "row 1 and row 0 differ in their keys: 'a', 'b'"),
        ([{"a": 1}, {}], "row 1 and row 0 differ in their keys: 'a'"),
        ([{}], "row 0 is an empty dict"),
        ([{"a": 1}, {"a": "x"}], "column 'a': .*common type"),
        ([{"a": {"b": [1, {"c": 2}]}}], "column 'a': .*common type"),
    ],
)
def test_dicts_that_are_no_table(rows: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        list(blocks_of(rows))


def test_a_dict_of_arrays_is_a_table() -> None:
    images = np.arange(24.0).reshape(2, 3, 4)
    (block,) = blocks_of({"image": images, "label": [1, 2]})
    assert np.array_equal(to_numpy(block.column(0), "image", "here"), images)
    assert block.column(1).to_pylist() == [1, 2]
    assert len(list(blocks_of({"a": np.arange(5)}, 3))) == 3
    with pytest.raises(DataError, match="'a' has 2, 'b' has 3"):
        list(blocks_of({"a": np.zeros(2), "b": np.zeros(3)}))


def test_other_rows_stay_as_they_are() -> None:
    assert list(blocks_of([1, {"a": 1}, "x"])) == [[1, {"a": 1}, "x"]]
    table = pa.table({"a": [1, 2, 3]})
    assert [block.num_rows for block in blocks_of(table, 2)] == [2, 1]
