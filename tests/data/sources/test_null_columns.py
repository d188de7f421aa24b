"""Columns that are null throughout a file, a batch or a row group, which Arrow gives the type null."""

from __future__ import annotations

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
    with pytest.raises(hy.DataError, match=r"'list': 20 of its rows|rows differ in length"):
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
