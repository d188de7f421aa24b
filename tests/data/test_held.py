"""Blocks of rows that this process holds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from hopyard.data.held import ROWS, blocks_of
from hopyard.errors import DataError


def test_dicts_are_columns_of_one_type_in_all_blocks() -> None:
    blocks = list(blocks_of([{"a": n if n else 0.5, "b": str(n)} for n in range(ROWS + 10)]))
    assert [block.num_rows for block in blocks] == [ROWS, 10]
    assert {str(block.schema.field("a").type) for block in blocks} == {"double"}


def test_little_data_is_enough_for_each_worker() -> None:
    assert [block.num_rows for block in blocks_of([{"a": 1}, {"a": 2}, {"a": 3}], 3)] == [1, 1, 1]
    assert list(blocks_of([], 3)) == []


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"a": 1}, {"b": 2}], "row 1 and row 0 differ in their keys: 'a', 'b'"),
        ([{"a": 1}, {}], "row 1 and row 0 differ in their keys: 'a'"),
        ([{}], "row 0 is an empty dict"),
        ([{"a": 1}, {"a": "x"}], "column 'a': its values have no common type"),
        ([{"a": {"b": [1, {"c": 2}]}}], "column 'a': its values have no common type"),
    ],
)
def test_dicts_that_are_no_table(rows: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        list(blocks_of(rows))


def test_other_rows_stay_as_they_are() -> None:
    assert list(blocks_of([1, {"a": 1}, "x"])) == [[1, {"a": 1}, "x"]]
    table = pa.table({"a": [1, 2, 3]})
    assert [block.num_rows for block in blocks_of(table, 2)] == [2, 1]
