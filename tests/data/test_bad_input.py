"""Every kind of data that cannot be used is refused, in words that name the column, the place, and what to do."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hopyard.data.dataset import Dataset
from hopyard.data.new_rows import apply
from hopyard.data.partitions.mapped import open_partition
from hopyard.errors import DataError, ResourceError, SpecError

ROWS = pa.table({"a": [1.0, 2.0, 3.0, 4.0], "b": ["x", "y", "x", "y"], "y": [0, 1, 0, 1], "t": [True] * 4})


def arrow(table: pa.Table = ROWS, **options: Any) -> Dataset:
    given: dict[str, Any] = {"features": ["a"], "label": "y", "partitions": 1} | options
    return Dataset.arrow(table, **given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": []}, "features"),
        ({"features": {}}, "no column"),
        ({"features": 3.5}, r"features must be .*, got 3\.5"),
        ({"features": ["a", "a"]}, "'a' twice"),
        ({"features": {"x": [1.5]}}, r"features\['x'\]\[0\] = 1\.5"),
        ({"features": np.array([["a"], ["b"]])}, "features must be .*, got array"),
        ({"features": ["a", ""]}, r"features\[1\] = ''"),
        ({"features": ["a", ("b", "c")]}, r"features\[1\] = \('b', 'c'\)"),
        ({"features": ""}, "features must be .*, got ''"),
        ({"features": {1.5: "a"}}, r"key 1\.5"),
        ({"label": True}, "label must be .*, got True"),
        ({"weight": ["a"]}, "weight"),
        ({"validation": 1.0}, r"validation must be .*, got 1\.0"),
        ({"validation": -0.1}, "validation"),
        ({"validation": None}, "validation must be .*, got None"),
        ({"validation": True}, "validation"),
        ({"validation": float("nan")}, "validation"),
        ({"partitions": 0}, "partitions must be .*, got 0"),
        ({"partitions": 2.0}, "partitions"),
        ({"partitions": True}, "partitions"),
        ({"seed": "a"}, "seed"),
        ({"assign": "random"}, "assign"),
        ({"transform": 3}, "transform"),
        ({"cache_bytes": -1}, "cache_bytes"),
        ({"encode": "one-hot"}, "encode"),
        ({"encode": {"c": "one-hot"}}, "'c', which is neither"),
        ({"encode": {"a": "onehot"}}, "onehot"),
        ({"encode": {"a": []}}, "encode"),
        ({"encode": {"a": ["x", "x"]}}, "twice"),
        ({"encode": {"a": [None]}}, "encode"),
        ({"standardize": "a"}, "standardize"),
        ({"standardize": ["q"]}, "no feature"),
        ({"standardize": ["a"], "encode": {"a": "index"}}, "leave out one"),
    ],
)
def test_values_that_are_not_allowed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        arrow(**options)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": ["departure"]}, "no column 'departure'; there are: 'a', 'b', 'y', 't'"),
        ({"features": [0]}, "no column '0'"),
        ({"label": 5}, "no column '5'"),
        ({"weight": "A"}, "no column 'A'"),
        ({"label": "yy"}, "did you mean 'y'"),
        ({"validation": "tt"}, "no column 'tt'"),
        ({"validation": "a"}, "true and false"),
        ({"features": ["a", "b"]}, r"""'b' .* string, .*encode=\{'b': "one-hot"\}"""),
        ({"features": "b"}, "one-hot"),
        ({"label": "b"}, r"""for classes give encode=\{'b': "index"\}"""),
        ({"weight": "b"}, "'b'"),
        ({"features": "y", "standardize": True}, "standardize"),
    ],
)
def test_columns_that_do_not_fit_are_found_when_the_dataset_is_made(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        arrow(**options)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (pa.timestamp("s"), "timestamp"),
        (pa.date32(), "date32"),
        (pa.duration("s"), "duration"),
        (pa.null(), "null"),
        (pa.struct([("x", pa.int64())]), "struct"),
        (pa.list_(pa.string()), "list"),
        (pa.map_(pa.string(), pa.int64()), "map"),
    ],
)
def test_types_that_are_no_numbers(kind: Any, word: str) -> None:
    table = pa.table({"a": pa.array([None, None], kind), "y": [0, 1]})
    with pytest.raises(DataError, match=f"'a' .*{word}"):
        arrow(table)
    with pytest.raises(DataError, match=r"transform=|leave it out"):
        arrow(table)
    with pytest.raises(DataError, match=word):
        arrow(table, encode={"a": "index"})


BAD = [None, float("nan"), float("inf"), -float("inf"), 1e39]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("role", ["features", "single", "label", "weight", "index", "standardize", "list"])
def test_bad_numbers_are_counted_and_placed(cache: Path, tmp_path: Path, value: Any, role: str) -> None:
    a = [float(i) for i in range(500)]
    a[333] = a[17] = a[499] = value
    nested = [[v, 1.0] for v in a]
    table = pa.table({"a": a, "good": np.arange(500.0), "nested": nested})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=100)
    roles: dict[str, dict[str, Any]] = {
        "features": {"features": ["good", "a"]},
        "single": {"features": "a"},
        "label": {"features": "good", "label": "a"},
        "weight": {"features": "good", "weight": "a"},
        "index": {"features": "a", "encode": {"a": "index"}},
        "standardize": {"features": ["good", "a"], "standardize": True},
        "list": {"features": ["good", "nested"]},
    }
    options = roles[role]
    name = "nested" if role == "list" else "a"
    with pytest.raises(DataError, match=rf"column '{name}': 3 of its rows .*\n?.*row 17 of .*f\.parquet") as caught:
        Dataset.parquet(tmp_path / "f.parquet", partitions=2, **options).prepare(cache)
    advice = str(caught.value).partition("transform=lambda")[2]
    assert "'good'" not in str(caught.value)
    assert list(cache.glob(".tmp-*")) == []
    assert list(cache.glob("*/manifest.json")) == []
    drop = eval(f"lambda{advice}", {"pyarrow": pa, "numpy": np})  # what is printed helps
    made = Dataset.parquet(tmp_path / "f.parquet", partitions=2, transform=drop, **options).prepare(cache)
    assert made.rows == 497


@pytest.mark.parametrize("features", ["a", ["a"], ["a", "z"]])
def test_half_precision_has_infinities_too(cache: Path, features: Any) -> None:
    table = pa.table({"a": np.array([1, np.inf, 2, 4], np.float16), "y": [0.0, 1.0, 0.0, 1.0], "z": [0.0] * 4})
    with pytest.raises(DataError, match=r"column 'a': 1 of its rows .*\n?.*row 1 of"):
        arrow(table, features=features, partitions=1).prepare(cache)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1.0, 0.0, -0.5, -2.0], r"'w', row 2 of .*: -0\.5 .*>= 0"),
        ([1, 0, 2, -3], r"'w', row 3 of .*: -3 is below 0"),
        ([1.0, 0.0, -1e-300, 2.0], r"'w', row 2 of .*: -1e-300 is below 0"),
        ([0.0] * 4, "'w': all training rows"),
        ([False] * 4, "'w': all training rows"),
        ([1e-50] * 4, "'w': all training rows"),  # 0 in float32, as it is trained with
        ([1.0, 2.0, 0.0, 0.0], "'w': all validation rows"),
        ([0.0, 0.0, 1.0, 2.0], "'w': all training rows"),
    ],
)
def test_weights_that_are_none(cache: Path, weights: list[Any], said: str) -> None:
    table = pa.table({"a": [0.0, 1.0, 2.0, 3.0], "w": weights, "held": [False, False, True, True]})
    with pytest.raises(DataError, match=said):
        arrow(table, label=None, weight="w", validation="held").prepare(cache)
    assert list(cache.glob("*/manifest.json")) == []


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (2**62 + np.arange(4), {}),
        (2**62 + np.arange(4), {"standardize": True}),
        (2**62 + np.arange(4), {"features": "a", "standardize": ["a"]}),
        (-(2**53) - np.arange(4), {}),
        (np.array([0, 1, 2, 2**64 - 1], np.uint64), {}),
    ],
)
def test_integers_that_floats_make_equal(cache: Path, values: Any, options: dict[str, Any]) -> None:
    table = pa.table({"a": values, "y": [0, 1, 0, 1]})
    row = next(at for at, value in enumerate(values.tolist()) if abs(value) > 2**53)
    with pytest.raises(DataError, match=rf"'a', row {row} of .*: {values[row]} is beyond 2\*\*53.*encode=.*transform="):
        arrow(table, **options).prepare(cache)
    assert list(cache.glob("*/manifest.json")) == []


def test_integers_that_stay_what_they_are(cache: Path) -> None:
    large = pa.table({"a": 2**62 + np.arange(4), "b": [2**53, -(2**53), 0, 1], "y": 2**62 + np.arange(4)})
    for options in ({"features": "a"}, {"features": ["a"], "encode": {"a": "index"}}, {"features": ["b"]}):
        arrow(large, **options).prepare(cache)
    manifest = arrow(large, features=["b"]).prepare(cache)
    with pytest.raises(DataError, match=r"'b', row 1 of .*: 9007199254740993 is beyond"):
        apply(manifest, pa.table({"b": [0, 2**53 + 1]}))


def test_some_rows_may_weigh_nothing(cache: Path) -> None:
    table = pa.table({"a": [0.0, 1.0, 2.0, 3.0], "w": [0.0, -0.0, 0.0, 0.5]})
    assert arrow(table, label=None, weight="w", partitions=2).prepare(cache).weighted
    alone = arrow(table.set_column(1, "w", pa.array([0.0] * 4)), label=None, weight="w", partitions=1)
    with pytest.raises(DataError, match="all validation rows"):
        arrow(table, label=None, weight="w", partitions=1, validation=alone).prepare(cache)
    with pytest.raises(DataError, match=r"'w', row 1 .*after the transform.*: -1\.0 "):
        turned = pa.table({"a": [9.0, 1.0, 2.0], "w": [1.0, 1.0, -1.0]})
        arrow(turned, label=None, weight="w", transform=lambda batch: batch.slice(1)).prepare(cache)


MASKED = np.ma.masked_equal(np.array([[1.0, 2.0], [3.0, -9999.0], [5.0, -9999.0], [7.0, 8.0]]), -9999.0)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Dataset.numpy(MASKED, partitions=1), "inputs"),
        (lambda: Dataset.numpy({"m": MASKED}, partitions=1), "m"),
        (lambda: Dataset.numpy(MASKED.astype(np.int32), partitions=1), "inputs"),
        (lambda: Dataset.numpy(MASKED.astype(">f8"), partitions=1), "inputs"),
        (lambda: Dataset.numpy(MASKED.T.copy().T, standardize=True, partitions=1), "inputs"),
        (lambda: Dataset.numpy(MASKED[:, 1], partitions=1), "inputs"),
        (lambda: Dataset.numpy(np.zeros(4), MASKED[:, 1], partitions=1), "targets"),
        (lambda: Dataset.numpy(np.zeros(4), weight=MASKED[:, 1], partitions=1), "weight"),
        (lambda: Dataset.torch(Broken([(row, 0) for row in MASKED]), partitions=1), "inputs"),
        (lambda: Dataset.torch(Broken([(0.5, row[1]) for row in MASKED.astype(int)]), partitions=1), "targets"),
        (lambda: Dataset.torch(Broken([{"m": row} for row in MASKED]), features="m", partitions=1), "m"),
    ],
)
def test_masked_values_are_nulls(cache: Path, make: Any, name: str) -> None:
    with pytest.raises(DataError, match=rf"'{name}': 2 of .* null.* row 1 of") as caught:
        make().prepare(cache)
    assert list(cache.glob("*/manifest.json")) == [], caught.value


def test_a_masked_label_far_behind_is_a_null_too(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A masked item is a float to NumPy, whatever the others are."""
    monkeypatch.setattr("hopyard.data.sources.of.ROWS", 2)
    items = Broken((0.5, label) for label in np.ma.masked_equal([0, 1, 1, 7], 7))
    with pytest.raises(DataError, match=r"'targets': 1 of .* null.* row 3 of"):
        Dataset.torch(items, partitions=1).prepare(cache)


def test_masked_items_leave_integers_as_they_are(cache: Path) -> None:
    """Bug: they were stacked as floats, which round integers beyond 2**53."""
    labels = np.ma.array([2**60 + 1, 2**60 + 3, 0], mask=[False, False, True])
    items = Broken((0.5, label) for label in labels)
    seen: list[Any] = []

    def fill(batch: Any) -> Any:
        seen.extend(batch.column("targets").to_pylist())
        return batch.set_column(1, "targets", pc.fill_null(batch.column("targets"), 5))

    Dataset.torch(items, transform=fill, partitions=1).prepare(cache)
    assert set(seen) == {2**60 + 1, 2**60 + 3, None}


def test_masked_arrays_in_cells_are_not_taken() -> None:
    cells = [np.array([1.0, 2.0]), np.ma.masked_equal([1.0, -9999.0], -9999.0)]
    with pytest.raises(DataError, match=r"'m', row 1: .*mask"):
        Dataset.pandas(pd.DataFrame({"m": cells}), features="m")


def test_masks_that_hide_nothing_in_keys_and_for_a_transform(cache: Path) -> None:
    plain, empty = np.arange(8.0).reshape(4, 2), np.ma.array(np.arange(8.0).reshape(4, 2), mask=False)
    same = [Dataset.numpy(x, plain[:, 0], partitions=2).prepare(cache).digest for x in (plain, empty)]
    assert same[0] == same[1]
    keys = [Dataset.numpy(plain, key=key, partitions=1) for key in (np.arange(4), np.ma.masked_equal(np.arange(4), 2))]
    assert len({data.prepare(cache).digest for data in keys}) == 2

    def fill(batch: Any) -> Any:
        values = pc.fill_null(batch.column(0).storage.flatten(), 0.0)
        return pa.record_batch({"inputs": pa.FixedSizeListArray.from_arrays(values, 2)})

    filled = Dataset.numpy(MASKED, transform=fill, partitions=1).prepare(cache)
    assert np.load(Path(filled.path) / "train-00000" / "inputs-0.npy").tolist() == MASKED.filled(0.0).tolist()


def test_all_bad_columns_at_once(cache: Path) -> None:
    nan, table = float("nan"), pa.table({"a": [1.0, None, 3], "b": [1, None, None], "c": [0.0, 1, 2], "y": [0.0] * 3})
    table = table.append_column("d", pa.array([nan, 1.0, nan]))
    with pytest.raises(DataError) as caught:
        arrow(table, features=["a", "c", "d"], label={"y": "y", "b": "b"}).prepare(cache)
    text = str(caught.value)
    assert "'a': 1 of" in text
    assert "'b': 2 of" in text
    assert "'d': 2 of" in text
    assert "'c'" not in text
    assert "'y'" not in text


def test_null_before_nan(cache: Path) -> None:
    table = pa.table({"a": pa.array([1.0, float("nan"), None, 2.0], from_pandas=False)})
    with pytest.raises(DataError, match=r"2 of its rows .*\n?.*row 1 of"):
        arrow(table, label=None).prepare(cache)


def test_pandas_nan_and_mixed_types(cache: Path) -> None:
    with pytest.raises(DataError, match="'a': 1 of its rows"):
        Dataset.pandas(pd.DataFrame({"a": [1.0, np.nan]}), features="a", partitions=1).prepare(cache)
    with pytest.raises(DataError, match="data frame"):
        Dataset.pandas(pd.DataFrame({"a": [1, "x"]}), features="a")
    with pytest.raises(SpecError, match="DataFrame"):
        Dataset.pandas({"a": [1]}, features="a")


@pytest.mark.parametrize(
    ("frame", "mend"),
    [
        (pd.concat([pd.DataFrame({"a": [1]})] * 2, axis=1), "rename all but one of the columns 'a'"),
        (pd.DataFrame({"a\ud800": [1]}), r"rename the column 'a\\ud800': UTF-8"),
        (pd.DataFrame({"a": pd.arrays.SparseArray([1, 0])}), r"make the column 'a' dense, with \.sparse\.to_dense\(\)"),
        (pd.DataFrame({"a": [1j]}), "make the column 'a' two, its real"),
        (pd.DataFrame({"a": [1, 10**30]}), "column 'a', row 1: 10{30} has more than 64 bits; make it floating"),
        (pd.DataFrame({"b": [1], "a": ["x"]}).astype(object).transpose(), "give each column one type"),
    ],
)
def test_a_frame_that_is_no_table_says_what_helps(frame: Any, mend: str) -> None:
    with pytest.raises(DataError, match=f"data frame .*; {mend}"):
        Dataset.pandas(frame, features="a")


def test_a_column_that_nothing_names_may_hold_anything(cache: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [1, "x"], "y": [0, 1], 3: [0.5, 0.5]})
    frame = pd.concat([frame, pd.DataFrame({"c": [1j, 2j]}), pd.DataFrame({"c": [1, 2]})], axis=1)
    manifest = Dataset.pandas(frame, features={"n": ["a"]}, label="y", weight="3", partitions=1).prepare(cache)
    assert set(manifest.names) == {"3", "a", "y"}
    with pytest.raises(DataError, match="data frame"):
        Dataset.pandas(frame, features=["a", "b"], label="y")
    with pytest.raises(DataError, match="data frame"):
        Dataset.pandas(frame, features=["a"], label="y", transform=lambda batch: batch)


def test_sparse_matrices_are_not_taken(cache: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse").csr_matrix(np.eye(3))
    words = r".* sparse csr_matrix, .*\.toarray\(\)"
    with pytest.raises(DataError, match="'inputs'" + words):
        Dataset.numpy(sparse, np.zeros(3))
    with pytest.raises(DataError, match="the data" + words):
        apply(Dataset.numpy(np.eye(3), partitions=1).prepare(cache), sparse)


def test_the_message_after_a_transform_counts_its_rows(cache: Path) -> None:
    def tail(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(2)

    table = pa.table({"a": [0.0, 1.0, 2.0, None]})
    with pytest.raises(DataError, match=r"row 1 .counted after the transform"):
        arrow(table, label=None, transform=tail).prepare(cache)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_too_few_rows(cache: Path, rows: int) -> None:
    with pytest.raises(DataError, match="no rows" if rows == 0 else "3 training rows|1 training rows"):
        arrow(ROWS.slice(0, rows), partitions=4).prepare(cache)


def test_too_few_validation_rows(cache: Path) -> None:
    with pytest.raises(DataError, match=r"validation rows .*partitions=2"):
        arrow(validation=1e-9, partitions=2).prepare(cache)
    with pytest.raises(DataError, match="0 training rows"):
        arrow(validation="t").prepare(cache)
    with pytest.raises(DataError, match="validation column 't' is null in row 0"):
        table = ROWS.set_column(3, "t", pa.array([None] * 4, pa.bool_()))
        arrow(table, validation="t").prepare(cache)


def test_second_datasets() -> None:
    with pytest.raises(SpecError, match="other columns: inputs"):
        arrow(validation=arrow(features="a"))
    with pytest.raises(SpecError, match="has a validation"):
        arrow(validation=arrow(validation=0.5))


@pytest.mark.parametrize("name", ["nothing.parquet", "*.parquet", "empty", "memory://nothing/*.parquet"])
def test_paths_that_match_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    source = name if "://" in name else tmp_path / name
    with pytest.raises(DataError, match="no Parquet file matches"):
        Dataset.parquet(source, features="a")


@pytest.mark.parametrize("source", [3, [], None, {}])
def test_sources_that_are_none(source: Any) -> None:
    with pytest.raises(SpecError, match="source"):
        Dataset.parquet(source, features="a")
    with pytest.raises(SpecError):
        Dataset.arrow(source if source != [] else "x", features="a")


def test_corrupt_files(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "f.parquet"
    table = pa.table({"a": np.random.default_rng(0).normal(size=5000)})
    pq.write_table(table, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"f\.parquet"):
        Dataset.parquet(path, features="a")
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"f\.parquet"):
        Dataset.parquet(path, features="a")
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"f\.parquet .*CRC"):
        Dataset.parquet(path, features="a").prepare(cache)
    path.write_bytes(b"PAR1" + bytes(2000) + whole[2004:])
    with pytest.raises(DataError, match=r"f\.parquet .*Parquet"):
        Dataset.parquet(path, features="a").prepare(cache)
    path.write_bytes(whole)
    there = Dataset.parquet(path, features="a")
    path.unlink()
    with pytest.raises(DataError, match=r"f\.parquet"):
        there.prepare(cache)


def test_a_second_file_with_another_schema(tmp_path: Path, cache: Path) -> None:
    pq.write_table(pa.table({"a": [1.0], "y": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"y": [1], "a": [1]}), tmp_path / "2.parquet")
    with pytest.raises(DataError, match=r"'a' has type int64 in .*2\.parquet but double in .*1\.parquet"):
        Dataset.parquet(tmp_path, features="a", label="y", partitions=1).prepare(cache)
    pq.write_table(pa.table({"y": [1]}), tmp_path / "2.parquet")
    with pytest.raises(DataError, match=r"2\.parquet has no column 'a'"):
        Dataset.parquet(tmp_path, features="a", label="y", partitions=1).prepare(cache)
    pq.write_table(pa.table({"y": [1], "a": [2.0]}), tmp_path / "2.parquet")
    assert Dataset.parquet(tmp_path, features="a", label="y", partitions=1).prepare(cache).rows == 2


def test_batches_that_change_their_type(cache: Path) -> None:
    batches = [pa.record_batch({"a": [1.0]}), pa.record_batch({"a": [1]})]
    with pytest.raises(DataError, match=r"'a' .* has type int64, before it had double"):
        Dataset.arrow(iter(batches), features="a", partitions=1).prepare(cache)
    with pytest.raises(DataError, match="differ in their schema"):
        Dataset.arrow(batches, features="a")
    with pytest.raises(DataError, match="gave a dict"):
        Dataset.arrow(iter([{}]), features="a").prepare(cache)


def test_lists_of_several_lengths(cache: Path) -> None:
    with pytest.raises(DataError, match="differ in length, 2 values and then 1"):
        arrow(pa.table({"a": [[1, 2], [1]]}), label=None).prepare(cache)
    even = [[[1, 2], [3, 4]]] * 3
    for odd in ([[1, 2], [3]], [[1, 2, 3], [3, 4]], [[1, 2]]):
        with pytest.raises(DataError, match=r"differ in length, 2 values and then [13] \(row 3 of table in memory\)"):
            arrow(pa.table({"a": [*even, odd]}), label=None).prepare(cache)
    with pytest.raises(DataError, match=r"must have shape \(2,\), .* shape \(3,\)"):
        batches = [pa.record_batch({"a": [[1, 2]]}), pa.record_batch({"a": [[1, 2, 3]]})]
        arrow(pa.Table.from_batches(batches), label=None).prepare(cache)


def raising(batch: Any) -> Any:
    raise KeyError("nope")


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (raising, "transform raised KeyError on a batch of .*nope"),
        (lambda batch: None, "transform gave NoneType"),
        (lambda batch: pa.Table.from_batches([batch]), "transform gave Table"),
        (lambda batch: batch.slice(0, 0), "no rows"),
        (lambda batch: batch.select(["y"]), "the transform's result .* has no column 'a'"),
    ],
)
def test_transforms_that_fail(cache: Path, transform: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        arrow(transform=transform).prepare(cache)


def test_a_transform_that_cannot_be_seen(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It works, its rows are found again by this data set only, and that is said once."""
    lock = threading.Lock()

    def locked(batch: Any) -> Any:
        with lock:
            return batch

    data = arrow(transform=locked)
    assert data.prepare(cache).key == data.prepare(cache).key
    (said,) = caplog.messages
    assert "(lock: a lock, TypeError" in said
    assert arrow(transform=locked).prepare(cache).key != data.prepare(cache).key


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((3, 2)), np.zeros(4), "'inputs' has 3, 'targets' has 4"),
        ({"a": np.zeros(3), "b": np.zeros(2)}, None, "'a' has 3, 'b' has 2"),
        (np.float64(1), None, "single value"),
        (np.zeros((3, 0)), None, "without values"),
        (np.zeros(3, complex), None, "complex128"),
        (np.array(["a", "b"]), None, "'inputs' .*text"),
        (np.zeros(2), np.array(["a", "b"]), "'targets' .*text"),
        (np.zeros(2), {"mood": ["a", "b"]}, "'mood' .*text"),
        (np.zeros(3), [1, [2], 3], "no array|inhomogeneous|shape"),
        (np.array([object()]), None, "object"),
    ],
)
def test_arrays_that_do_not_fit(x: Any, y: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Dataset.numpy(x, y)


class Broken(list[Any]):
    """Items that a test makes up."""


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "items must .* length 0"),
        ([(1, 2, 3, 4)], "4 parts"),
        ([(np.zeros(2), 1), (np.zeros(3), 1)], "item 1: 'inputs' has shape .*or one axis where ragged= names it"),
        ([{"a": 1}], "features="),
        ([("text",)], "str"),
        ([object()], "object"),
        ([(1, 2), (1,)], "item 1 has"),
    ],
)
def test_items_that_do_not_fit(cache: Path, items: list[Any], words: str) -> None:
    with pytest.raises((DataError, SpecError), match=words):
        Dataset.torch(Broken(items), partitions=1).prepare(cache)


def test_no_map_style_dataset() -> None:
    with pytest.raises(SpecError, match="map-style"):
        Dataset.torch(iter([]))
    with pytest.raises(SpecError, match="no dicts"):
        Dataset.torch(Broken([(1, 2)]), features="a")


def test_too_many_values_for_one_hot(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.data.encoding.finalize.ONE_HOT_LIMIT", 3)
    with pytest.raises(DataError, match='"index"'):
        arrow(features="a", encode={"a": "one-hot"}).prepare(cache)


def test_a_value_that_the_listed_ones_lack(cache: Path) -> None:
    with pytest.raises(DataError, match=r"'b', row 1 of .*: 'y' is not among the 1 values .*'x'"):
        arrow(features="b", encode={"b": ["x"]}).prepare(cache)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("standardize", [False, True])
def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch, code: int, standardize: bool) -> None:
    written, real = [0], os.write

    def write(file: int, data: Any) -> int:
        written[0] += len(data)
        if written[0] > 20_000:
            raise OSError(code, os.strerror(code))
        return real(file, data)

    monkeypatch.setattr("hopyard.data.npy.os.write", write)
    data = Dataset.numpy(np.zeros((2000, 9)), np.zeros(2000), standardize=standardize)
    with pytest.raises(ResourceError, match=r"no room .*prepare.cache=") as caught:
        data.prepare(cache)
    assert caught.value.exit_code == 4
    monkeypatch.undo()
    assert list(cache.glob(".tmp-*")) == []
    assert data.prepare(cache).rows == 2000  # room was made


@contextmanager
def another_user() -> Iterator[None]:
    """What root may do, everybody else may not."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can look into."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        Path(folder).chmod(0o755)


@pytest.mark.parametrize("stream", [False, True])
def test_a_cache_that_cannot_be_written(shared: Path, stream: bool) -> None:
    source = iter(ROWS.to_batches()) if stream else ROWS
    words = r"data cache in {} cannot be used .*XDG_CACHE_HOME.*prepare\(cache=\)"
    shared.chmod(0o555)
    with another_user(), pytest.raises(ResourceError, match=words.format(shared / "cache")) as caught:
        Dataset.arrow(source, features=["a"], partitions=1).prepare(shared / "cache")
    assert caught.value.exit_code == 4
    shared.chmod(0o755)
    (shared / "file").touch()
    for place in (shared / "file", shared / "file" / "cache"):
        with pytest.raises(ResourceError, match=words.format(place)):
            Dataset.arrow(source, features=["a"], partitions=1).prepare(place)
    (shared / "made").mkdir(mode=0o555)
    with another_user(), pytest.raises(ResourceError, match=words.format(shared / "made")):
        Dataset.arrow(source, features=["a"], partitions=1).prepare(shared / "made")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_an_entry_of_another_user(shared: Path) -> None:
    manifest = arrow().prepare(shared)
    words = rf"data cache in {shared} cannot be used .*{{}}.*XDG_CACHE_HOME.*prepare\(cache=\)"
    with another_user():
        for read in (lambda: arrow().prepare(shared), lambda: open_partition(manifest, "train", 0)):
            with pytest.raises(ResourceError, match=words.format("manifest.json")):
                read()
    Path(manifest.path).chmod(0o755)
    with another_user(), pytest.raises(ResourceError, match=words.format(f"{manifest.key}.use")):
        arrow().prepare(shared)
    for path in (shared / "locks", *(shared / "locks").iterdir()):
        path.chmod(0o777)
    with another_user():
        assert arrow().prepare(shared).key == manifest.key


def test_errors_travel(cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        arrow(ROWS.slice(0, 0)).prepare(cache)
    assert str(cloudpickle.loads(cloudpickle.dumps(caught.value))) == str(caught.value)
