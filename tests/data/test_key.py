"""key=: which rows lie together, of files, tables and arrays; test_spark_dataset.py has the same of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopyard as hy
from hopyard.data.manifest import Manifest, difference, split
from hopyard.errors import DataError, SpecError

OPTIONS: dict[str, Any] = {
    "features": ["a", "carrier"], "label": "late", "encode": {"carrier": "one-hot"}, "standardize": True,
    "key": "user", "validation": 0.3, "partitions": 2, "seed": 1,
}  # fmt: skip


@pytest.fixture
def users(table: pa.Table) -> pa.Table:
    return table.append_column("user", pa.array([f"user {n % 50}" for n in range(300)]))


def sides(manifest: Manifest, read: Any) -> list[Any]:
    """Inputs of each training partition, then of each validation partition."""
    return [part.inputs for kind in ("train", "validate") for part in read(manifest, kind)]


def same(manifests: list[Manifest], read: Any) -> bool:
    first = [part.tobytes() for part in sides(manifests[0], read)]
    return all(
        manifest.digest == manifests[0].digest and [part.tobytes() for part in sides(manifest, read)] == first
        for manifest in manifests
    )


def test_files_tables_and_orders_change_nothing(users: pa.Table, tmp_path: Path, cache: Path, read: Any) -> None:
    for number in range(3):
        pq.write_table(users.slice(number * 100, 100), tmp_path / f"{number}.parquet", row_group_size=37)
    order = np.random.default_rng(0).permutation(300)
    data = [
        hy.Dataset.arrow(users, **OPTIONS),
        hy.Dataset.arrow(users.take(order), **OPTIONS),
        hy.Dataset.arrow(iter(users.take(order).to_batches(max_chunksize=7)), **OPTIONS),
        hy.Dataset.parquet([str(tmp_path / f"{number}.parquet") for number in (2, 0, 1)], **OPTIONS),
        hy.Dataset.pandas(users.to_pandas().astype({"carrier": "category", "user": "category"}), **OPTIONS),
    ]
    manifests = [one.prepare(cache) for one in data]
    assert same(manifests, read)
    assert manifests[0].validate_rows > 0 and split(manifests[0]) == "by user"


@pytest.mark.parametrize("encode", ["one-hot", "index", [0.0, 1.5], [-0.0, 1.5]])
def test_there_is_one_zero_among_categories(cache: Path, read: Any, encode: Any) -> None:
    """Bug: −0.0 and 0.0 are one category, and which of them the vocabulary had depended on the order of rows."""
    rows = pa.table({"x": [-0.0, 1.5, 0.0, 0.0] * 10, "user": [f"user {n}" for n in range(40)]})
    options: dict[str, Any] = {"features": "x", "encode": {"x": encode}, "key": "user", "partitions": 2, "seed": 1}
    orders = {"there": rows, "back": rows.take(np.arange(39, -1, -1))}
    manifests = [hy.Dataset.arrow(each, **options).prepare(cache / name) for name, each in orders.items()]
    assert [repr(manifest.vocabularies["x"]) for manifest in manifests] == ["[0.0, 1.5]"] * 2
    assert same(manifests, read)


def test_arrays_have_a_key_too(cache: Path, read: Any) -> None:
    n = np.arange(300)
    users = n % 40
    manifest = hy.Dataset.numpy(
        {"key": n * 1.0, "x": users}, n % 2, key=users.astype("U8"), validation=0.25, partitions=3, seed=1
    ).prepare(cache)
    seen = [set(part["x"].tolist()) for part in sides(manifest, read)]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 40
    assert sorted(v for part in sides(manifest, read) for v in part["key"].tolist()) == n.tolist()


def test_a_second_data_set_goes_by_its_names_too(users: pa.Table, cache: Path, read: Any) -> None:
    def made(table: pa.Table) -> Manifest:
        options = {name: value for name, value in OPTIONS.items() if name not in ("validation", "seed")}
        second = hy.Dataset.arrow(table, **{**options, "standardize": False, "encode": {"carrier": "one-hot"}})
        return hy.Dataset.arrow(users, validation=second, **options).prepare(cache)

    later = users.slice(200)
    assert same([made(later), made(later.take(np.arange(99, -1, -1)))], read)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"key": "nobody"}, DataError, "has no column 'nobody'"),
        ({"key": 3.5}, SpecError, r"key must .* 3\.5"),
        ({"key": []}, SpecError, r"key must be .*, got \[\]"),
        (
            {"assign": "contiguous"},
            SpecError,
            r"key = \['user'\] .*assign='contiguous'",
        ),
        (
            {"partitions": 60},
            DataError,
            r"none of 300 rows: .*key=\['user'\] .* 50 different",
        ),
        (
            {"key": "flag", "seed": 0},
            DataError,
            r"validation = 0\.3 chose \d+ of 300 rows: .* 2 different .*key=",
        ),
        (
            {"key": "late", "validation": 0.1},
            DataError,
            r"key=\['late'\] .* 4 different ones; give key= .*, or name a column",
        ),
        ({"transform": lambda batch: batch.drop_columns(["user"])}, DataError, "the transform's result .* 'user'"),
        ({"key": "struct"}, DataError, r"column 'struct' of .* struct<"),
    ],
)
def test_bad_keys_are_refused(users: pa.Table, cache: Path, change: Any, error: Any, message: str) -> None:
    users = users.append_column("struct", pa.array([{"a": 1}] * 300))
    with pytest.raises(error, match=message):
        hy.Dataset.arrow(users, **{**OPTIONS, **change}).prepare(cache)


def test_a_key_may_be_null_and_anything_with_a_value(users: pa.Table, cache: Path, read: Any) -> None:
    days = pa.array([None if n % 30 == 0 else n % 30 for n in range(300)], pa.int32()).cast(pa.date32())
    users = users.append_column("day", days)
    options: dict[str, Any] = {"key": ["day", "carrier"], "partitions": 2, "seed": 2, "validation": 0.3}
    seen = [
        set((part % 30).tolist())
        for part in sides(hy.Dataset.arrow(users, features="n", **options).prepare(cache), read)
    ]
    assert len(seen) == 4 and sum(map(len, seen)) == len(set.union(*seen)) == 30


def test_more_rows_than_memory_are_the_same(users: pa.Table, tmp_path: Path, read: Any, monkeypatch: Any) -> None:
    whole = hy.Dataset.arrow(users, **OPTIONS).prepare(tmp_path / "one")
    monkeypatch.setattr("hopyard.data.rows.order.RowSorter.__init__.__defaults__", (1000,))
    assert same([whole, hy.Dataset.arrow(users, **OPTIONS).prepare(tmp_path / "two")], read)


def test_a_difference_is_reported(users: pa.Table, cache: Path) -> None:
    def made(table: pa.Table, **change: Any) -> Manifest:
        return hy.Dataset.arrow(table, **{**OPTIONS, **change}).prepare(cache)

    whole = made(users)
    assert difference(whole, made(users)) == ""
    assert difference(whole, made(users.slice(3))) == "on 300 rows, now there are 297: 3 went"
    assert difference(made(users.slice(3)), whole) == "on 297 rows, now there are 300: 3 came"
    other = users.set_column(1, "a", pa.array(np.arange(300.0)))
    assert difference(whole, made(other)) == "on other rows, though there were 300 then too"
    assert (
        difference(whole, made(users, partitions=3))
        == "on the same rows, but in other partitions, or encoded otherwise"
    )
    assert difference(whole, made(users, key=None)) == "on other data"
    assert difference(made(users, key=None), made(users.slice(1), key=None)) == "on 300 rows, now there are 299: 1 went"
    assert split(made(users, key=None)) == "by the number of the row"


def test_a_resume_says_how_many_rows_came(users: pa.Table, tmp_path: Path) -> None:
    def recipe(config: dict[str, Any]) -> Any:
        from hopyard.frameworks.linear import Linear

        return Linear(4, 4, lr=config["lr"], batch_size=16)

    def trained(table: pa.Table, **more: Any) -> Any:
        data = hy.Dataset.arrow(table, **OPTIONS)
        return hy.fit(recipe, {"lr": 0.1}, data, epochs=1, engine=hy.Inline(), directory=tmp_path / "run", **more)

    assert "rows are split by user" in trained(users).report()
    with pytest.raises(hy.RunDirectoryError, match="holds a run on 300 rows, now there are 298: 2 went: give another"):
        trained(users.slice(2), resume=True)


def test_a_key_of_times_that_differ_by_nanoseconds(cache: Path) -> None:
    times = pa.array(np.arange(400) + 10**18, pa.timestamp("ns"))
    rows = pa.table({"when": times, "x": np.arange(400.0), "y": np.arange(400) % 2})
    data = [
        hy.Dataset.arrow(each, features=["x"], label="y", key="when", validation=0.25, partitions=2)
        for each in (rows, rows.take(np.random.default_rng(0).permutation(400)))
    ]
    first, second = (each.prepare(cache) for each in data)
    assert first.rows == 400
    assert 0.15 * 400 < first.validate_rows < 0.35 * 400
    assert first.digest == second.digest
