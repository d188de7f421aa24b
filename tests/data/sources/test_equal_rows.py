"""The same rows by key= from each library and format: equal data and equal models, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopyard as hy
from jobs import classes

COLUMNS: dict[str, Any] = {
    "features": ["age", "many", "id"],
    "label": "left",
    "key": "id",
    "impute": {"age": "mean"},
    "standardize": True,
    "validation": 0.2,
    "partitions": 3,
}


def parquet(rows: pa.Table, folder: Path) -> hy.Dataset:
    for start in range(0, 600, 150):
        pq.write_table(rows.slice(start, 150), folder / f"{start}.parquet", row_group_size=40)
    return hy.Dataset.parquet(folder / "*.parquet", **COLUMNS)


def pandas(rows: pa.Table, folder: Path) -> hy.Dataset:
    return hy.Dataset.arrow(rows.to_pandas(), **COLUMNS)


def polars(rows: pa.Table, folder: Path) -> hy.Dataset:
    frame = pytest.importorskip("polars", reason="Polars is not installed").from_arrow(rows)
    return hy.Dataset.arrow(frame.sort("city", "id"), **COLUMNS)


def duckdb(rows: pa.Table, folder: Path) -> hy.Dataset:
    connection = pytest.importorskip("duckdb", reason="DuckDB is not installed").connect()
    connection.register("rows", rows)
    return hy.Dataset.arrow(connection.sql("SELECT * FROM rows ORDER BY many, id"), **COLUMNS)


def delta(rows: pa.Table, folder: Path) -> hy.Dataset:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed (extra `delta`)")
    for part in (rows.slice(0, 250), rows.slice(250), rows.slice(0, 9)):
        deltalake.write_deltalake(folder / "table", part, mode="append", partition_by=["city"])
    return hy.Dataset.delta(folder / "table", version=1, **COLUMNS)


def iceberg(rows: pa.Table, folder: Path) -> hy.Dataset:
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed (extra `iceberg`)")
    catalog = sql.SqlCatalog("local", uri=f"sqlite:///{folder}/catalog", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace("town")
    table = catalog.create_table("town.people", schema=rows.schema)
    for part in (rows.slice(250), rows.slice(0, 250), rows.slice(0, 9)):
        table.append(part)
    snapshot = table.metadata.snapshots[1].snapshot_id
    catalog.close()
    return hy.Dataset.iceberg(table, snapshot=snapshot, **COLUMNS)


LONG = [pytest.param(source, marks=pytest.mark.long) for source in (polars, duckdb, delta, iceberg)]


@pytest.mark.slow
@pytest.mark.parametrize("source", [parquet, pandas, *LONG])
def test_equal_rows_are_equal_data_and_equal_models(
    tmp_path: Path, rows: pa.Table, source: Callable[[pa.Table, Path], hy.Dataset]
) -> None:
    (tmp_path / "rows").mkdir()
    datasets = (hy.Dataset.arrow(rows, **COLUMNS), source(rows, tmp_path / "rows"))
    digests = []
    for number, data in enumerate(datasets):
        run = hy.fit(classes, {"lr": 0.1}, data, epochs=2, engine=hy.Inline(), directory=tmp_path / f"{number}")
        digests.append((data.prepare().digest, run.best.metrics, run.trials[0].digest))
    assert digests[0] == digests[1]
