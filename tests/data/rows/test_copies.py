"""Copies of rows that are wholly equal are spread, however they lie in tasks."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from hopyard.data.options import columns
from hopyard.data.rows.copies import LIMIT, Copies, Table, first_copies
from hopyard.data.rows.names import Names, name_rows
from hopyard.formats.arrow import Array


def names(x: Array, y: Array, key: str | None = None) -> Names:
    spec = columns(features=["x"], label="y", weight=None, validation=None, encode={}, standardize=False, key=key)
    return name_rows(pa.RecordBatch.from_pydict({"x": x, "y": y}), spec, "t")


def tables(packed: bytes, tasks: int) -> list[Table]:
    known, *firsts = np.frombuffer(packed, "<u8").reshape(tasks + 1, -1)
    return [(known, first.copy()) for first in firsts]


def in_tasks(whole: Names, cuts: list[list[int]]) -> Array:
    """Words of all rows, sorted, after they are spread: one task for each list of cuts."""
    batches = [[Names(whole.words[a:b]) for a, b in itertools.pairwise(each)] for each in cuts]
    counting = [Copies() for _ in batches]
    for copies, task in zip(counting, batches, strict=True):
        assert all(copies.take(batch) is batch for batch in task)
    packed = first_copies([copies.packed() for copies in counting])
    assert packed is not None
    spreading = [Copies(table) for table in tables(packed, len(batches))]
    words = [copies.take(batch).words for copies, task in zip(spreading, batches, strict=True) for batch in task]
    assert first_copies([copies.packed() for copies in spreading]) == packed
    assert sum(copies.total for copies in spreading) % (1 << 128) == whole.total()
    return np.array(sorted(np.concatenate(words).tolist()), np.uint64)


def test_tasks_batches_and_orders_change_nothing() -> None:
    rng = np.random.default_rng(0)
    whole = names(rng.integers(0, 3, 600), rng.integers(0, 2, 600))
    shuffled = Names(whole.words[rng.permutation(600)])
    wanted = in_tasks(whole, [[0, 600]])
    assert np.array_equal(in_tasks(whole, [[0, 1, 200], [200, 200], [200, 450, 460, 600]]), wanted)
    assert np.array_equal(in_tasks(shuffled, [[0, 100], [100, 350, 600]]), wanted)
    assert len(np.unique(wanted, axis=0)) == 600


def test_the_first_copy_keeps_its_name() -> None:
    whole = names(np.array([1, 2, 2, 3]), np.array([0, 1, 1, 0]))
    spread = {tuple(row) for row in in_tasks(whole, [[0, 2], [2, 4]]).tolist()}
    assert spread > {tuple(row) for row in whole.words.tolist()} and len(spread) == 4


@pytest.mark.parametrize("rows", [[0, 1, 2], [*range(LIMIT), LIMIT, LIMIT]])
def test_rows_that_all_differ_and_too_many_of_them_stay(rows: list[int]) -> None:
    halves = [Copies(), Copies()]
    for half, part in zip(halves, np.array_split(np.array(rows), 2), strict=True):
        half.take(names(part, part))
    assert first_copies([half.packed() for half in halves]) is None
    many = Copies()
    many.take(names(np.arange(LIMIT + 1), np.arange(LIMIT + 1)))
    assert many.packed() is None and first_copies([many.packed(), halves[0].packed()]) is None


def test_rows_with_a_key_are_not_counted() -> None:
    copies, equal = Copies(), names(np.zeros(5), np.zeros(5), "x")
    assert copies.take(equal) is equal and copies.packed() is None
    assert first_copies([]) is None
