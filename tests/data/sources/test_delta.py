"""Delta tables at a version: that version's rows, whatever happens to the table, or an error in words."""

from __future__ import annotations

import datetime
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hopyard as hy
from deletion_vectors import delete
from hopyard.data.sources.delta import DeltaVersion
from jobs import classes

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed (extra `delta`)")

COLUMNS: dict[str, Any] = {"features": ["age", "many", "id"], "label": "left", "key": "id", "partitions": 3}
COLUMNS |= {"impute": {"age": "mean"}, "validation": 0.2}


@pytest.fixture
def table(tmp_path: Path, rows: pa.Table) -> Path:
    """All rows at version 1, in three files of version 0 and two more, and a few of them again at version 2."""
    path = tmp_path / "a table, ü=50%"
    for part in (rows.slice(0, 400), rows.slice(400), rows.slice(0, 9)):
        deltalake.write_deltalake(str(path), part, mode="append", partition_by=["city"])
    return path


def read(version: DeltaVersion, names: list[str] | None = None) -> list[dict[str, Any]]:
    return [row for batch, _, _ in version.pieces(names, []) for row in batch.to_pylist()]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["id"]))


def test_a_version_has_its_rows_and_its_name(cache: Path, table: Path, rows: pa.Table) -> None:
    expected = hy.Dataset.arrow(rows, **COLUMNS).prepare(cache)
    for source in (table, str(table), f"file://{table}".replace("%", "%25")):
        assert hy.Dataset.delta(source, version=1, **COLUMNS).prepare(cache).digest == expected.digest
    opened = hy.Dataset.delta(deltalake.DeltaTable(str(table), version=1), **COLUMNS)
    manifest = opened.prepare(cache)
    assert manifest.digest == expected.digest
    assert manifest.key == hy.Dataset.delta(table, version=1, **COLUMNS).prepare(cache).key
    assert sum(source.rows for source in manifest.sources) == 600
    keys = {hy.Dataset.delta(table, version=version, **COLUMNS).prepare(cache).key for version in (0, 1, 2, None)}
    assert len(keys) == 3, "without a version it is the newest"
    assert by_id(read(DeltaVersion(table, 1))) == rows.to_pylist()


def test_rows_come_in_one_order(table: Path) -> None:
    before = read(DeltaVersion(table, 2))
    deltalake.DeltaTable(str(table)).create_checkpoint()
    assert read(DeltaVersion(table, 2)) == before == read(DeltaVersion(deltalake.DeltaTable(str(table))))


def test_a_run_goes_on_with_its_version_and_without_its_files(tmp_path: Path, table: Path, rows: pa.Table) -> None:
    how: dict[str, Any] = {"engine": hy.Inline()}
    begun = hy.Dataset.delta(table, **COLUMNS)
    hy.fit(classes, {"lr": 0.1}, begun, epochs=1, directory=tmp_path / "a", **how)
    deltalake.write_deltalake(str(table), rows, mode="append")
    copy = pickle.loads(pickle.dumps(begun))
    assert "version 2 of" in repr(copy.rows.source)
    assert len(read(copy.rows.source, ["id"])) == 609
    expected = hy.fit(classes, {"lr": 0.1}, begun, epochs=2, directory=tmp_path / "b", **how)
    shutil.rmtree(table)
    resumed = hy.resume(tmp_path / "a", epochs=2, **how)
    assert resumed.trials[0].digest == expected.trials[0].digest


def test_a_table_made_anew_is_another_one(cache: Path, table: Path, rows: pa.Table) -> None:
    first = hy.Dataset.delta(table, version=0, **COLUMNS)
    key, pickled = first.prepare(cache).key, pickle.dumps(first)
    shutil.rmtree(table)
    deltalake.write_deltalake(str(table), rows.slice(0, 400), partition_by=["city"])
    assert hy.Dataset.delta(table, version=0, **COLUMNS).prepare(cache).key != key
    assert pickle.loads(pickled).prepare(cache).key == key, "it is in the cache"
    with pytest.raises(hy.DataError, match="another table"):
        pickle.loads(pickled).prepare(cache.with_name("other"))


def test_copies_of_a_table_that_went_other_ways_are_other_tables(table: Path, rows: pa.Table) -> None:
    copy = table.with_name("copy")
    shutil.copytree(table, copy)
    assert DeltaVersion(copy).identity() == DeltaVersion(table).identity(), "the same files"
    for path in (table, copy):
        deltalake.write_deltalake(str(path), rows.slice(0, 50), mode="append")
    assert DeltaVersion(copy, 3).identity() != DeltaVersion(table, 3).identity()


def test_files_that_were_vacuumed_are_an_error_in_words(cache: Path, table: Path) -> None:
    deltalake.DeltaTable(str(table)).delete("id < 100")
    old = hy.Dataset.delta(table, version=2, **COLUMNS)
    deltalake.DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(hy.DataError, match=r"version 2 of .* lacks a file, which VACUUM"):
        old.prepare(cache)
    assert hy.Dataset.delta(table, **COLUMNS).prepare(cache).rows == 500


def test_deleted_rows_are_left_out(cache: Path, table: Path, rows: pa.Table) -> None:
    delete(table, [0, 3, 8], added=0, version=3)
    delete(table, [1], added=1, version=4)
    for version in (2, 3, None):
        scanned = pa.table(deltalake.DeltaTable(str(table), version=version).scan()).to_pylist()
        assert by_id(read(DeltaVersion(table, version))) == by_id(scanned)
    assert len(scanned) == 600 + 9 - 4
    assert DeltaVersion(table, 3).identity() != DeltaVersion(table, 2).identity()


def test_a_deletion_vector_of_another_file_is_refused(table: Path) -> None:
    class Odd:
        """The table, with a deletion vector beyond the rows of its file."""

        def __getattr__(self, name: str) -> Any:
            return getattr(opened, name)

        def deletion_vectors(self) -> pa.Table:
            return pa.table({"filepath": [opened.table_uri + path], "selection_vector": [[False] * 900]})

    opened = deltalake.DeltaTable(str(table))
    first = pa.table(opened.get_add_actions())["path"][0].as_py()
    for path, words in ((first, "has 900 rows"), ("x", "none of its")):  # noqa: B007 - Odd reads it
        version = DeltaVersion(table)
        version._table = Odd()
        with pytest.raises(hy.DataError, match=words):
            read(version)


def test_partition_columns_of_all_types_and_columns_that_came_later(tmp_path: Path) -> None:
    moment = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    days = [moment.date(), None, moment.date()]
    first = pa.table(
        {
            "id": [0, 1, 2],
            "day": pa.array(days),
            "text": ["a b", "ü=%/", None],
            "number": pa.array([1, 2, 3], pa.int16()),
            "when": pa.array([moment, moment, None], pa.timestamp("us", "UTC")),
            "flag": [True, False, None],
        }
    )
    names = first.column_names[1:]
    deltalake.write_deltalake(str(tmp_path / "t"), first, partition_by=names)
    second = first.append_column("late", pa.array([1.5, 2.5, 3.5])).set_column(0, "id", pa.array([3, 4, 5]))
    deltalake.write_deltalake(str(tmp_path / "t"), second, mode="append", schema_mode="merge", partition_by=names)
    expected = [*({**row, "late": None} for row in first.to_pylist()), *second.to_pylist()]
    assert by_id(read(DeltaVersion(tmp_path / "t"))) == expected
    assert by_id(read(DeltaVersion(tmp_path / "t"), ["late", "id", "number"])) == [
        {name: row[name] for name in ("id", "number", "late")} for row in expected
    ]
    assert by_id(read(DeltaVersion(tmp_path / "t", 0))) == first.to_pylist()


def test_features_that_cannot_be_read_are_an_error_in_words(table: Path, rows: pa.Table) -> None:
    log = table / f"_delta_log/{3:020}.json"
    first = (table / f"_delta_log/{0:020}.json").read_text().splitlines()
    metadata = next(json.loads(line)["metaData"] for line in first if "metaData" in line)
    schema = json.loads(metadata["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
    mapped = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "5"}
    actions: list[Any] = [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {"metaData": {**metadata, "configuration": mapped, "schemaString": json.dumps(schema)}},
    ]
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(hy.DataError, match=r"columnMapping.*scan") as caught:
        DeltaVersion(table)
    assert "version=3" in str(caught.value)
    scan = deltalake.DeltaTable(str(table), version=3).scan()
    assert hy.Dataset.arrow(scan, **COLUMNS).prepare().rows == 609


@pytest.mark.parametrize(
    ("source", "version", "words"),
    [
        ("", 7, "version 7 of .* cannot be opened"),
        ("", -1, "version must be an integer >= 0"),
        ("", "1", "version must be an integer"),
        ("x", None, "the newest version of .*x cannot be opened"),
        (None, None, "table must be a path, a URL or a deltalake.DeltaTable"),
    ],
)
def test_what_is_no_version_of_a_table_is_refused(table: Path, source: Any, version: Any, words: str) -> None:
    with pytest.raises(hy.HopyardError, match=words):
        hy.Dataset.delta(None if source is None else f"{table}{source}", version=version, **COLUMNS)


def test_a_delta_table_has_one_version(table: Path) -> None:
    opened = deltalake.DeltaTable(str(table), version=1)
    version = DeltaVersion(opened, 1)
    opened.load_as_version(2)
    assert version.version == 1
    assert len(read(version)) == 600, "whatever becomes of the object"
    opened.load_as_version(1)
    with pytest.raises(hy.SpecError, match="version = 0"):
        DeltaVersion(opened, 0)


def test_a_pickle_has_no_credentials(table: Path) -> None:
    opened = deltalake.DeltaTable(str(table), storage_options={"aws_secret_access_key": "hidden"})
    data = hy.Dataset.delta(opened, **COLUMNS)
    pickled = pickle.dumps(data)
    assert b"hidden" not in pickled
    assert b"hidden" not in pickle.dumps(data.rows.source)
    assert len(read(pickle.loads(pickled).rows.source)) == 609


def test_a_table_at_a_url_with_a_secret_is_refused(table: Path) -> None:
    class Elsewhere(deltalake.DeltaTable):  # type: ignore[name-defined]
        __module__ = "deltalake.table"
        table_uri = "s3://me:hidden@bucket/table"

    with pytest.raises(hy.SpecError, match="with a password") as caught:
        DeltaVersion(Elsewhere(str(table)))
    assert "hidden" not in str(caught.value)
