"""RowBatches, parts and batches as Keras' loops take them: NumPy in, NumPy out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopyard.data.columns import Columns
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.errors import SpecError
from hopyard.frameworks.keras import rows as keras_rows
from hopyard.frameworks.keras.rows import BatchRange, Pace, RowBatches, SingleBatch, leaves, map_arrays, weigh
from hopyard.ports.training import PartitionBatches
from hopyard.spec import Batch

pytestmark = pytest.mark.tensorflow


def as_is(x: Any, y: Any) -> tuple[Any, Any]:
    return x, y


def columns(rows: int, weighted: bool = False) -> Columns:
    """The row's number in every column, so that one sees which rows came, and in which order."""
    number = np.arange(rows)
    inputs = {"a": np.repeat(number[:, None], 3, 1).astype(np.float32), "b": number.astype(np.int32)}
    return Columns(inputs, {"y": number}, number.astype(np.float32) if weighted else None, rows)


def taken(part: BatchRange) -> list[list[int]]:
    """Row numbers of each batch, by the rule in the docstring of Part."""
    starts = [0, *part.ends[:-1]]
    index = [part.order[start:end] for start, end in zip(starts, part.ends, strict=True)]
    for array in leaves(part.data):
        for rows in index:
            assert (array[rows].reshape(len(rows), -1)[:, 0] == part.data[0]["b"][rows]).all()
    return [part.data[0]["b"][rows].tolist() for rows in index]


def wanted(feed: PartitionBatches) -> list[list[int]]:
    """The same, as the feed itself gives them."""
    return [batch.inputs["b"].tolist() for batch in feed]


FEEDS = [(28, 8, None), (28, 8, 3), (25, 8, 3), (5, 8, None), (1, 8, 1), (16, 8, 2)]


@pytest.mark.parametrize(("count", "size", "shuffle"), FEEDS)
@pytest.mark.parametrize("part_bytes", [1 << 28, 400, 1], ids=["one", "some", "each"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_parts_and_batches_are_those_of_the_feed(
    monkeypatch: pytest.MonkeyPatch, count: int, size: int, shuffle: int | None, part_bytes: int, weighted: bool
) -> None:
    monkeypatch.setattr(keras_rows, "PART_BYTES", part_bytes)
    feed = PartitionLoader(columns(count, weighted), size, shuffle)
    rows = RowBatches(feed, as_is, None)
    parts = list(rows.parts())
    assert [numbers for part in parts for numbers in taken(part)] == wanted(feed)
    assert [numbers for part in rows.batch_by_batch() for numbers in taken(part)] == wanted(feed)
    assert [data[0]["b"].tolist() for data in rows.batches()] == wanted(feed)
    assert all(len(data) == (3 if weighted else 2) for data in rows.batches())
    if part_bytes == 1:
        assert len(parts) == len(feed.sizes)
    if part_bytes > 400:
        assert len(parts) == 1
        assert parts[0].data[0]["a"] is feed.columns.inputs["a"]  # nothing is copied


def test_calls_grow_until_they_take_about_ten_seconds() -> None:
    pace = Pace()
    seen = []
    for _ in range(8):
        seen.append(pace.batches)
        pace.record(pace.batches, 3.0 * (pace.batches == 1) + pace.batches * 0.01)  # the first one compiles
    assert seen == [1, 3, 24, 192, 1000, 1000, 1000, 1000]
    pace.record(5, 0.05)  # the end of a partition tells nothing new
    assert pace.batches == 1000
    pace.record(1000, 100.0)
    assert pace.batches == 100
    pace.record(1, 60.0)
    assert pace.batches == 1


def test_no_part_is_larger_than_allowed_but_for_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_rows, "PART_BYTES", 1000)
    feed = PartitionLoader(columns(500), 8, 1)
    parts = list(RowBatches(feed, as_is, None).parts())
    sizes = [sum(array.nbytes for array in leaves(part.data)) for part in parts]
    one_batch = 8 * (12 + 4 + 8)
    assert sum(sizes) == 500 * 24
    assert max(sizes) <= 1000 + one_batch


def test_the_form_of_the_data() -> None:
    x, y, weights = np.zeros((6, 2), np.float32), np.zeros(6), np.ones(6, np.float32)

    def form(*given: Any) -> list[Any]:
        return [None if part is None else part.shape for part in RowBatches(feed_of(*given), as_is, None).data]

    assert form(x, y, None) == [(6, 2), (6,)]
    assert form(x, None, None) == [(6, 2)]
    assert form(x, y, weights) == [(6, 2), (6,), (6,)]
    assert form(x, None, weights) == [(6, 2), None, (6,)]


def feed_of(x: Any, y: Any, weights: Any) -> Any:
    return PartitionLoader(Columns(x, y, weights, len(x)), 4)


def test_inputs_and_labels_come_arranged() -> None:
    feed = PartitionLoader(columns(6), 4)
    rows = RowBatches(feed, lambda x, y: ((x["b"], x["a"]), y["y"]), {2: 5.0})
    (b, a), y, weights = rows.data
    assert (b.shape, a.shape, y.shape) == ((6,), (6, 3), (6,))
    assert weights.tolist() == [1, 1, 5, 1, 1, 1]
    assert [data[0][0].tolist() for data in rows.batches()] == [[0, 1, 2, 3], [4, 5]]


def test_the_example_is_a_batch() -> None:
    rows = RowBatches(PartitionLoader(columns(9, True), 4, 1), as_is, None)
    x, y, weights = rows.example()
    assert {name: array.shape for name, array in x.items()} == {"a": (4, 3), "b": (4,)}
    assert y["y"].shape == weights.shape == (4,)
    assert RowBatches(PartitionLoader(columns(1), 4), as_is, None).example()[0]["b"].shape == (1,)


def test_a_batch_is_a_feed_of_one() -> None:
    x, y = np.arange(10, dtype=np.float32).reshape(5, 2), np.arange(5)
    one = SingleBatch(Batch(x, y, None, 5, seed=4))
    assert (one.rows, one.sizes, one.order, one.seed) == (5, [5], None, 4)
    assert [batch.rows for batch in one] == [5]
    (part,) = RowBatches(one, as_is, None).parts()
    assert part.data[0] is x
    assert part.order.tolist() == [0, 1, 2, 3, 4]
    assert part.ends.tolist() == [5]


# ------------------------------------------------------------------------------------------------ weights


Y = np.array([0, 2, 1, 2, 0])


@pytest.mark.parametrize(
    "labels", [Y, Y[:, None], np.eye(3, dtype=np.float32)[Y], Y.astype(np.float32), Y.astype(np.uint8)]
)
def test_classes_weigh(labels: Any) -> None:
    made = weigh(labels, None, {0: 0.5, 2: 3.0})
    assert made.dtype == np.float32
    assert made.tolist() == [0.5, 3.0, 1.0, 3.0, 0.5]
    twice = weigh(labels, np.array([2, 1, 4, 0, 1], np.float32), {0: 0.5, 2: 3.0})
    assert twice.tolist() == [1.0, 3.0, 4.0, 0.0, 0.5]
    assert twice.dtype == np.float32


def test_a_soft_label_is_of_the_nearest_class_as_in_fit() -> None:
    assert weigh(np.array([0.9, 0.1, 0.6], np.float32), None, {0: 0.5, 1: 3.0}).tolist() == [3.0, 0.5, 3.0]


def test_without_classes_the_weights_are_those_of_the_rows() -> None:
    weights = np.ones(5, np.float32)
    assert weigh(Y, weights, None) is weights
    assert weigh(Y, None, None) is None
    assert weigh(Y, None, {}).tolist() == [1.0] * 5


@pytest.mark.parametrize(
    ("labels", "given"), [(None, "none"), ({"a": Y, "b": Y}, "2"), ((Y, Y, Y), "3")], ids=["none", "dict", "tuple"]
)
def test_classes_need_one_label(labels: Any, given: str) -> None:
    with pytest.raises(SpecError, match=f"class_weight: .*one label, has {given}$"):
        weigh(labels, None, {0: 1.0})


# ------------------------------------------------------------------------------------------------ structures


def test_leaves_and_each_see_every_array() -> None:
    a, b, c = np.zeros(1), np.ones(2), np.full(3, 2.0)
    data = ({"a": a, "b": b}, None, (c,))
    assert [len(leaf) for leaf in leaves(data)] == [1, 2, 3]
    assert leaves(None) == []
    assert leaves(a)[0] is a
    assert map_arrays(len, data) == ({"a": 1, "b": 2}, None, (3,))
    assert map_arrays(len, None) is None
    assert map_arrays(len, a) == 1
