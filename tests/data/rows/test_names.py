"""Names of rows: values count, not types, batches or orders; frozen for ever."""

from __future__ import annotations

import datetime
import itertools
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.options import columns
from hopyard.data.rows.hash import row_hashes
from hopyard.data.rows.names import Distinct, Names, added, name_rows, unsigned
from hopyard.errors import DataError
from hopyard.formats.arrow import to_arrow
from hopyard.formats.vectors import lists

TEXT = ["ab", "", "abcdefgh", "abcdefghi", None, "ä"]
DAY = datetime.datetime(2020, 1, 2, 3, 4, 5, 6)


def names(values: Any, kind: Any = None, column: str = "c") -> list[tuple[int, ...]]:
    array = values if isinstance(values, (pa.Array, pa.ExtensionArray)) else pa.array(values, kind)
    batch = pa.RecordBatch.from_arrays([array], names=[column])
    return [tuple(row) for row in row_hashes(batch, [column], "t").tolist()]


def test_names_are_frozen() -> None:
    """Another name is another split of everybody's data."""
    batch = pa.RecordBatch.from_pydict(
        {
            "n": [0, 1, -7],
            "x": [0.5, float("nan"), -0.0],
            "s": ["a", None, "longer than a word"],
            "l": [[1], [], [2, 3]],
        }
    )
    assert row_hashes(batch, ["n", "x", "s", "l"], "t").tolist() == FROZEN


FROZEN: Any = [
    [10450442435282546188, 9542343636281450276],
    [13423801188847321978, 3044516609897931573],
    [9994836506944688350, 5329661642847514438],
]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, 2, -3], pa.int8()), pa.array([1, 2, -3], pa.int64())),
        (pa.array([1, 2, -3], pa.int32()), pa.array([1.0, 2.0, -3.0], pa.float32())),
        (pa.array([0.5], pa.float32()), pa.array([0.5], pa.float64())),
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([float("nan")]), pa.array(np.array([0x7FF8000000000001], np.uint64).view(np.float64))),
        (pa.array([2**60], pa.int64()), pa.array([2.0**60])),
        (pa.array([2**63], pa.uint64()), pa.array([2.0**63])),
        (pa.array([True, False]), pa.array([1, 0])),
        (pa.array([Decimal("1.50")]), pa.array([1.5])),
        (pa.array(TEXT), pa.array(TEXT, pa.large_string())),
        (pa.array(TEXT), pa.array(TEXT, pa.string_view())),
        (pa.array(TEXT), pa.array(TEXT).dictionary_encode()),
        (pa.array(["x", "ab", "c"])[1:], pa.array(["ab", "c"])),
        (pa.array([b"ab"], pa.binary(2)), pa.array([b"ab"], pa.large_binary())),
        (pa.array([DAY], pa.timestamp("ns")), pa.array([DAY], pa.timestamp("us", "UTC"))),
        (pa.array([DAY.date()]), pa.array([DAY.replace(hour=0, minute=0, second=0, microsecond=0)])),
        (pa.array([[1.0, 2.0], [3.0, 4.0]]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))),
        (pa.array([[1.0], None, []]), pa.array([[1.0], None, []], pa.large_list(pa.float32()))),
        (pa.array([[1.0, 2.0], None]), pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2))),
        (pa.array(np.arange(24.0).reshape(4, 6).tolist())[1:3], pa.array([[*range(6, 12)], [*range(12, 18)]])),
    ],
)
def test_values_count_and_types_do_not(one: Any, other: Any) -> None:
    assert names(one) == names(other)


def test_tensors_are_lists_of_lists() -> None:
    tensor = np.arange(24.0).reshape(4, 2, 3)
    assert names(to_arrow(tensor, "x")) == names(tensor.tolist())
    assert names(to_arrow(tensor, "x")[1:3]) == names(tensor[1:3].tolist())


def test_vectors_dense_and_sparse_are_lists() -> None:
    kind = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    rows = [
        {"type": 1, "size": None, "indices": None, "values": [0.0, 5.0]},
        {"type": 0, "size": 2, "indices": [1], "values": [5.0]},
    ]
    (batch,) = lists(pa.RecordBatch.from_arrays([pa.array(rows, kind)], names=["c"]))
    assert names(batch.column(0)) == names([[0.0, 5.0]] * 2)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, None, 1]),
        pa.array(["", None, "\0", "\0\0", "a", "a\0"]),
        pa.array([[], None, [0.0], [0.0, 0.0], [None]]),
        pa.array([[[1], [2, 3]], [[1, 2], [3]], [[1, 2, 3]], [[], [1, 2, 3]]]),
        pa.array([2**60, 2**60 + 1, 2**60 + 2]),
        pa.array([5e-324, 0.0, 1e-300]),
    ],
)
def test_other_values_have_other_names(values: Any) -> None:
    assert len(set(names(values))) == len(values)


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns"), pa.time64("ns")])
def test_times_that_differ_by_nanoseconds_have_other_names(kind: Any) -> None:
    values = np.arange(5_000_000, 5_003_000)
    times = names(pa.array(values).cast(kind))
    assert len(set(times)) == len({first for first, _ in times}) == 3_000
    whole = pa.array(values[::1000] // 1000).cast(_microseconds(kind))
    assert times[::1000] == names(whole)
    assert names(pa.array([1, None, 5]).cast(kind))[1] == names(pa.array([None], pa.int64()))[0]


def _microseconds(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")


def test_columns_match_by_name_and_not_by_position() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1.0, 2.0], "b": [2.0, 1.0]})
    first, second = row_hashes(batch, ["a", "b"], "t").tolist()
    assert first != second
    assert row_hashes(batch.select(["b", "a"]), ["b", "a"], "t").tolist() == [first, second]


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 40))
def test_batches_do_not_matter(cuts: list[int], size: int) -> None:
    rng = random.Random(size)
    values = pa.array([None if rng.random() < 0.2 else "x" * rng.randrange(20) for _ in range(size)])
    ends = [0, *sorted(min(cut, size) for cut in cuts), size]
    parts = [names(values.slice(a, b - a)) for a, b in itertools.pairwise(ends)]
    assert [name for part in parts for name in part] == names(values)


def test_a_type_without_a_value_is_refused() -> None:
    with pytest.raises(DataError, match=r"'c' of t .* struct<a: int64>"):
        names(pa.array([{"a": 1}]))


def spec(key: Any = None) -> Any:
    return columns(features=["x"], label="y", weight=None, validation=None, encode={}, standardize=False, key=key)


def batch(rows: int, users: int = 10) -> Any:
    n = np.arange(rows)
    return pa.RecordBatch.from_pydict({"x": n * 0.5, "y": n % 2, "user": n % users})


def test_rows_of_one_key_stay_together() -> None:
    found = name_rows(batch(1000), spec("user"), "t")
    chosen = found.validates(3, 0.4)
    runs = np.full(1000, -1)
    for run, mine, _ in found.runs(3, chosen):
        runs[mine] = run
    users = np.arange(1000) % 10
    assert all(len(set(runs[users == user].tolist())) == 1 for user in range(10))
    assert 0 < chosen.sum() < 1000 and len(set(runs.tolist())) > 2
    assert np.array_equal(chosen, runs >= 3)


def test_a_draw_does_not_follow_from_the_label() -> None:
    """Bug: rows of equal features validated or trained by what their label was."""
    other = columns(
        features=["x"], label="y", weight="w", validation=None, encode={}, standardize=False, key=None, impute=None
    )
    first = batch(1000)
    changed = pa.RecordBatch.from_pydict({"x": first["x"], "y": np.ones(1000), "w": 1.5 + np.arange(1000)})
    one, two = name_rows(first, spec(), "t"), name_rows(changed, other, "t")
    assert np.array_equal(one.validates(3, 0.4), two.validates(3, 0.4))
    partitions = [{run: rows.tolist() for run, rows, _ in names.runs(8, None)} for names in (one, two)]
    assert partitions[0] == partitions[1]
    assert (one.words[:, 1] != two.words[:, 1]).all() and one.total() != two.total()


def test_partitions_and_validation_are_independent_draws() -> None:
    found = name_rows(batch(60_000), spec(), "t")
    counts = np.zeros(16)
    for run, mine, _ in found.runs(8, found.validates(1, 0.25)):
        counts[run] = len(mine)
    wanted = np.repeat([60_000 * 0.75 / 8, 60_000 * 0.25 / 8], 8)
    assert (np.square(counts - wanted) / wanted).sum() < 45  # χ² with 15 degrees of freedom: 1 in 10,000
    other = found.validates(2, 0.25)
    assert abs((found.validates(1, 0.25) & other).mean() - 0.0625) < 0.006


@pytest.mark.parametrize("key", [None, "user"])
def test_sums_tell_rows_and_no_order(key: Any) -> None:
    whole = name_rows(batch(500), spec(key), "t")
    shuffled = Names(whole.words[np.random.default_rng(0).permutation(500)])
    assert whole.total() == shuffled.total() != Names(whole.words[:-1]).total()
    chosen = whole.validates(0, 0.5)
    dealt = {run: (sorted(mine.tolist()), total) for run, mine, total in whole.runs(4, chosen)}
    assert added(*(total for _, total in dealt.values())) == whole.total()
    for mine, total in dealt.values():
        assert total == Names(whole.words[mine]).total()
    assert Names(whole.words[:0]).total() == 0


def test_a_sum_is_that_of_whole_numbers() -> None:
    words = name_rows(batch(50), spec(), "t").words
    assert Names(words).total() == sum((high << 64) + low for high, low in words.tolist()) % (1 << 128)


def test_distinct_names_are_counted() -> None:
    few, many = Distinct(), Distinct()
    for _ in range(3):
        few.take(name_rows(batch(1000), spec("user"), "t").words[:, 0])
    assert str(few) == "10"
    halves = [Distinct(), Distinct()]
    for half, start in zip(halves, (0, 40_000), strict=True):
        half.take(name_rows(batch(100_000).slice(start, 60_000), spec(), "t").words[:, 0])
        many.merge(half.packed())
    assert 60_000 < float(str(many).removeprefix("about ").replace(",", "")) < 140_000


def test_zeros_have_one_sign() -> None:
    frozen = np.array([-0.0, 1.0], np.float32)
    frozen.flags.writeable = False
    made = unsigned([np.array([-0.0, 2.0]), frozen, np.array([3])])
    assert not np.signbit(made[0]).any() and not np.signbit(made[1]).any() and made[1].dtype == np.float32
