from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.data.new_rows import apply, check_types
from hopyard.errors import DataError
from rows import is_aligned


@pytest.fixture
def options() -> dict[str, Any]:
    return {
        "features": {"m": ["a", "carrier", "flag", "b"], "image": "image", "code": "carrier"},
        "label": "late",
        "weight": "weight",
        "encode": {"carrier": "index", "late": "index"},
        "standardize": ["a", "b"],
        "partitions": 3,
    }


def test_the_same_bits_as_in_training(cache: Path, table: pa.Table, options: dict[str, Any], read: Any) -> None:
    manifest = Dataset.arrow(table, **options).prepare(cache)
    parts = read(manifest)
    manifest.save(cache / "copy.json")
    shutil.rmtree(manifest.path)
    manifest = Manifest.load(cache / "copy.json", check=False)
    given = [
        table,
        table.combine_chunks().to_batches()[0],
        table.to_reader(max_chunksize=7),
        Dataset.arrow(table, **(options | {"partitions": 1, "validation": "held"})),
    ]
    for data in given:
        made = apply(manifest, data)
        assert made.rows == 300
        for number, part in enumerate(parts):
            for name, array in made.inputs.items():
                assert is_aligned(array)
                assert array.dtype == part.inputs[name].dtype
                assert array[number::3].tobytes() == part.inputs[name].tobytes()
            assert np.array_equal(made.targets[number::3], part.targets)
            assert np.array_equal(made.weights[number::3], part.weights)


def test_one_hot_with_unknown_values_is_refused(cache: Path, table: pa.Table) -> None:
    data = Dataset.arrow(table, features=["a", "carrier"], label="late", encode={"carrier": "one-hot"})
    manifest = data.prepare(cache)
    frame = table.select(["a", "carrier"]).slice(0, 3).to_pandas()
    made = apply(manifest, frame)
    assert made.inputs[:, 1:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert made.targets is None
    frame.loc[2, "carrier"] = "ZZ"
    with pytest.raises(DataError, match=r"'carrier', row 2 of .*'ZZ' is not among the 3 values.*'AA', 'DL', 'UA'"):
        apply(manifest, frame)


def test_rows_that_cannot_be_encoded(cache: Path, table: pa.Table) -> None:
    options: dict[str, Any] = {"features": ["a", "words", "carrier"], "label": "late", "encode": {"carrier": "index"}}
    manifest = Dataset.arrow(table, **options).prepare(cache)
    whole = apply(manifest, table, targets=False).inputs
    columns = table.slice(0, 8).select(["a", "words", "carrier"]).to_pydict()
    columns["a"][1], columns["a"][2] = None, math.inf
    columns["words"][4] = None
    columns["carrier"][5], columns["carrier"][6] = "ZZ", None
    holed = pa.table(columns, table.select(["a", "words", "carrier"]).schema)
    with pytest.raises(DataError, match=r":\n  column 'a': 2 of") as caught:
        apply(manifest, holed.take([0, 1, 2, 4]), targets=False)
    assert "column 'words': 1 of its rows" in str(caught.value)
    assert "transform" not in str(caught.value) and "trained" not in str(caught.value)
    made = apply(manifest, holed, targets=False, drop_invalid=True)
    assert made.inputs.tobytes() == whole[[0, 3, 7]].tobytes()
    assert (made.rows, made.source_rows, made.places.tolist()) == (3, 8, [0, 3, 7])  # type: ignore[union-attr]
    made = apply(manifest, holed.slice(1, 2), targets=False, drop_invalid=True)
    assert (made.rows, made.source_rows, made.inputs.shape) == (0, 2, (0, 4))
    made = apply(manifest, table.slice(0, 8), targets=False, drop_invalid=True)
    assert made.places is None and made.inputs.tobytes() == whole[:8].tobytes()


def test_a_row_that_is_dropped_may_hold_what_raises_otherwise(cache: Path) -> None:
    rows = pa.table({"a": [0.5, None, 1.5, math.inf], "b": [1, 2**60, 3, 2**60]})
    manifest = Dataset.arrow(rows.take([0, 2]), features=["a", "b"], partitions=1).prepare(cache)
    for some in (rows, rows.slice(2)):
        made = apply(manifest, some, targets=False, drop_invalid=True)
        assert made.inputs[-1].tolist() == [1.5, 3] and (made.rows, made.source_rows) == (len(some) // 2, len(some))
    with pytest.raises(DataError, match=r"'b', row 0 .* is beyond 2\*\*53"):
        apply(manifest, pa.table({"a": [0.5], "b": [2**60]}), targets=False, drop_invalid=True)


def test_rows_that_a_transform_leaves_and_that_cannot_be_encoded(cache: Path, table: pa.Table) -> None:
    def clean(batch: Any) -> Any:
        return batch.filter(pc.greater(batch["a"], 0)).sort_by([("a", "descending")])

    def nameless(batch: Any) -> Any:
        return clean(batch).select(["a", "b"])

    manifest = Dataset.arrow(table, features=["a", "b"], partitions=1).prepare(cache)
    rows = pa.table({"a": [3.0, -1.0, 1.0, 2.0], "b": [0.5, 0.5, None, 0.5]})
    made = apply(manifest, rows, clean, targets=False, drop_invalid=True)
    assert made.inputs[:, 0].tolist() == [3, 2] and made.places.tolist() == [0, 3] and made.source_rows == 4  # type: ignore[union-attr]
    with pytest.raises(DataError, match="nobody can tell which"):
        apply(manifest, rows, nameless, targets=False, drop_invalid=True)


def test_types_are_checked_before_there_are_rows(cache: Path, table: pa.Table) -> None:
    features = ["a", "b", "words", "carrier"]
    manifest = Dataset.arrow(table, features=features, label="late", encode={"carrier": "index"}).prepare(cache)
    check_types(manifest, table.schema, "rows")
    fine = {"a": pa.int8(), "b": pa.decimal128(9, 2), "words": pa.list_(pa.int64()), "carrier": pa.string()}
    check_types(manifest, pa.schema(fine), "rows")
    check_types(manifest, pa.schema({**fine, "a": pa.null(), "b": pa.bool_(), "more": pa.date32()}), "rows")
    with pytest.raises(DataError) as caught:
        check_types(manifest, pa.schema({**fine, "a": pa.string(), "b": pa.struct({"x": pa.int8()})}), "rows")
    assert all(text in str(caught.value) for text in ("column 'a' of rows", "string", "column 'b' of rows", "struct"))
    with pytest.raises(DataError, match="rows has no column 'words'"):
        check_types(manifest, pa.schema({name: kind for name, kind in fine.items() if name != "words"}), "rows")


def test_arrays(cache: Path, table: pa.Table) -> None:
    manifest = Dataset.arrow(table, features=["a", "b", "words"], label="late", standardize=["a"]).prepare(cache)
    a, b, words = table["a"].to_numpy(), table["b"].to_numpy(), np.column_stack([np.arange(300), np.arange(1, 301)])
    whole = apply(manifest, table).inputs
    assert np.array_equal(apply(manifest, np.column_stack([a, b, words])).inputs, whole)
    assert np.array_equal(apply(manifest, {"a": a, "b": b, "words": words}).inputs, whole)
    rows = [{"a": one, "b": other, "words": list(pair)} for one, other, pair in zip(a, b, words, strict=True)]
    assert np.array_equal(apply(manifest, rows).inputs, whole)
    with pytest.raises(DataError, match=r"must have shape \(rows, 4\)"):
        apply(manifest, np.zeros((5, 3)))
    with pytest.raises(DataError, match="must not be empty"):
        apply(manifest, {})
    with pytest.raises(DataError, match="no column 'words'"):
        apply(manifest, {"a": a, "b": b})
    with pytest.raises(DataError, match="has no columns 'b', 'words'; there are: 'a'"):
        apply(manifest, {"a": a})

    x = np.random.default_rng(0).integers(0, 255, (20, 2, 3)).astype(np.uint8)
    manifest = Dataset.numpy(x, np.zeros(20), partitions=1).prepare(cache)
    assert np.array_equal(apply(manifest, x).inputs, x)
    assert np.array_equal(apply(manifest, x.astype(int)).inputs, x)
    with pytest.raises(DataError, match="uint8 cannot hold"):
        apply(manifest, x.astype(int) + 250)
    with pytest.raises(DataError, match="uint8 cannot hold"):
        apply(manifest, x + 0.5)
    with pytest.raises(DataError, match=r"got shape \(6,\)"):
        apply(manifest, x.reshape(20, 6))


def test_a_frame_of_numbers_is_the_array_that_it_was_in_training(cache: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).random((20, 3)), columns=["p", "q", "r"])
    manifest = Dataset.numpy(frame, frame["p"], partitions=1).prepare(cache)
    assert np.array_equal(apply(manifest, frame).inputs, frame.to_numpy(np.float32))
    with pytest.raises(DataError, match=r"'inputs'.* got shape \(2,\)"):
        apply(manifest, frame[["p", "q"]])
    with pytest.raises(DataError, match="no column 'inputs'"):
        apply(manifest, frame.assign(q="text"))
    named = Dataset.pandas(frame, features=["p", "q", "r"], partitions=1).prepare(cache)
    with pytest.raises(DataError, match="no column 'r'"):
        apply(named, frame.rename(columns={"r": "s"}))


def test_two_options_state_how_they_combine(cache: Path) -> None:
    x = np.zeros((20, 3))
    manifest = Dataset.numpy(x, x[:, 0], partitions=1).prepare(cache)
    with pytest.raises(DataError, match=r'tuple of two; .*{"inputs": x, "targets": y}'):
        apply(manifest, (x, x[:, 0]))


def test_a_column_of_a_frame_that_no_model_reads_may_be_of_any_type(cache: Path, table: pa.Table) -> None:
    manifest = Dataset.arrow(table, features=["a", "b"], label="late", encode={"late": "index"}).prepare(cache)
    frame = table.select(["a", "b"]).to_pandas()
    expected = apply(manifest, frame).inputs
    assert np.array_equal(apply(manifest, frame.assign(other=[{1: 2}] * len(frame))).inputs, expected)
    with pytest.raises(DataError, match="no column 'a'"):
        apply(manifest, pd.DataFrame({"other": [{1: 2}], "b": [1.0]}))


def test_a_column_of_a_dict_that_no_model_reads_may_be_of_any_type(cache: Path) -> None:
    """Such a column is of one type in its first rows and of another later, or has no value for long."""
    rows = 70_001
    x = np.random.default_rng(0).random((rows, 2)).astype(np.float32)
    manifest = Dataset.numpy({"x": x}, x[:, 0], partitions=2).prepare()
    unread = np.full(rows, None, object)
    unread[-1] = "seen"
    mixed = np.full(rows, 1, object)
    mixed[-1] = 0.5
    columns = apply(manifest, {"x": x, "unread": unread, "mixed": mixed})
    assert columns.rows == rows


def test_arrays_cannot_hold_categories(cache: Path, table: pa.Table, options: dict[str, Any]) -> None:
    manifest = Dataset.arrow(table, **options).prepare(cache)
    with pytest.raises(DataError, match="give a data frame"):
        apply(manifest, np.zeros((3, 4)))


def test_targets_only_where_they_are(cache: Path, table: pa.Table) -> None:
    manifest = Dataset.arrow(table, features="a", label=["late", "n"], weight="weight").prepare(cache)
    assert apply(manifest, table.drop_columns(["n"])).targets is None
    assert apply(manifest, table.drop_columns(["n"])).weights is not None
    assert apply(manifest, table).targets.shape == (300, 2)
    unlabelled = table.set_column(table.schema.get_field_index("n"), "n", pa.nulls(300, pa.int64()))
    made = apply(manifest, unlabelled, targets=False)
    assert made.targets is None
    assert made.weights is None
    with pytest.raises(DataError, match="'n': 300 of its rows"):
        apply(manifest, unlabelled)


def test_bad_rows(cache: Path, table: pa.Table) -> None:
    manifest = Dataset.arrow(table, features=["a"], label="late").prepare(cache)
    with pytest.raises(DataError, match=r"'a': 1 of its rows.*\n?.*row 1 of"):
        apply(manifest, {"a": np.array([0.0, np.nan])})
    with pytest.raises(DataError, match="data must have rows"):
        apply(manifest, table.slice(0, 0))
    with pytest.raises(DataError, match="string"):
        apply(manifest, {"a": np.array(["x"])})
    with pytest.raises(DataError, match=r"must be an array"):
        apply(manifest, [[1], [1, 2]])


def test_the_transform_is_applied(cache: Path, table: pa.Table) -> None:
    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("d", pc.multiply(batch["a"], 2))

    data = Dataset.arrow(table, features=["d"], label="late", transform=double)
    manifest = data.prepare(cache)
    wanted = (2 * table["a"].to_numpy()).astype(np.float32)
    assert np.array_equal(apply(manifest, table, double).inputs[:, 0], wanted)
    assert np.array_equal(apply(manifest, data).inputs[:, 0], wanted)
    with pytest.raises(DataError, match="no column 'd'"):
        apply(manifest, table)


def test_a_dataset_of_other_files(cache: Path, files: Path, table: pa.Table) -> None:
    data = Dataset.parquet(files, features=["a", "carrier"], label="late", encode={"carrier": "one-hot"})
    manifest = data.prepare(cache)
    few = Dataset.parquet(files / "part-1.parquet", features=["carrier", "a"], encode={"carrier": "index"})
    made = apply(manifest, few)
    assert made.rows == 100
    pq.write_table(table.slice(100, 100).drop_columns(["late"]), cache / "unlabelled.parquet")
    unlabelled = Dataset.parquet(cache / "unlabelled.parquet", features=["a", "carrier"], encode={"carrier": "index"})
    assert apply(manifest, unlabelled).targets is None
    assert np.array_equal(made.inputs, apply(manifest, table.slice(100, 100)).inputs)


@pytest.mark.parametrize("matrix", [False, True])
def test_masked_values_are_nulls(cache: Path, table: pa.Table, matrix: bool) -> None:
    if matrix:
        manifest = Dataset.arrow(table, features=["a", "delay"]).prepare(cache)
    else:
        manifest = Dataset.numpy(np.zeros((9, 2))).prepare(cache)
    rows = np.ma.masked_equal(np.array([[1.0, 2.0], [-1.0, 3.0]]), -1.0)
    name = "a" if matrix else "inputs"
    for data in (rows, {"a": rows[:, 0], "delay": rows[:, 1]} if matrix else {"inputs": rows}):
        with pytest.raises(DataError, match=rf"'{name}': 1 of .* null.* row 1 of"):
            apply(manifest, data)
    assert apply(manifest, rows[:1]).rows == 1
