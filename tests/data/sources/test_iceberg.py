"""Iceberg tables at a snapshot: that snapshot's rows, whatever happens to the table, or an error in words."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hopyard as hy
from hopyard.data.sources.iceberg import IcebergSnapshot
from jobs import classes

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed (extra `iceberg`)")

pytestmark = pytest.mark.slow

COLUMNS: dict[str, Any] = {"features": ["age", "many", "id"], "label": "left", "key": "id", "partitions": 3}
COLUMNS |= {"impute": {"age": "mean"}, "validation": 0.2}


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="the SQL catalog of pyiceberg needs sqlalchemy")
    catalog = sql.SqlCatalog("here", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("town")
    yield catalog
    catalog.close()


@pytest.fixture
def table(catalog: Any, rows: pa.Table) -> Any:
    """All rows in the first snapshot, and a few of them again in the second."""
    table = catalog.create_table("town.people", schema=rows.schema)
    table.append(rows)
    table.append(rows.slice(0, 9))
    return table


def snapshots(table: Any) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.metadata.snapshots]


def read(snapshot: IcebergSnapshot, names: list[str] | None = None) -> list[dict[str, Any]]:
    return [row for batch, _, _ in snapshot.pieces(names, []) for row in batch.to_pylist()]


def test_a_snapshot_has_its_rows_and_its_name(cache: Path, table: Any, rows: pa.Table) -> None:
    first, second = snapshots(table)
    expected = hy.Dataset.arrow(rows, **COLUMNS).prepare(cache)
    manifest = hy.Dataset.iceberg(table, snapshot=first, **COLUMNS).prepare(cache)
    assert manifest.digest == expected.digest
    assert sum(source.rows for source in manifest.sources) == 600
    location = table.metadata_location
    for path in (location, Path(location.removeprefix("file://"))):
        assert hy.Dataset.iceberg(path, snapshot=first, **COLUMNS).prepare(cache).key == manifest.key
    newest = hy.Dataset.iceberg(table, **COLUMNS)
    assert newest.prepare(cache).key == hy.Dataset.iceberg(table, snapshot=second, **COLUMNS).prepare(cache).key
    assert newest.prepare(cache).rows == 609
    assert read(IcebergSnapshot(table, first)) == rows.to_pylist()


def test_a_table_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: Any) -> None:
    from pyiceberg import catalog as catalogs
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__URI", f"sqlite:///{tmp_path}/catalog")
    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__TYPE", "sql")
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    with pytest.raises(hy.DataError, match=r"here\.town\.nobody cannot be opened: NoSuchTableError"):
        IcebergSnapshot("here.town.nobody")
    opened = IcebergSnapshot("here.town.people")
    assert opened.identity() == IcebergSnapshot(table).identity()
    assert repr(opened).endswith("of the Iceberg table here.town.people")
    copy = pickle.loads(pickle.dumps(opened))
    assert copy.identity() == opened.identity() and len(read(copy, ["id"])) == 609


def test_a_file_of_metadata_in_the_working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: Any) -> None:
    shutil.copy(table.metadata_location.removeprefix("file://"), tmp_path / "v1.metadata.json")
    monkeypatch.chdir(tmp_path)
    for name in ("v1.metadata.json", Path("v1.metadata.json")):
        assert IcebergSnapshot(name).identity() == IcebergSnapshot(table).identity()
    with pytest.raises(hy.SpecError, match=r"table = 'people': must be \"catalog\.namespace\.table\""):
        IcebergSnapshot("people")


def test_a_location_with_a_secret_is_refused(table: Any) -> None:
    table.metadata_location = "s3://me:hidden@bucket/v1.metadata.json"
    with pytest.raises(hy.SpecError, match="with a password") as caught:
        IcebergSnapshot(table)
    assert "hidden" not in str(caught.value)


def test_a_run_goes_on_with_its_snapshot_and_without_its_files(tmp_path: Path, table: Any, rows: pa.Table) -> None:
    how: dict[str, Any] = {"engine": hy.Inline()}
    begun = hy.Dataset.iceberg(table, **COLUMNS)
    hy.fit(classes, {"lr": 0.1}, begun, epochs=1, directory=tmp_path / "a", **how)
    table.append(rows)
    copy = pickle.loads(pickle.dumps(begun))
    assert len(read(copy.rows.source, ["id"])) == 609
    expected = hy.fit(classes, {"lr": 0.1}, begun, epochs=2, directory=tmp_path / "b", **how)
    shutil.rmtree(tmp_path / "warehouse")
    resumed = hy.resume(tmp_path / "a", epochs=2, **how)
    assert resumed.trials[0].digest == expected.trials[0].digest


def test_a_table_made_anew_is_another_one(cache: Path, catalog: Any, table: Any, rows: pa.Table) -> None:
    key = hy.Dataset.iceberg(table, snapshot=snapshots(table)[0], **COLUMNS).prepare(cache).key
    catalog.drop_table("town.people")
    again = catalog.create_table("town.people", schema=rows.schema)
    again.append(rows)
    assert hy.Dataset.iceberg(again, **COLUMNS).prepare(cache).key != key


def test_another_table_at_the_place_of_the_metadata_is_refused(catalog: Any, table: Any, rows: pa.Table) -> None:
    copy = pickle.loads(pickle.dumps(IcebergSnapshot(table)))
    other = catalog.create_table("town.others", schema=rows.schema)
    other.append(rows)
    shutil.copy(other.metadata_location.removeprefix("file://"), table.metadata_location.removeprefix("file://"))
    with pytest.raises(hy.DataError, match="made anew"):
        read(copy)


def test_columns_that_were_renamed_and_came_later(table: Any, rows: pa.Table) -> None:
    from pyiceberg.types import LongType

    (_, second) = snapshots(table)
    with table.update_schema() as update:
        update.rename_column("age", "years")
        update.add_column("late", LongType())
    then, now = IcebergSnapshot(table, second), IcebergSnapshot(table)
    assert then.snapshot == now.snapshot, "a change of columns alone makes no snapshot"
    assert then.identity() != now.identity()
    expected = [*rows.to_pylist(), *rows.slice(0, 9).to_pylist()]
    by_id = sorted(expected, key=lambda row: int(row["id"]))
    assert sorted(read(then), key=lambda row: row["id"]) == by_id
    renamed = sorted(read(now, ["late", "years", "id"]), key=lambda row: row["id"])
    assert renamed == [{"id": row["id"], "years": row["age"], "late": None} for row in by_id]


def test_deleted_rows_are_left_out_and_partitions_are_columns(catalog: Any, rows: pa.Table) -> None:
    table = catalog.create_table("town.parted", schema=rows.schema)
    with table.update_spec() as update:
        update.add_identity("city")
    table.append(rows)
    table.delete("id < 100")
    assert sorted(row["id"] for row in read(IcebergSnapshot(table))) == list(range(100, 600))
    first = IcebergSnapshot(table, snapshots(table)[0])
    assert sorted(read(first), key=lambda row: row["id"]) == rows.to_pylist()
    assert read(first) == read(first), "in one order"


def test_files_that_are_gone_are_an_error_in_words(cache: Path, tmp_path: Path, table: Any) -> None:
    data = hy.Dataset.iceberg(table, **COLUMNS)
    next((tmp_path / "warehouse").rglob("*.parquet")).unlink()
    with pytest.raises(hy.DataError, match=r"a file is not there.*give a newer snapshot="):
        data.prepare(cache)


def test_what_is_no_snapshot_of_a_table_is_refused(catalog: Any, table: Any, rows: pa.Table, tmp_path: Path) -> None:
    empty = catalog.create_table("town.empty", schema=rows.schema)
    first = snapshots(table)[0]
    cases: list[tuple[Any, Any, str]] = [
        (table, 5, f"no snapshot 5; the last are {first}"),
        (table, "5", "snapshot must be an integer"),
        (empty, None, "it has no rows"),
        (7, None, "table must be a pyiceberg table"),
        (tmp_path / "none.metadata.json", None, "a file is not there"),
    ]
    for source, snapshot, words in cases:
        with pytest.raises(hy.HopyardError, match=words):
            hy.Dataset.iceberg(source, snapshot=snapshot, **COLUMNS)


def test_a_pickle_has_no_catalog(table: Any) -> None:
    table.io.properties["s3.secret-access-key"] = "hidden"
    assert b"hidden" not in pickle.dumps(hy.Dataset.iceberg(table, **COLUMNS))
