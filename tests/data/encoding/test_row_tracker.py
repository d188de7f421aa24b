"""Answers line up with rows, whatever a transform does to the batch that it is given."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hopyard.data.dataset import Dataset
from hopyard.data.encoding.row_tracker import NAME, RowTracker
from hopyard.data.manifest import Manifest
from hopyard.data.new_rows import apply
from hopyard.errors import DataError

ROWS = 40
A = np.where(np.arange(ROWS) % 4 == 1, -1.0, 1.0) * (np.arange(ROWS) + 1)
TABLE = pa.table({"a": A, "b": np.arange(ROWS) % 7, "s": ["x", "y"] * (ROWS // 2), "y": np.arange(ROWS) % 2})
LEFT = np.flatnonzero(A > 0)

Transform = Callable[[Any], Any]


def frame(change: Callable[[pd.DataFrame], pd.DataFrame], **options: Any) -> Transform:
    return lambda batch: pa.RecordBatch.from_pandas(change(batch.to_pandas()), **options)


def positive(batch: Any) -> Any:
    return batch.filter(pc.greater(batch["a"], 0))


def each(change: Callable[[Any], Any], wanted: Callable[[Any], bool]) -> Transform:
    """Changes all columns of some type, and filters."""

    def transform(batch: Any) -> Any:
        batch = positive(batch)
        columns = [change(column) if wanted(column.type) else column for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    return transform


def number(kind: Any) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def finite_everywhere(batch: Any) -> Any:
    """As the message about bad values says, of all columns that are numbers."""
    batch = positive(batch.drop_columns(["s"]))
    good = np.ones(batch.num_rows, bool)
    for column in batch.columns:
        good &= pc.is_finite(column).to_numpy(zero_copy_only=False)
    return batch.filter(pa.array(good))


FOLLOWED: dict[str, Transform] = {
    "filter": positive,
    "filter and append": lambda batch: positive(batch.append_column("c", pc.multiply(batch["a"], 2))),
    "sort": lambda batch: positive(batch).sort_by([("b", "descending")]),
    "pandas": frame(lambda rows: rows[rows.a > 0]),
    "pandas without index": frame(lambda rows: rows[rows.a > 0], preserve_index=False),
    "pandas, new names and order": frame(lambda rows: rows[rows.a > 0][[c for c in reversed(rows.columns)]]),
    "pandas, null to 0": frame(lambda rows: rows.where(rows.a > 0).dropna(how="all").fillna(0)),
    "pandas, numbers scaled": frame(
        lambda rows: rows[rows.a > 0].apply(lambda c: c / 2 if pd.api.types.is_numeric_dtype(c) else c)
    ),
    "pandas, outliers of all numbers": frame(
        lambda rows: rows[(rows.a > 0) & (rows.select_dtypes("number") < 1e6).all(axis=1)]
    ),
    "pandas, mean of all numbers": frame(
        lambda rows: rows[rows.a > 0].assign(b=lambda left: left.select_dtypes("number").mean(axis=1))
    ),
    "all numbers times 2": each(lambda column: pc.multiply(column, 2), number),
    "all integers plus 1": each(lambda column: pc.add(column, 1), pa.types.is_integer),
    "all numbers to float32": each(lambda column: column.cast(pa.float32()), number),
    "text lowered": each(pc.utf8_lower, pa.types.is_string),
    "times to 0": each(lambda column: pc.multiply(column.cast(pa.int64()), 0), pa.types.is_timestamp),
    "finite everywhere": finite_everywhere,
    "many record batches become one": lambda batch: positive(pa.Table.from_batches([batch]).to_batches()[0]),
}
"""What keeps the columns that it is given, or fails for one of a type that it does not know."""

TRUSTED: dict[str, Transform] = {
    "select": lambda batch: batch.select(["a", "b", "y"]),
    "another batch": lambda batch: pa.record_batch({"a": batch["a"], "b": batch["b"], "y": batch["y"]}),
    "new names": lambda batch: batch.rename_columns(["a", "b", "t", "y"]),
    "other schema": lambda batch: pa.RecordBatch.from_arrays(batch.columns, schema=TABLE.schema),
    "all to 0 but those read": lambda batch: pa.RecordBatch.from_arrays(
        [batch[name] if name in "aby" else pa.array(np.zeros(batch.num_rows)) for name in batch.schema.names],
        names=batch.schema.names,
    ),
    "sums over all columns": lambda batch: pa.record_batch(
        {"a": batch["a"], "b": [len(batch.columns)] * batch.num_rows, "y": batch["y"]}
    ),
}  # fmt: skip
"""What loses the numbers, or gives the model something else where they are, but no other rows."""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    data = Dataset.arrow(TABLE, features=["a", "b"], label="y", partitions=1)
    return data.prepare(tmp_path_factory.mktemp("rows") / "cache")


def kinds_of_data() -> dict[str, Any]:
    return {
        "table": TABLE,
        "several batches": TABLE.to_reader(max_chunksize=7),
        "empty batches": pa.Table.from_batches(
            [b for part in TABLE.to_batches(max_chunksize=9) for b in (part.slice(0, 0), part)]
        ),
        "one batch": TABLE.to_batches()[0],
        "pandas": TABLE.to_pandas(),
        "a frame with an index": TABLE.to_pandas().set_index(np.arange(ROWS)[::-1] * 3),
    }


@pytest.mark.parametrize("data", kinds_of_data())
@pytest.mark.parametrize("name", FOLLOWED)
def test_each_row_is_found_again(name: str, data: str, manifest: Manifest, caplog: pytest.LogCaptureFixture) -> None:
    transform = FOLLOWED[name]
    made = apply(manifest, kinds_of_data()[data], transform, targets=False)
    alone = [transform(batch) for batch in TABLE.to_batches(max_chunksize=1)]
    assert made.source_rows == ROWS
    assert made.places is not None and sorted(made.places) == LEFT.tolist()
    wanted = np.array([[row["a"][0].as_py(), row["b"][0].as_py()] for row in alone if row.num_rows], np.float32)
    assert np.array_equal(made.inputs[np.argsort(made.places)], wanted)
    assert caplog.records == []


@pytest.mark.parametrize("name", TRUSTED)
def test_lost_row_numbers_fall_back_to_order_with_one_warning(
    name: str, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = RowTracker(TRUSTED[name])
    for _ in range(2):
        made = apply(manifest, TABLE.to_reader(max_chunksize=7), tracker, targets=False)
        assert (made.rows, made.source_rows, made.places) == (ROWS, ROWS, None)
        b = np.full(ROWS, 4) if name == "sums over all columns" else np.arange(ROWS) % 7
        assert made.inputs.tolist() == np.column_stack([A, b]).tolist()  # what the model would see without a number
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.WARNING, "hopyard.data.new_rows")
    assert "column that numbers" in record.getMessage()
    assert "stand in the order" in record.getMessage()


def test_no_error_shows_the_column_that_numbers_the_rows(manifest: Manifest) -> None:
    tracker = RowTracker(positive)
    apply(manifest, TABLE, tracker, targets=False)
    for data in (TABLE, TABLE.drop_columns(["b"])):
        batch, _ = tracker(data.to_batches()[0], 0, ["a", "b"], "the table")
        assert batch.schema.names == data.schema.names
    with pytest.raises(DataError, match="no column 'b'") as caught:
        apply(manifest, TABLE.drop_columns(["b"]), tracker, targets=False)
    assert "hopyard" not in str(caught.value)


MOVING: dict[str, Transform] = {
    "sort": lambda batch: batch.select(["a", "b", "y"]).sort_by("a"),
    "sort by what has ties": lambda batch: batch.select(["a", "b", "y"]).sort_by("b"),
    "pandas": frame(lambda rows: rows[["a", "b", "y"]].sort_values("a", ignore_index=True), preserve_index=False),
    "the last row first": lambda batch: batch.select(["a", "b", "y"]).take(
        pa.array(np.roll(np.arange(batch.num_rows), 1))
    ),
    "reverse": lambda batch: batch.select(["a", "b", "y"]).take(pa.array(np.arange(batch.num_rows)[::-1])),
    "halves": lambda batch: batch.select(["a", "b", "y"]).take(
        pa.array(np.roll(np.arange(batch.num_rows), batch.num_rows // 2))
    ),
}
"""What loses the numbers, and gives rows in another order."""


@pytest.mark.parametrize("name", MOVING)
def test_rows_that_are_seen_to_move_are_not_trusted(
    name: str, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = RowTracker(MOVING[name])
    for _ in range(2):
        with pytest.raises(DataError, match=r"another order.*column that numbers"):
            apply(manifest, TABLE, tracker, targets=False)
    assert caplog.records == []
    assert apply(manifest, TABLE, tracker, targets=True).rows == ROWS  # their order does not matter


@pytest.mark.parametrize(
    "transform",
    [
        frame(lambda rows: pd.DataFrame({"a": rows.a.cumsum(), "b": rows.b})),  # of rows before it too
        frame(lambda rows: pd.DataFrame({"a": rows.a - rows.a.sum() / 3, "b": rows.b})),  # rounded by the order
        frame(lambda rows: pd.DataFrame({"a": np.arange(len(rows)) * 1.0, "b": rows.b})),
        frame(lambda rows: pd.DataFrame({"a": rows.a * 0, "b": rows.b * 0})),  # all are equal
    ],
)
def test_rows_of_other_values_are_not_taken_for_rows_that_move(
    transform: Transform, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    assert apply(manifest, TABLE, transform, targets=False).places is None
    assert "stand in the order" in caplog.text


@pytest.mark.parametrize("name", TRUSTED)
def test_rows_may_not_be_lost_with_their_numbers(
    name: str, manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    def transform(batch: Any) -> Any:
        return TRUSTED[name](positive(batch))

    with pytest.raises(DataError, match=rf"made {len(LEFT)} rows of {ROWS}, "):
        apply(manifest, TABLE.to_reader(max_chunksize=7), transform, targets=False)
    assert apply(manifest, TABLE, transform, targets=True).rows == len(LEFT)  # which they are does not matter
    assert caplog.records == []


def test_rows_that_come_and_go_in_turn_are_not_taken_for_all(
    manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    def transform(batch: Any) -> Any:
        some = batch.select(["a", "b"])
        number = int(abs(some["a"][0].as_py())) // 4  # of the batch, 0 to 9
        if number in (0, 9):
            return some
        return some.slice(1) if number % 2 else pa.concat_batches([some, some.slice(0, 1)])

    with pytest.raises(DataError, match=f"made {ROWS} rows of {ROWS}, "):
        apply(manifest, TABLE.to_reader(max_chunksize=4), transform, targets=False)
    assert caplog.records == []


def test_a_transform_that_does_not_treat_rows_restarts_alone_is_not_followed(manifest: Manifest) -> None:
    unique = frame(lambda rows: rows.drop_duplicates(ignore_index=True))
    same = pa.concat_tables([TABLE.slice(0, 4), TABLE.slice(0, 4)]).combine_chunks()
    with pytest.raises(DataError, match="made 4 rows of 8, "):
        apply(manifest, same, unique, targets=False)


@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize("keep", [True, False])
def test_doubled_rows_are_refused(keep: bool, targets: bool, manifest: Manifest) -> None:
    def transform(batch: Any) -> Any:
        batch = batch if keep else batch.select(["a", "b", "y"])
        return pa.concat_batches([batch, batch.slice(2, 1)])

    which = "row 2 is there 2 times; " if keep else ""
    with pytest.raises(DataError, match=rf"made {ROWS + 1} rows of {ROWS}: {which}predict and evaluate"):
        apply(manifest, TABLE, transform, targets=targets)


def test_a_name_that_is_taken(manifest: Manifest) -> None:
    table = TABLE.append_column(NAME, pa.array(np.zeros(ROWS))).append_column(NAME + "_", pa.array(np.zeros(ROWS)))
    assert apply(manifest, table, positive, targets=False).places.tolist() == LEFT.tolist()  # type: ignore[union-attr]


def test_only_the_first_batch_goes_through_twice(manifest: Manifest) -> None:
    seen: list[tuple[int, bool]] = []

    def transform(batch: Any) -> Any:
        seen.append((batch.num_rows, NAME in batch.schema.names))
        return positive(batch)

    tracker = RowTracker(transform)
    for _ in range(2):
        apply(manifest, TABLE.to_reader(max_chunksize=20), tracker, targets=False)
    assert seen == [(20, False), (20, True), (20, True), (20, True), (20, True)]


def test_a_batch_of_which_nothing_is_left(manifest: Manifest) -> None:
    gone = apply(manifest, TABLE, lambda batch: batch.slice(0, 0), targets=False)
    assert (gone.rows, gone.source_rows, gone.inputs.shape, gone.targets) == (0, ROWS, (0, 2), None)
    assert gone.places is not None and gone.places.tolist() == []
    late = apply(manifest, TABLE.to_reader(max_chunksize=10), lambda b: b.filter(pc.greater(b["a"], 30)), targets=False)
    assert late.places is not None and late.places.tolist() == [n for n in range(ROWS) if A[n] > 30]
    with pytest.raises(DataError, match="data must have rows"):
        apply(manifest, TABLE.slice(0, 0), positive, targets=False)


def test_the_rows_of_a_dataset_are_those_of_its_source(manifest: Manifest) -> None:
    data = Dataset.arrow(TABLE, features=["a", "b"], label="y", transform=positive, partitions=1)
    made = apply(manifest, data, lambda batch: batch.slice(0, 1))  # that of the run is not for a Dataset
    assert (made.rows, made.source_rows) == (len(LEFT), ROWS)
    assert made.places is not None and made.places.tolist() == LEFT.tolist()
    assert np.array_equal(made.targets, LEFT % 2)


def test_a_bad_value_is_reported_before_lost_row_numbers(manifest: Manifest) -> None:
    table = TABLE.set_column(0, "a", pa.array(np.where(np.arange(ROWS) == 6, np.nan, A)))
    with pytest.raises(DataError, match=r"'a': 1 of its rows.*\n?.*row 4 .counted after the transform"):
        apply(manifest, table, lambda batch: batch.filter(pc.not_equal(batch["a"], -2)).slice(1), targets=False)
    with pytest.raises(DataError, match=r"transform .*ZeroDivisionError.* rows from 0"):
        apply(manifest, TABLE, lambda batch: 1 / 0, targets=False)


def test_a_label_that_is_not_read_may_be_anything(manifest: Manifest, caplog: pytest.LogCaptureFixture) -> None:
    table = TABLE.set_column(3, "y", pa.array(np.full(ROWS, np.nan)))
    assert apply(manifest, table, positive, targets=False).places.tolist() == LEFT.tolist()  # type: ignore[union-attr]
    assert caplog.records == []


def test_a_batch_with_nan_does_not_stop_later_ones_from_being_followed() -> None:
    tracker = RowTracker(positive)
    first = pa.RecordBatch.from_pydict({"a": [1.0, -1.0, float("nan")], "b": [float("nan"), 1.0, 2.0]})
    for start in (0, 3):
        made, rows = tracker(first, start, ["a", "b"], "t")
        assert made.num_rows == 1 and rows is not None and rows.tolist() == [start]


def test_a_dataset_without_a_transform_takes_that_of_the_run(manifest: Manifest) -> None:
    """Else rows of a Dataset and of a table would get other answers, without a word."""
    options: Any = {"features": ["a", "b"], "label": "y"}
    plain = apply(manifest, Dataset.arrow(TABLE, **options), positive, targets=False)
    assert plain.places is not None and plain.places.tolist() == LEFT.tolist()
    own = apply(manifest, Dataset.arrow(TABLE, transform=lambda batch: batch, **options), positive, targets=False)
    assert own.rows == ROWS
