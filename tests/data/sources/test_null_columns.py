"""Columns that are null throughout a file, a batch or a row group, which Arrow gives the type null."""

from __future__ import annotations

from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopyard as hy

ROWS = 40
STAMPS = pa.array(np.arange(ROWS) * 1_000_000_007, pa.timestamp("ns", tz="UTC"))
FILLED: dict[str, Any] = {
    "features": ["text", "number", "real"],
    "label": "y",
    "encode": {"text": "one-hot"},
    "impute": {"text": "most_frequent", "number": "mean", "real": "mean"},
    "partitions": 2,
}


def whole_and_null(names: list[str]) -> tuple[pa.Table, pa.Table]:
    """Return a table, and one whose columns `names` are null and have the type null."""
    n = np.arange(ROWS)
    full = pa.table(
        {
            "text": pa.array(np.array(["Bern", "Bonn", "Ulm"])[n % 3]),
            "number": pa.array(n % 7),
            "real": pa.array(n / 8),
            "when": STAMPS,
            "list": pa.array([[i, i + 1] for i in n.tolist()]),
            "y": pa.array(n % 2),
        }
    )
    null = full
    for name in names:
        null = null.set_column(null.schema.get_field_index(name), name, pa.nulls(ROWS))
    return full, null


def save(folder: Path, tables: list[pa.Table], **options: Any) -> Path:
    folder.mkdir()
    for number, each in enumerate(tables):
        pq.write_table(each, folder / f"{number}.parquet", **options)
    return folder


def single(folder: Path, tables: list[pa.Table]) -> Path:
    """Write the rows as one file of one schema."""
    return save(folder, [pa.concat_tables(tables, promote_options="default")])


def digests(manifest: Any) -> tuple[Any, ...]:
    return manifest.digest, [part.digest for part in manifest.train], manifest.vocabularies, manifest.fills


@pytest.mark.parametrize("null_first", [False, True])
@pytest.mark.parametrize("names", [["text"], ["number"], ["text", "number", "real"]])
def test_a_column_that_is_null_throughout_a_file(
    tmp_path: Path, cache: Path, names: list[str], null_first: bool
) -> None:
    tables = list(whole_and_null(names))[:: -1 if null_first else 1]
    for each in ({}, {"key": "when"}, {"validation": 0.3}):
        options = FILLED | each
        one = hy.Dataset.parquet(single(tmp_path / f"one {len(options)}{each}", tables), **options)
        two = hy.Dataset.parquet(save(tmp_path / f"two {len(options)}{each}", tables), **options)
        assert digests(two.prepare(cache)) == digests(one.prepare(cache))


@pytest.mark.parametrize("null_first", [False, True])
def test_a_column_that_is_null_in_three_files_of_four(tmp_path: Path, cache: Path, null_first: bool) -> None:
    full, null = whole_and_null(["text", "number"])
    _, other = whole_and_null(["real"])
    tables = [null, other, null, full][:: 1 if null_first else -1]
    one = hy.Dataset.parquet(single(tmp_path / "one", tables), **FILLED)
    two = hy.Dataset.parquet(save(tmp_path / "two", tables), **FILLED)
    assert digests(two.prepare(cache)) == digests(one.prepare(cache))


@pytest.mark.parametrize("null_first", [False, True])
@pytest.mark.parametrize("key", ["when", "text", "list"])
def test_a_key_that_is_null_throughout_a_file(tmp_path: Path, cache: Path, key: str, null_first: bool) -> None:
    tables = list(whole_and_null([key]))[:: -1 if null_first else 1]
    options: dict[str, Any] = {"features": ["real"], "label": "y", "key": [key, "number"]}
    one = hy.Dataset.parquet(single(tmp_path / "one", tables), **options, partitions=2)
    two = hy.Dataset.parquet(save(tmp_path / "two", tables), **options, partitions=2)
    assert digests(two.prepare(cache)) == digests(one.prepare(cache))


@pytest.mark.parametrize("null_first", [False, True])
def test_a_column_of_lists_that_are_empty_or_null(tmp_path: Path, cache: Path, null_first: bool) -> None:
    full, null = whole_and_null([])
    lists = pa.array([[] if n % 2 else None for n in range(ROWS)], pa.list_(pa.null()))
    null = null.set_column(null.schema.get_field_index("list"), "list", lists)
    tables = [full, null][:: -1 if null_first else 1]
    options: dict[str, Any] = {"features": ["real"], "label": "y", "key": "list", "partitions": 1}
    two = hy.Dataset.parquet(save(tmp_path / "two", tables), **options)
    assert two.prepare(cache).rows == 2 * ROWS
    as_feature = hy.Dataset.parquet(tmp_path / "two", features="list", label="y", partitions=1)
    with pytest.raises(hy.DataError, match=r"'list': 20 of its rows|without values"):
        as_feature.prepare(cache)


@pytest.mark.parametrize("null_first", [False, True])
def test_nulls_that_nothing_fills_are_counted(tmp_path: Path, cache: Path, null_first: bool) -> None:
    for name, features, encode in (
        ("text", ["text"], {"text": "index"}),
        ("number", ["number"], {}),
        ("list", "list", {}),
    ):
        tables = list(whole_and_null([name]))[:: -1 if null_first else 1]
        data = hy.Dataset.parquet(save(tmp_path / name, tables), features=features, label="y", encode=encode)
        with pytest.raises(hy.DataError, match=f"'{name}': {ROWS} of its rows") as caught:
            data.prepare(cache)
        assert "dictionary" not in str(caught.value)


def test_a_column_that_is_null_in_all_files_is_refused_when_it_is_named(tmp_path: Path) -> None:
    _, null = whole_and_null(["text"])
    with pytest.raises(hy.DataError, match="'text'"):
        hy.Dataset.parquet(save(tmp_path / "null", [null, null]), **FILLED)


def test_types_that_differ_are_shown_as_the_files_have_them(tmp_path: Path, cache: Path) -> None:
    full, _ = whole_and_null([])
    other = full.set_column(0, "text", pa.array(range(ROWS)))
    with pytest.raises(hy.DataError, match=r"'text' has type int64 in .*1\.parquet but string in .*0\.parquet"):
        hy.Dataset.parquet(save(tmp_path / "files", [full, other]), **FILLED).prepare(cache)


def by_way_of_pandas(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pandas(batch.to_pandas(), preserve_index=False)


def by_way_of_pandas_with_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pandas as pd

    return pa.RecordBatch.from_pandas(batch.to_pandas(types_mapper=pd.ArrowDtype), preserve_index=False)


def by_way_of_pandas_with_schema(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pandas(batch.to_pandas(), schema=batch.schema, preserve_index=False)


def groups(holes: dict[str, Any]) -> list[pa.Table]:
    """Return three row groups; in the second one rows of the columns `holes` are null, all of them or the first."""
    full, _ = whole_and_null([])
    full = full.drop_columns(["list"])
    holed = full
    for name, rows in holes.items():
        null = np.arange(ROWS) < rows
        column = pa.array([None if at else value for at, value in zip(null, full[name].to_pylist(), strict=True)])
        holed = holed.set_column(full.schema.get_field_index(name), name, column.cast(full[name].type))
    return [full, holed, full.slice(0, ROWS // 2)]


HOLES = [{"text": ROWS}, {"number": 1}, {"number": ROWS}, {"text": ROWS, "number": 2, "real": ROWS}]
INDEXED = {
    "features": ["text", "number"],
    "label": "y",
    "encode": {"text": "one-hot", "number": hy.Categories("index", min_frequency=2)},
    "impute": {"text": ("constant", "Rome"), "number": "most_frequent"},
    "partitions": 2,
}


@pytest.mark.parametrize(
    "options", [FILLED, pytest.param(FILLED | {"key": "when", "validation": 0.3}, marks=pytest.mark.long), INDEXED]
)
@pytest.mark.parametrize("holes", HOLES, ids=str)
def test_a_transform_by_way_of_pandas(tmp_path: Path, holes: dict[str, Any], options: dict[str, Any]) -> None:
    """It gives the rows that there are without it, whichever row group comes first."""
    for number, order in enumerate(permutations(groups(holes))):
        with pq.ParquetWriter(tmp_path / "rows.parquet", order[0].schema) as writer:
            for table in order:
                writer.write_table(table)
        cache = tmp_path / f"cache {number}"
        plain, *others = (
            digests(hy.Dataset.parquet(tmp_path / "rows.parquet", **options, transform=transform).prepare(cache))
            for transform in (None, by_way_of_pandas, by_way_of_pandas_with_schema, by_way_of_pandas_with_types)
        )
        assert others == [plain] * 3


def test_labels_of_rows_that_a_transform_drops(tmp_path: Path, cache: Path) -> None:
    def complete(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pandas(batch.to_pandas().dropna(), preserve_index=False)

    for order in permutations(groups({"y": 3})):
        with pq.ParquetWriter(tmp_path / "rows.parquet", order[0].schema) as writer:
            for table in order:
                writer.write_table(table)
        data = hy.Dataset.parquet(tmp_path / "rows.parquet", features=["real"], label="y", transform=complete)
        manifest = data.prepare(cache)
        assert manifest.rows == 2 * ROWS + ROWS // 2 - 3
        assert (manifest.classes, manifest.targets["targets"].dtype) == (2, "int64")


def test_whole_and_broken_numbers_become_floating_point(tmp_path: Path, cache: Path) -> None:
    def fill(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pandas(batch.to_pandas().fillna({"number": 0.5}), preserve_index=False)

    single_column: dict[str, Any] = {"features": "number", "label": "y", "partitions": 1, "transform": fill}
    for order in permutations(groups({"number": 1})):
        data = hy.Dataset.arrow(pa.concat_tables(order), **single_column)
        manifest = data.prepare(cache)
        assert manifest.inputs["inputs"].dtype == "float32"


def test_decimals_have_as_many_digits_as_a_batch_needs(cache: Path) -> None:
    values = [Decimal("1.5"), Decimal("10.25"), Decimal("7")]
    batches = [pa.record_batch({"x": pa.array([value] * 4), "y": pa.array(range(4))}) for value in values]
    tables = [
        pa.Table.from_batches([batch.cast(pa.schema([("x", pa.decimal128(9, 4)), ("y", pa.int64())]))])
        for batch in batches
    ]
    for order in permutations(tables):
        rows: dict[str, Any] = {"features": ["x"], "label": "y", "partitions": 1}
        plain, there_and_back = (
            hy.Dataset.arrow(pa.concat_tables(order), **rows, transform=transform).prepare(cache)
            for transform in (None, by_way_of_pandas)
        )
        assert digests(there_and_back) == digests(plain)


@pytest.mark.parametrize("first", [0, 1])
def test_numbers_that_pandas_has_rounded_are_refused(cache: Path, first: int) -> None:
    large = pa.table({"id": pa.array([2**53 + 1, None, 5]), "y": [0, 1, 0]})
    small = pa.table({"id": pa.array([1, 2, 3]), "y": [0, 1, 0]})
    options: dict[str, Any] = {"features": ["id"], "label": "y", "partitions": 1, "encode": {"id": "index"}}
    options["impute"] = {"id": "most_frequent"}
    table = pa.concat_tables([small, large][:: -1 if first else 1])
    data = hy.Dataset.arrow(table, **options, transform=by_way_of_pandas)
    with pytest.raises(hy.DataError, match=r"'id' .*(double|int64).*ArrowDtype") as caught:
        data.prepare(cache)
    assert "cast it" not in str(caught.value)
    with_types = hy.Dataset.arrow(table, **options, transform=by_way_of_pandas_with_types)
    assert digests(with_types.prepare(cache)) == digests(hy.Dataset.arrow(table, **options).prepare(cache))


@pytest.mark.parametrize("null_first", [False, True])
def test_batches_that_can_be_read_once_are_refused_with_a_remedy(cache: Path, null_first: bool) -> None:
    tables = groups({"text": ROWS, "number": 1})[:2]
    batches = [batch for each in tables[:: -1 if null_first else 1] for batch in each.to_batches()]
    schema = batches[0].schema
    data = hy.Dataset.arrow(pa.RecordBatchReader.from_batches(schema, batches), **FILLED, transform=by_way_of_pandas)
    with pytest.raises(hy.DataError, match=r"ArrowDtype.* or .*from_pandas\(frame, schema=…\)"):
        data.prepare(cache)
    for remedy in (by_way_of_pandas_with_schema, by_way_of_pandas_with_types):
        again = pa.RecordBatchReader.from_batches(schema, batches)
        assert hy.Dataset.arrow(again, **FILLED, transform=remedy).prepare(cache).rows == 2 * ROWS
