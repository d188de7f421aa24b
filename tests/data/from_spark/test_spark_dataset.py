"""Dataset.spark and Dataset.open, on executors that are processes of their own."""

from __future__ import annotations

import importlib
import json
import math
import os
import pickle
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopyard as hy
import spark_fits
from hopyard.data.from_spark.source import _say_not_deterministic
from hopyard.data.manifest import FORMAT
from hopyard.data.partitions.mapped import open_partition
from hopyard.data.rows.hash import row_hashes
from hopyard.data.rows.names import Names
from hopyard.errors import DataError, ResourceError, SpecError
from hopyard.sparkapi import tasks
from hopyard.sparkapi.dataframe import is_deterministic

pytest.importorskip("pyspark")
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T

pytestmark = pytest.mark.spark

PARTITIONS = 4


def numbered(spark: Any, rows: int = 100, partitions: int = 7) -> Any:
    made = spark.range(0, rows, 1, partitions)
    return made.select(F.col("id").alias("n"), (F.col("id") * 0.5).alias("x"))


def opened(manifest: Any, kind: Any = "train") -> list[Any]:
    parts = manifest.train if kind == "train" else manifest.validate
    return [open_partition(manifest, kind, number) for number in range(len(parts))]


def in_order(manifest: Any, key: int = 0) -> Any:
    """Inputs of all training rows, sorted by one of their columns."""
    whole = np.concatenate([columns.inputs for columns in opened(manifest)])
    return whole[np.argsort(whole[:, key], kind="stable")]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def left(store: Path) -> list[str]:
    """Names of all files below."""
    return sorted(path.name for path in store.rglob("*") if path.is_file())


@pytest.mark.parametrize("key", [None, "user"])
@pytest.mark.parametrize("validation", [0.0, 0.3, "held"])
def test_rows_go_by_their_names(spark: Any, store: Path, validation: Any, key: Any) -> None:
    df = numbered(spark, 300).select("n", "x", (F.col("n") % 60).alias("user"), (F.col("n") % 3 == 0).alias("held"))
    asked: dict[str, Any] = {"validation": validation, "partitions": PARTITIONS, "seed": 3, "key": key}
    manifest = hy.Dataset.spark(df, features=["n"], label="x", path=store, **asked).prepare()
    assert manifest.row_names is not None and (manifest.rows, manifest.row_names.rows) == (300, 300)

    read = ["n", "x", *(["held"] if validation == "held" else [])]
    table = df.toPandas()
    batch = pa.RecordBatch.from_pandas(table)
    content = row_hashes(batch, read, "t")
    features = row_hashes(batch, ["n"], "t")[:, :1]
    before = features if key is None else row_hashes(batch, [key], "t")
    names = Names(np.concatenate([before, content[:, 1:] if key is None else content], axis=1))
    chosen = table["held"].to_numpy() if validation == "held" else names.validates(3, validation)
    runs = {run: mine for run, mine, _ in names.runs(PARTITIONS, chosen)}
    for kind, first in (("train", 0), ("validate", PARTITIONS)):
        if kind == "validate" and not validation:
            assert manifest.validate == []
            continue
        for partition, columns in enumerate(opened(manifest, kind)):
            mine = sorted(runs[first + partition], key=lambda row: names.words[row].tolist())
            assert columns.inputs[:, 0].tolist() == table["n"].to_numpy()[mine].tolist()


OPTIONS: dict[str, Any] = {
    "features": ["n", "double", "carrier"], "label": "late", "encode": {"carrier": "one-hot"}, "standardize": True,
    "partitions": 3,
}  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Whether two manifests have equal digests, and partitions of equal bytes."""
    columns = [
        [part.inputs.tobytes() for kind in ("train", "validate") for part in opened(m, kind)] for m in (one, other)
    ]
    return bool(one.digest == other.digest and columns[0] == columns[1])


def test_partitions_files_and_orders_change_nothing(spark: Any, store: Path, tmp_path: Path, kinds: pa.Table) -> None:
    (tmp_path / "several").mkdir()
    for number in range(4):
        pq.write_table(kinds.slice(number * 50, 50), tmp_path / "several" / f"{number}.parquet")
    whole = spark.read.parquet(str(tmp_path / "kinds.parquet"))
    several = spark.read.parquet(str(tmp_path / "several"))
    frames = [whole, several, several.repartition(5), several.orderBy("double"), several.coalesce(1)]
    made = [hy.Dataset.spark(df, path=store, validation=0.3, seed=2, **OPTIONS).prepare() for df in frames]
    assert made[0].validate_rows > 0 and all(same(made[0], other) for other in made[1:])
    assert made[0].vocabularies == {"carrier": sorted(made[0].vocabularies["carrier"])}


def test_a_key_gives_the_same_from_spark_files_and_memory(
    spark: Any, store: Path, tmp_path: Path, kinds: pa.Table
) -> None:
    path = str(tmp_path / "kinds.parquet")
    options = {**OPTIONS, "key": "n", "validation": 0.3, "seed": 3}
    mine = hy.Dataset.spark(spark.read.parquet(path).repartition(4), path=store, **options).prepare()
    shuffled = kinds.to_pandas().sample(frac=1, random_state=1)
    for other in (hy.Dataset.parquet(path, **options), hy.Dataset.pandas(shuffled, **options)):
        assert same(mine, other.prepare())


@pytest.mark.long
def test_partitionby_columns_are_read(spark: Any, store: Path, tmp_path: Path) -> None:
    kind = F.when(F.col("n") % 4 == 0, "a b/c=1").when(F.col("n") % 4 == 1, "é%")
    df = numbered(spark, 200).withColumn("year", 2010 + (F.col("n") % 3).cast("int")).withColumn("kind", kind)
    df.write.partitionBy("year", "kind").parquet(str(tmp_path / "hive"))

    def known(batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index("kind")
        return batch.set_column(at, "kind", batch["kind"].fill_null("none"))

    options: dict[str, Any] = {
        "features": {"numbers": ["x", "kind"], "year": "year"}, "label": "n", "key": "n", "partitions": 3,
        "encode": {"kind": "one-hot"}, "validation": 0.3, "transform": known,
    }  # fmt: skip
    read = hy.Dataset.parquet(tmp_path / "hive", **options).prepare()
    written = hy.Dataset.spark(df, path=store, **options).prepare()
    assert read.rows == 200 and read.inputs["year"].dtype == "int32"
    assert read.vocabularies == {"kind": ["a b/c=1", "none", "é%"]}
    assert read.digest == written.digest
    for kind_of_rows in ("train", "validate"):
        for mine, theirs in zip(opened(read, kind_of_rows), opened(written, kind_of_rows), strict=True):
            assert all((mine.inputs[name] == theirs.inputs[name]).all() for name in ("numbers", "year"))


def test_few_groups_of_features_are_reported(spark: Any, store: Path, caplog: Any) -> None:
    df = spark.range(0, 3000, 1, 2).selectExpr("id % 200 AS x", "id", "(id DIV 200) % 6 AS label")
    for key, is_told in (("id", False), (None, True)):
        caplog.clear()
        hy.Dataset.spark(df, features="x", label="label", key=key, partitions=8, path=store).prepare()
        assert ("there are 200 different ones for 8 partitions" in caplog.text) is is_told


@pytest.mark.parametrize("counted", [False, True])
def test_many_different_rows_of_few_features_are_drawn_by_all_that_they_hold(
    spark: Any, store: Path, counted: bool
) -> None:
    """A category or two, and a label that is a measure: groups of features would validate whole."""
    df = spark.range(0, 6000, 1, 3).selectExpr("ELT(id % 3 + 1, 'a', 'b', 'c') AS c", "id * 0.5D AS y")
    options: dict[str, Any] = {
        "features": ["c"], "label": "y", "validation": 0.2, "partitions": 4, "path": store,
        "encode": {"c": hy.Categories("index", min_frequency=2) if counted else "index"},
    }  # fmt: skip
    made = hy.Dataset.spark(df, **options).prepare()
    assert abs(made.validate_rows - 1200) < 200
    for side in ("train", "validate"):
        for part in opened(made, side):
            _, counts = np.unique(part.inputs, return_counts=True)
            assert len(counts) == 3 and counts.min() > len(part.inputs) / 5
    assert same(made, hy.Dataset.spark(df.repartition(5), **options).prepare())


def test_equal_keys_stay_together(spark: Any, store: Path) -> None:
    df = spark.range(0, 400, 1, 5).selectExpr("id % 40 AS x", "id % 40 % 7 AS user")
    manifest = hy.Dataset.spark(
        df, features="x", validation=0.3, partitions=2, path=store, key=["user"], seed=11
    ).prepare()
    parts = [part.inputs for kind in ("train", "validate") for part in opened(manifest, kind)]
    seen = [set((part.astype(int) % 7).tolist()) for part in parts]
    assert sum(len(each) for each in seen) == len(set.union(*seen)) == 7


@pytest.mark.long
def test_copies_of_few_different_rows_are_spread(spark: Any, store: Path) -> None:
    """Bug: all rows of a kind and a label validated, or none, and most partitions had none of them."""
    kind, held = "IF(id % 3 = 0, 'x', 'y') AS kind", "id % 9 = 1 AS held"
    df = spark.range(0, 20_000, 1, 4).selectExpr("id", kind, "CAST((id % 3 = 0) = (id % 5 > 0) AS INT) AS label", held)
    options: dict[str, Any] = {
        "features": ["kind"], "label": "label", "encode": {"kind": "one-hot"}, "partitions": 8, "path": store,
    }  # fmt: skip

    def made(df: Any, **more: Any) -> Any:
        return hy.Dataset.spark(df, **options, **more).prepare()

    first = made(df, validation=0.2)
    assert abs(first.validate_rows - 4_000) < 400 and first.rows == 20_000
    for side in ("train", "validate"):
        parts = opened(first, side)
        assert all(len({*zip(part.inputs[:, 0].tolist(), part.targets.tolist(), strict=True)}) == 4 for part in parts)
        right = np.concatenate([part.inputs[:, 0] == part.targets for part in parts])
        assert right.mean() == pytest.approx(0.8, abs=0.03)
    for other in (df.repartition(1), df.repartition(7), df.orderBy(F.desc("id"))):
        assert same(first, made(other, validation=0.2))

    by_column = made(df, validation="held")
    assert by_column.validate_rows == 2223 and same(by_column, made(df.repartition(3), validation="held"))
    second = made(df, validation=df.limit(800).repartition(2))
    assert (second.train_rows, second.validate_rows) == (20_000, 800)
    assert sum(name.endswith(".copies") for name in left(store)) == 0


@pytest.mark.parametrize("transform", [None, lambda batch: batch])
def test_values_are_counted_in_the_rows_that_train_when_copies_are_spread(
    spark: Any, store: Path, transform: Any
) -> None:
    df = spark.range(0, 600, 1, 3).selectExpr("id % 3 AS y", "ELT(id % 3 + 1, 'a', 'b', NULL) AS c")
    options: dict[str, Any] = {
        "features": {"c": "c", "y": "y"}, "impute": {"c": "most_frequent"}, "validation": 0.4, "partitions": 2,
        "encode": {"c": hy.Categories("index", min_frequency=90)}, "path": store, "transform": transform,
    }  # fmt: skip
    for seed in range(2):
        made = hy.Dataset.spark(df, seed=seed, **options).prepare()
        rows = np.concatenate([np.stack([part.inputs["c"], part.inputs["y"]], 1) for part in opened(made)])
        counts = np.bincount(rows[:, 1].astype(int))
        assert made.vocabularies["c"] == ["a", "b"] and counts[:2].min() >= 90 and counts[0] != counts[1]
        assert made.fills["c"] == ("a" if counts[0] > counts[1] else "b")
    assert hy.Dataset.spark(df.repartition(2), seed=1, **options).prepare().digest == made.digest


def test_rows_that_move_at_each_pass_are_refused(spark: Any, store: Path, tmp_path: Path) -> None:
    """Copies are numbered by task, so the tasks of two passes must have the same rows."""
    mark = str(tmp_path / "passes")

    def fewer_each_time(batch: pa.RecordBatch) -> pa.RecordBatch:
        with open(mark, "a") as file:
            file.write(".")
        return batch.slice(os.path.getsize(mark))

    df = spark.range(0, 100, 1, 2).selectExpr("id % 2 AS x")
    data = hy.Dataset.spark(df, features="x", partitions=2, path=store, transform=fewer_each_time)
    with pytest.raises(DataError, match=r"gave other rows.* 4 times"):
        data.prepare()
    assert left(store) == []


def test_rows_of_equal_features_go_together_whatever_their_label(spark: Any, store: Path) -> None:
    """Bug: the label was in the hash, so it decided which of the rows of equal features validated."""
    df = spark.range(0, 20_000, 1, 3).selectExpr("id % 5000 AS x", "CAST(id % 3 = 0 AS INT) AS label", "id + 1 AS w")
    manifest = hy.Dataset.spark(
        df, features="x", label="label", weight="w", validation=0.2, partitions=4, path=store
    ).prepare()
    parts = [part for kind in ("train", "validate") for part in opened(manifest, kind)]
    seen = [set(part.inputs.tolist()) for part in parts]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 5000
    rates = [np.concatenate([part.targets for part in side]).mean() for side in (parts[:4], parts[4:])]
    assert rates == pytest.approx([1 / 3, 1 / 3], abs=0.02)


def test_a_split_that_cannot_be_is_refused(spark: Any, store: Path) -> None:
    df = spark.range(0, 400, 1, 5).selectExpr("id AS x", "id % 3 AS user")
    options: dict[str, Any] = {"features": "x", "key": "user", "path": store}
    with pytest.raises(
        DataError,
        match=r"validation = 0\.2 chose \d+ of 400 rows: .* are 3 different ones; give key= .*, or name a column",
    ):
        hy.Dataset.spark(df, validation=0.2, partitions=1, **options).prepare()
    with pytest.raises(
        DataError,
        match=r"partition \d of 8 .* 400 rows: .* 3 different .*partitions=",
    ):
        hy.Dataset.spark(df, partitions=8, **options).prepare()
    assert left(store) == []


def test_rows_that_differ_between_two_passes_are_refused(spark: Any, store: Path, tmp_path: Path, caplog: Any) -> None:
    marks = str(tmp_path / "marks")

    def another_time(batch: pa.RecordBatch) -> pa.RecordBatch:
        first = not os.path.exists(marks)
        open(marks, "w").close()
        return batch if first else batch.slice(1)

    data = hy.Dataset.spark(
        numbered(spark, 100, 1).select("x", F.lit("a").alias("name")), features=["x", "name"], path=store,
        partitions=2, encode={"name": "index"}, transform=another_time,
    )  # fmt: skip
    with pytest.raises(DataError, match=r"100 rows .*categories.* 99 "):
        data.prepare()
    assert left(store) == [] and "not deterministic" not in caplog.text
    _say_not_deterministic.cache_clear()
    for _ in range(2):
        hy.Dataset.spark(numbered(spark).select(F.rand(1).alias("x")), features="x", partitions=2, path=store)
    assert caplog.text.count("the DataFrame is not deterministic, as Spark says") == 1


def test_deterministic_frames_are_recognized(spark: Any) -> None:
    """Bug: any VectorAssembler was called not deterministic: Spark marks it so, for its optimizer."""
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql.types import DoubleType

    df = numbered(spark).withColumn("y", F.col("x") * 2)
    assembled = VectorAssembler(inputCols=["x", "y"], outputCol="v").transform(df)
    chance = F.udf(lambda x: x, DoubleType()).asNondeterministic()
    for frame, is_so in (
        (df, True),
        (assembled, True),
        (assembled.filter("x > 1").select("v"), True),
        (df.withColumn("z", F.rand(1)), False),
        (VectorAssembler(inputCols=["x", "z"], outputCol="v").transform(df.withColumn("z", F.rand(1))), False),
        (assembled.withColumn("z", chance("x")), False),
        (df.select(chance("x").alias("z")).groupBy("z").count(), False),
    ):
        assert is_deterministic(frame) is is_so


@pytest.mark.parametrize("rows", [20, 126])
def test_a_share_that_chance_explains_is_no_error(spark: Any, store: Path, rows: int) -> None:
    """Bug: most seeds refused validation=0.2 of few rows, as another number of them was chosen."""
    df = spark.range(0, rows, 1, 2).selectExpr("id * 0.5 AS x")
    for seed in range(4):
        manifest = hy.Dataset.spark(
            df, features="x", validation=0.2, partitions=1, seed=seed, path=store / f"{seed}"
        ).prepare()
        assert 0 < manifest.validate_rows < rows / 2


def test_a_second_frame_validates(spark: Any, store: Path) -> None:
    data = hy.Dataset.spark(
        numbered(spark), features="x", label="n", partitions=3, path=store,
        validation=numbered(spark, 20, 2).withColumn("x", -F.col("x") - 1),
    )  # fmt: skip
    manifest = data.prepare()
    assert (manifest.train_rows, manifest.validate_rows) == (100, 20)
    assert all((columns.inputs >= 0).all() for columns in opened(manifest))
    assert sorted(-v for columns in opened(manifest, "validate") for v in columns.inputs.tolist()) == [
        n * 0.5 + 1 for n in range(20)
    ]
    assert [(source.rows, source.row_group) for source in manifest.sources] == [(100, -1), (20, -1)]


def test_weights_that_are_none(spark: Any, store: Path) -> None:
    df = numbered(spark, 20, 4).withColumn("held", F.col("n") % 2 == 0)

    def data(weight: Any) -> hy.Dataset:
        rows = df.withColumn("w", weight)
        return hy.Dataset.spark(
            rows, features="x", label="n", weight="w", partitions=2, validation="held", path=store
        )  # fmt: skip

    with pytest.raises(DataError, match=r"weight column 'w', row 0 of Spark partition 2: -1\.0 is below 0"):
        data(F.when(F.col("n") == 10, -1.0).otherwise(1.0)).prepare()
    with pytest.raises(DataError, match="'w': all validation rows"):
        data(F.col("n") % 2).prepare()
    assert left(store) == []
    assert data((F.col("n") > 17).cast("double")).prepare().weighted


@pytest.fixture
def kinds(tmp_path: Path) -> pa.Table:
    """200 rows of kinds that Spark has too."""
    n = np.arange(200)
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "n": n,
            "byte": (n % 100).astype(np.int8),
            "short": n.astype(np.int16),
            "int": n.astype(np.int32),
            "float": rng.normal(size=200).astype(np.float32),
            "double": rng.normal(3, 2, 200),
            "flag": n % 3 == 0,
            "carrier": np.array(["UA", "AA", "DL"])[n % 3],
            "pair": pa.array([[i, i + 0.5] for i in n.tolist()], pa.list_(pa.float64())),
            "words": pa.array([[i, i + 1] for i in n.tolist()], pa.list_(pa.int64())),
            "weight": rng.random(200),
            "late": (n % 4).astype(np.int32),
        }
    )
    pq.write_table(table, tmp_path / "kinds.parquet")
    return table


FEATURES = ["n", "byte", "short", "int", "float", "double", "flag", "carrier", "pair", "words"]


@pytest.mark.parametrize("encode", [{"carrier": ["UA", "DL", "AA"]}, {"carrier": "one-hot"}, {"carrier": "index"}])
def test_columns_become_what_they_become_from_files(
    spark: Any, store: Path, tmp_path: Path, kinds: pa.Table, encode: Any
) -> None:
    same: dict[str, Any] = {
        "features": FEATURES, "label": "late", "weight": "weight", "encode": encode, "partitions": 3,
        "standardize": ["double", "pair"],
    }  # fmt: skip
    df = spark.read.parquet(str(tmp_path / "kinds.parquet")).repartition(5)
    mine = hy.Dataset.spark(df, path=store, **same).prepare()
    file = hy.Dataset.arrow(kinds, **same).prepare()
    assert mine.vocabularies == file.vocabularies
    assert (mine.inputs, mine.targets, mine.weighted) == (file.inputs, file.targets, file.weighted)
    assert (mine.classes, mine.label_range) == (file.classes, file.label_range) == (4, (0.0, 3.0))
    for name, scale in file.standardize.items():
        assert np.allclose(mine.standardize[name].means, scale.means, rtol=1e-12)
        assert np.allclose(mine.standardize[name].deviations, scale.deviations, rtol=1e-12)
    assert np.allclose(in_order(mine), in_order(file), rtol=1e-6, atol=1e-6)
    every = np.concatenate([np.stack([c.inputs[:, 0], c.targets, c.weights], 1) for c in opened(mine)])
    assert np.array_equal(every[np.argsort(every[:, 0]), 1], kinds["late"].to_numpy())
    assert np.allclose(every[np.argsort(every[:, 0]), 2], kinds["weight"].to_numpy())


@pytest.mark.parametrize("transform", [None, lambda batch: batch])
def test_there_is_one_zero_among_categories(spark: Any, store: Path, transform: Any) -> None:
    rows = pa.table({"x": [-0.0, 1.5, 0.0, -0.0] * 10, "user": [f"user {n}" for n in range(40)]})
    same: dict[str, Any] = {"features": "x", "encode": {"x": "one-hot"}, "key": "user", "partitions": 2, "seed": 1}
    df = spark.createDataFrame(rows.to_pandas()).repartition(3)
    mine = hy.Dataset.spark(df, path=store, transform=transform, **same).prepare()
    file = hy.Dataset.arrow(rows, **same).prepare()
    assert repr(mine.vocabularies) == repr(file.vocabularies) == "{'x': [0.0, 1.5]}"
    assert mine.digest == file.digest


@pytest.mark.parametrize("name", ["short", "double", "flag", "words", "pair"])
def test_single_columns_keep_their_type(spark: Any, store: Path, tmp_path: Path, kinds: pa.Table, name: str) -> None:
    df = spark.read.parquet(str(tmp_path / "kinds.parquet"))
    same: dict[str, Any] = {"features": {"it": name, "n": "n"}, "partitions": 2}
    mine = hy.Dataset.spark(df, path=store, **same).prepare()
    file = hy.Dataset.arrow(kinds, **same).prepare()
    assert mine.inputs == file.inputs
    found, wanted = (
        {n: row.tolist() for c in opened(m) for n, row in zip(c.inputs["n"].tolist(), c.inputs["it"], strict=True)}
        for m in (mine, file)
    )
    assert found == wanted


def test_vectors_dense_and_sparse(spark: Any, store: Path) -> None:
    rows = [(n, Vectors.dense([n, 1.0, 2.0]) if n % 2 else Vectors.sparse(3, {1: float(n)})) for n in range(40)]
    df = spark.createDataFrame(rows, ["n", "v"]).repartition(3)
    manifest = hy.Dataset.spark(df, features="v", label="n", partitions=2, path=store, standardize=["v"]).prepare()
    assert manifest.inputs["inputs"].shape == (3,) and manifest.inputs["inputs"].dtype == "float32"
    values = np.array([v.toArray() for _, v in rows])
    wanted = ((values - values.mean(0)) / values.std(0)).astype(np.float32)
    for columns in opened(manifest):
        assert np.allclose(columns.inputs, wanted[columns.targets], atol=1e-6)


def png(value: int) -> bytes:
    """A picture of 2 x 2 pixels, all of one grey."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress(b"\0" + bytes([value] * 2) + b"\0" + bytes([value] * 2))
    header = part(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + part(b"IDAT", pixels) + part(b"IEND", b"")


def test_binary_files_and_images_by_transform(spark: Any, store: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "png").mkdir()
    for n in range(12):
        (tmp_path / "raw" / f"{n}.bin").write_bytes(bytes([n, n + 1, n + 2]))
        (tmp_path / "png" / f"{n}.png").write_bytes(png(n))

    def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = [np.frombuffer(cell.as_py(), np.uint8) for cell in batch["content"]]
        assert batch.schema.names == ["path", "modificationTime", "length", "content"]
        return pa.RecordBatch.from_arrays([pa.array([row.tolist() for row in rows], pa.list_(pa.uint8(), 3))], ["x"])

    manifest = hy.Dataset.spark(
        spark.read.format("binaryFile").load(str(tmp_path / "raw")),
        features="x", partitions=2, path=store, transform=decoded,
    ).prepare()  # fmt: skip
    assert manifest.inputs["inputs"].dtype == "uint8"
    found = np.concatenate([columns.inputs for columns in opened(manifest)])
    assert sorted(found.tolist()) == [[n, n + 1, n + 2] for n in range(12)]

    def pixels(batch: pa.RecordBatch) -> pa.RecordBatch:
        data = batch["image"].field("data").to_pylist()
        return pa.RecordBatch.from_arrays([pa.array([list(cell) for cell in data])], ["x"])

    images = spark.read.format("image").load(str(tmp_path / "png"))
    manifest = hy.Dataset.spark(images, features="x", partitions=2, path=store, transform=pixels).prepare()
    found = np.concatenate([columns.inputs for columns in opened(manifest)])
    assert sorted(found.tolist()) == [[n] * 4 for n in range(12)]


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Of this module, which executors cannot import; keeps rows with n < 60 and gives them a name."""
    n = np.asarray(batch["n"])
    n = n[n < 60]
    return pa.RecordBatch.from_arrays([pa.array(n * 2.0), pa.array([NAMES[i % 2] for i in n])], ["twice", "name"])


NAMES = ["odd", "even"]


def test_a_transform_sees_all_columns_and_its_values_are_found(spark: Any, store: Path) -> None:
    data = hy.Dataset.spark(
        numbered(spark).repartition(3), features=["twice", "name"], encode={"name": "one-hot"}, partitions=2,
        path=store, transform=doubled,
    )  # fmt: skip
    manifest = data.prepare()
    assert manifest.vocabularies == {"name": ["even", "odd"]} and manifest.rows == 60
    assert in_order(manifest).tolist() == [[2 * n, n % 2, (n + 1) % 2] for n in range(60)]


def test_one_spark_job_and_no_rows_through_the_driver(spark: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    whole = tasks.collected  # type: ignore[attr-defined]

    def counted(df: Any) -> list[Any]:
        rows = whole(df)
        told.extend(len(row[0]) for row in rows)
        return rows

    monkeypatch.setattr(tasks, "collected", counted)
    context = spark.sparkContext
    context.setJobGroup("counted", "")
    rows = 50_000
    manifest = hy.Dataset.spark(numbered(spark, rows, 2), features=["n", "x"], partitions=2, path=store).prepare()
    assert manifest.bytes == rows * 8
    assert len(told) == 2 and sum(told) < 12_000
    assert len(context.statusTracker().getJobIdsForGroup("counted")) == 1
    context.setJobGroup("", "")


def test_prepare_writes_once_and_a_pickle_has_the_url_alone(spark: Any, store: Path) -> None:
    data = hy.Dataset.spark(numbered(spark), features="x", label="n", partitions=2, path=store)
    manifest = data.prepare()
    files = left(store)
    assert len(files) == 7 + 2 and Path(str(data.url)).parent == store
    assert data.prepare() == manifest and left(store) == files
    for dumps in (pickle.dumps, cloudpickle.dumps):
        pickled = dumps(data)
        assert b"pyspark" not in pickled and len(pickled) < 2_000
        assert pickle.loads(pickled).prepare() == manifest
    moved = store.rename(store.with_name("moved"))
    again = hy.Dataset.open(moved / Path(str(data.url)).name).prepare()
    assert again.digest == manifest.digest
    assert sorted(v for columns in opened(again) for v in columns.targets.tolist()) == list(range(100))
    with pytest.raises(DataError, match=r"manifest\.json.*prepare\(\)"):
        pickle.loads(pickled).prepare()


def test_without_store_it_is_in_the_cache(spark: Any, data_cache: Path) -> None:
    data = hy.Dataset.spark(numbered(spark), features="x", partitions=2)
    manifest = data.prepare()
    assert Path(str(data.url)).parent == data_cache / "hopyard" / "data"
    small = hy.Dataset.numpy(np.zeros((9, 2)), partitions=1, cache_bytes=0).prepare()  # evicts all but what is held
    assert data.prepare().digest == manifest.digest
    del small


def test_a_name_finds_rows_again(spark: Any, store: Path, tmp_path: Path, kinds: pa.Table) -> None:
    path = tmp_path / "kinds.parquet"

    def made(partitions: int = 2, column: str = "double", **more: Any) -> Any:
        df = spark.read.parquet(str(path)).filter("n >= 0")
        options = {"name": "kinds-v1", **more}
        return hy.Dataset.spark(df, features=["n", column], partitions=partitions, path=store, **options)

    first = made()
    manifest = first.prepare()
    files = left(store)
    assert str(first.url).startswith(f"{store}/spark-kinds-v1-")
    assert made(name=np.str_("kinds-v1")).url == made().url == first.url
    assert made().prepare() == manifest and left(store) == files
    others = [
        made(3), made(column="float"), made(validation=0.5), made(standardize=True), made(name="kinds-v2"),
        made(name=None), made(key="n"), made(validation=spark.read.parquet(str(path))),
    ]  # fmt: skip
    assert len({first.url, *(other.url for other in others)}) == 9
    pq.write_table(kinds.slice(0, 100), path)  # the user vouches for the rows
    assert made().prepare() == manifest and left(store) == files
    assert made(name="kinds-v2").prepare().rows == 100


def test_a_name_goes_with_the_code_of_a_transform(
    spark: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def edited(factor: int) -> Any:
        (tmp_path / "sparkprep.py").write_text(
            f"def by():\n    return {factor}\ndef clean(batch):\n    return batch.slice(by())\n"
        )
        monkeypatch.delitem(sys.modules, "sparkprep", raising=False)
        importlib.invalidate_caches()
        transform = importlib.import_module("sparkprep").clean
        return hy.Dataset.spark(numbered(spark), features="n", path=store, transform=transform, name="n").url

    assert edited(1) == edited(1) != edited(2)


def test_a_name_of_rows_of_other_columns_is_refused(spark: Any, store: Path) -> None:
    def made(df: Any, **more: Any) -> Any:
        return hy.Dataset.spark(df, features="x", partitions=2, path=store, name="x", **more)

    df = numbered(spark)
    digest = made(df).prepare().digest
    assert made(df.withColumn("more", F.lit(1))).prepare().digest == digest  # a column that is not read
    changed = made(df.withColumn("x", F.col("x").cast("float")))
    with pytest.raises(SpecError, match=r"name = 'x': .*column 'x' .* float,.* double"):
        changed.prepare()
    keeps = {"transform": lambda batch: batch.select(["x"])}
    made(df, validation=df, **keeps).prepare()
    renamed = df.withColumnRenamed("n", "m")
    with pytest.raises(SpecError, match=r"validation= .*'n' is gone, .*'m' is new, .* big"):
        made(df, validation=renamed, **keeps).prepare()
    assert len(list(store.iterdir())) == 2


def test_any_name_of_a_column(spark: Any, store: Path) -> None:
    names = ["a.b", "c`d", "e f", "é", "plain.also"]
    df = spark.createDataFrame([tuple(float(n + k) for k in range(5)) for n in range(4)], names)
    data = hy.Dataset.spark(df, features=names[:4], label="plain.also", partitions=1, path=store)
    columns = open_partition(data.prepare(), "train", 0)
    assert sorted(columns.inputs[:, 0].tolist()) == [0.0, 1.0, 2.0, 3.0]
    assert (columns.inputs[:, 3] + 1 == columns.targets).all()
    twins = spark.createDataFrame([(1.0, 2.0)], ["x", "X"])
    with pytest.raises(DataError, match=r"has columns 'x', 'X', which are one to Spark: rename"):
        hy.Dataset.spark(twins, features=["x"], partitions=1, path=store)


def test_times_and_null_vectors_are_named_in_errors(spark: Any, store: Path) -> None:
    df = spark.sql("select timestamp'2020-01-01' t, 1 y")
    with pytest.raises(DataError, match=r"column 't' .* has type timestamp"):
        hy.Dataset.spark(df, features=["t"], label="y", partitions=1, path=store)
    rows = [(Vectors.dense([1.0, 2.0]), 0), (None, 1)]
    schema = T.StructType([T.StructField("v", VectorUDT()), T.StructField("y", T.IntegerType())])
    df = spark.createDataFrame(rows, schema).repartition(2, "y")
    with pytest.raises(DataError, match=r"'v': 1 of .* null"):
        hy.Dataset.spark(df, features="v", label="y", partitions=1, path=store).prepare()


def linear(config: dict[str, Any]) -> Any:
    from hopyard.frameworks.linear import Linear

    return Linear(6, 2, lr=config["lr"], batch_size=16)


def test_runs_on_it_have_equal_digests_and_resume(spark: Any, store: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 6))
    rows = [(row.tolist(), int(row.sum() > 0)) for row in x]
    df = spark.createDataFrame(rows, T.StructType([
        T.StructField("x", T.ArrayType(T.DoubleType())), T.StructField("y", T.IntegerType()),
    ])).repartition(3)  # fmt: skip
    data = hy.Dataset.spark(df, features="x", label="y", validation=0.25, partitions=3, seed=1, path=store)

    def trained(name: str, given: Any, engine: Any) -> Any:
        run = hy.fit(linear, {"lr": 0.1}, given, epochs=2, engine=engine, directory=tmp_path / name)
        assert run.status == "completed"
        return run.trials[0].digest

    states = {
        trained("spark", data, hy.Local(workers=1)),
        trained("open", hy.Dataset.open(str(data.url)), hy.Local(workers=1)),
        trained("inline", hy.Dataset.open(str(data.url)), hy.Inline()),
    }
    assert len(states) == 1
    again = hy.fit(linear, {"lr": 0.1}, data, epochs=2, engine=hy.Inline(), directory=tmp_path / "spark", resume=True)
    assert {again.trials[0].digest} == states
    assert hy.resume(tmp_path / "open")._checked_data().prepare().digest == data.prepare().digest


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"features": "none"}, DataError, r"the DataFrame has no column 'none'.*there are: 'n', 'x'"),
    ({"features": "text"}, DataError, r"column 'text' of the DataFrame has type string, no number.*encode="),
    ({"validation": 2}, SpecError, "validation must be a fraction .* or a DataFrame, got 2"),
    ({"validation": "x"}, DataError, "validation must be a column of true and false, got 'x'"),
    ({"validation": "other"}, DataError, "no column 'other'"),
    ({"partitions": 0}, SpecError, "partitions must be .*, got 0"),
    ({"path": 5}, SpecError, "path must be a path or URL that driver and executors share, .* got 5"),
    ({"path": "nowhere://x"}, SpecError, "path: host .* cannot open nowhere://x"),
    ({"path": "memory://x"}, SpecError, "got memory://x/.*: host .* does not see what the driver wrote there"),
    ({"path": "/proc/nowhere"}, SpecError, "path: host .* cannot write to /proc/nowhere"),
    ({"name": 1}, SpecError, "name = 1: 1 to 64 letters"),
    ({"name": "a/b"}, SpecError, 'name = .a/b.: 1 to 64 letters of ASCII, digits, "."'),
    (
        {"encode": {"text": "one-hot"}, "features": ["text"], "label": None, "partitions": 5, "key": "text"},
        DataError,
        r"got none of 50 rows: .* key=\['text'\] .* there are 2 different ones; give fewer .*, key= columns of more",
    ),
    ({"encode": {"text": ["a"]}, "features": ["text"]}, DataError, r"column 'text', row \d+ of Spark partition .*'b'"),
    (
        {"partitions": 51},
        DataError,
        r"partition \d+ of 51 for training got none of 50 rows: a hash of .* draws it; give fewer partitions=",
    ),
    (
        {"validation": 0.01},
        DataError,
        r"partition \d of 2 for validation got none of 50 rows: .*; give fewer partitions= than 2, a larger val",
    ),
    ({"key": "none"}, DataError, "no column 'none'"),
    ({"key": 3.5}, SpecError, r"key must be the name of a column or a list of such names, got 3\.5"),
    ({"standardize": ["n"], "features": ["x"]}, SpecError, "standardize names 'n'"),
    ({"transform": 3}, SpecError, "transform must be .*, got 3"),
    ({"transform": lambda batch: 1 / 0}, DataError, "transform raised ZeroDivisionError on a batch of Spark partition"),
    ({"transform": lambda batch: 1}, DataError, "transform gave int for Spark partition 0, rows from 0"),
    ({"transform": lambda batch: batch.slice(0, 0)}, DataError, "the DataFrame has no rows"),
    ({"transform": lambda batch: batch.select(["n"])}, DataError, "has no column 'x'"),
]


@pytest.mark.parametrize("at", range(len(BAD)), ids=[next(iter(given)) for given, _, _ in BAD])
def test_bad_arguments(spark: Any, tmp_path: Path, at: int) -> None:
    given, error, message = BAD[at]
    df = spark.range(0, 50, 1, 2).select(
        F.col("id").alias("n"), (F.col("id") * 0.5).alias("x"),
        F.when(F.col("id") % 2 == 0, "a").otherwise("b").alias("text"),
    )  # fmt: skip
    options = {"features": ["x"], "label": "n", "partitions": 2, "path": tmp_path / "store", **given}
    with pytest.raises(error, match=message) as caught:
        hy.Dataset.spark(df, **options).prepare()
    assert len(str(caught.value)) < 1_000
    assert left(tmp_path) == []


def made_of(spark: Any, kind: Any, rows: list[list[Any]]) -> Any:
    """A DataFrame of one column `v`, with exactly these partitions."""
    schema = T.StructType([T.StructField("v", kind)])
    parts = spark.sparkContext.parallelize(range(len(rows)), len(rows))
    return spark.createDataFrame(parts.flatMap(lambda number: [(value,) for value in rows[number]]), schema)


V = Vectors.dense


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, None, 2.0], [3.0, math.nan, math.inf]], "column 'v': 3 of its rows .*row 1 of Spark partition 0"),
        ([[1.0], [2.0, 1e300]], "column 'v': 1 of its rows .*row 1 of Spark partition 1"),
        ([[V([1, 2]), V([1, 2, 3])]], r"column 'v' of Spark partition 0: rows differ in length, 2 values and then 3"),
        ([[V([1, 2])], [V([1, 2, 3])]], r"column 'v': rows of shape \(3,\) in Spark partition 1 but \(2,\) in Spark"),
        ([[[1.0]], [[2.0, 3.0]]], r"column 'v': rows of shape \(2,\) in Spark partition 1 but \(1,\) in Spark"),
        ([[V([1, 2]), None]], "column 'v': 1 of its rows .*row 1 of Spark partition 0"),
        ([[1.0], []], "partition . of 2 .*none of 1 rows: .* draws it"),
    ],
)  # fmt: skip
def test_bad_values(spark: Any, store: Path, rows: list[list[Any]], message: str) -> None:
    from pyspark.ml.linalg import VectorUDT

    first = rows[0][0]
    kind: T.DataType = T.DoubleType() if isinstance(first, float) else VectorUDT()
    kind = T.ArrayType(T.DoubleType()) if isinstance(first, list) else kind
    partitions = 2 if "of 2" in message else 1
    with pytest.raises(DataError, match=r"(?s)" + message):
        hy.Dataset.spark(made_of(spark, kind, rows), features="v", partitions=partitions, path=store).prepare()
    assert left(store) == []


def test_a_bad_second_frame(spark: Any, store: Path) -> None:
    df = numbered(spark)
    for second, message in (
        (df.drop("x"), "the validation= DataFrame has no column 'x'"),
        (df.withColumn("x", F.col("n")), "'x' has type int64 .*validation= .*double"),
    ):
        with pytest.raises(DataError, match=message):
            hy.Dataset.spark(df, features="x", validation=second, path=store)
    with pytest.raises(DataError, match=r"row \d+ of Spark partition \d of validation="):
        bad = df.withColumn("x", F.when(F.col("n") != 7, F.col("x")))
        hy.Dataset.spark(df, features="x", validation=bad, partitions=2, path=store).prepare()
    assert left(store) == []


def test_a_streaming_frame_is_refused(spark: Any, store: Path) -> None:
    for given in (5, pa.table({"x": [1.0]})):
        with pytest.raises(SpecError, match=rf"df must be .*, got {type(given).__name__}"):
            hy.Dataset.spark(given, features="x", path=store)
    with pytest.raises(SpecError, match="a streaming DataFrame has no end"):
        hy.Dataset.spark(spark.readStream.format("rate").load(), features="value", path=store)
    with pytest.raises(DataError, match="the DataFrame has no rows"):
        hy.Dataset.spark(numbered(spark).filter("n < 0"), features="x", path=store).prepare()
    with pytest.raises(DataError, match="has 2 columns named 'x'"):
        df = numbered(spark)
        hy.Dataset.spark(df.select("x", "x"), features="x", path=store)


def test_a_cluster_of_other_hosts_needs_a_store(spark: Any) -> None:
    refusing = "spark.sql.legacy.setCommandRejectsSparkCoreConfs"
    before = spark.conf.get("spark.master")
    spark.conf.set(refusing, "false")
    spark.conf.set("spark.master", "yarn")
    try:
        with pytest.raises(SpecError, match=r"path = None: .*\(yarn\)"):
            hy.Dataset.spark(numbered(spark), features="x")
    finally:
        spark.conf.set("spark.master", before)
        spark.conf.unset(refusing)


def test_a_full_disk(spark: Any, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("1m")
    data = hy.Dataset.spark(numbered(spark, 1_000_000, 2), features=["x", "n"], partitions=2, path=disk)
    with pytest.raises(ResourceError, match=r"path: no room in .* on host .*give path= another place"):
        data.prepare()
    assert left(disk) == []
    assert hy.Dataset.spark(numbered(spark, 1000, 2), features="x", partitions=2, path=disk).prepare().rows == 1000


def test_a_failed_job_leaves_nothing(spark: Any, store: Path) -> None:
    from pyspark.errors import PySparkException

    def fails(n: int) -> float:
        if n == 99:
            raise RuntimeError("the moon is in the wrong house")
        return float(n)

    df = numbered(spark, 100, 2).withColumn("x", F.udf(fails, "double", useArrow=False)("n"))
    with pytest.raises(PySparkException, match="the moon"):
        hy.Dataset.spark(df, features="x", partitions=2, path=store).prepare()
    assert left(store) == [] and list(store.iterdir()) == []


def test_a_task_that_is_killed_is_done_again_and_leaves_no_orphan(spark: Any, store: Path, tmp_path: Path) -> None:
    once = str(tmp_path / "once")

    def killing(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 60_000 in batch["n"].to_pylist():
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return batch
            os.kill(os.getpid(), 9)
        return batch

    df = numbered(spark, 80_000, 2)
    manifest = hy.Dataset.spark(df, features="x", label="n", partitions=2, path=store, transform=killing).prepare()
    assert Path(once).exists() and manifest.rows == 80_000
    assert sum(name.endswith(".seg") for name in left(store)) == 2
    assert sorted(v for columns in opened(manifest) for v in columns.targets.tolist()) == list(range(80_000))


def test_rows_that_are_encoded_cannot_be_read_as_rows(spark: Any, store: Path) -> None:
    data = hy.Dataset.spark(numbered(spark), features="x", partitions=2, path=store)
    data.prepare()
    kept = hy.Dataset.open(str(data.url))
    for one in (data, kept):
        with pytest.raises(SpecError, match=r"are encoded already.*toPandas"):
            one.rows.source.pieces([], [])
        with pytest.raises(SpecError, match="are encoded already"):
            hy.Dataset.numpy(np.zeros((4, 1)), validation=one)


def test_open_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{tmp_path}/none: .*manifest\.json"):
        hy.Dataset.open(tmp_path / "none")
    (tmp_path / "manifest.json").write_text("{\n")
    with pytest.raises(DataError, match=r"manifest\.json: cannot be read"):
        hy.Dataset.open(tmp_path)
    (tmp_path / "manifest.json").write_text(f'{{"format": {FORMAT + 1}, "key": "k"}}\n')
    with pytest.raises(DataError, match=f"of version {FORMAT + 1}, this Hopyard reads up to {FORMAT}: upgrade it"):
        hy.Dataset.open(tmp_path)
    entry = hy.Dataset.numpy(np.zeros((4, 1)), partitions=1).prepare()
    with pytest.raises(DataError, match="entry of a cache"):
        hy.Dataset.open(entry.path)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("campaign", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_one_script_runs_on_any_number_of_executors(spark: Any, tmp_path: Path, campaign: bool) -> None:
    """On the two of this process's session, and in sessions of other settings, which are stopped at last."""
    forms = spark_fits.FORMS if campaign else ["as it is", "join"]
    rng = np.random.default_rng(0)
    folder = tmp_path / "several"
    folder.mkdir()
    for number in range(5):
        x = rng.normal(size=(300, 6))
        columns = {f"x{n}": x[:, n] for n in range(6)}
        pq.write_table(
            pa.table({**columns, "y": (x.sum(1) > 0).astype(np.int32), "user": rng.integers(0, 9, 300)}),
            folder / f"{number}.parquet",
        )
    spark.conf.set("spark.sql.files.maxPartitionBytes", "20000")
    try:
        found = {json.dumps(digests) for digests in spark_fits.fits(spark, folder, tmp_path / "runs", forms)}
        ours = spark_fits.named(spark, folder, tmp_path / "store")
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    settings: dict[int, dict[str, str]] = {1: {"spark.sql.adaptive.enabled": "false"}}
    if campaign:
        settings[2] = {"spark.sql.adaptive.enabled": "true", "spark.speculation": "true"}
        settings[3] = {
            "spark.sql.files.maxPartitionBytes": "20000",
            "spark.speculation": "true",
            "spark.sql.shuffle.partitions": "4",
        }
        settings[5] = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    for executors, given in settings.items():
        runs = tmp_path / f"runs-{executors}"
        done = subprocess.run(
            [
                *(sys.executable, spark_fits.__file__, str(executors), ",".join(forms)),
                *(str(folder), str(runs), str(tmp_path / "store"), *sum(given.items(), ())),
            ],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [line for line in done.stdout.splitlines() if line.startswith('["')]
        assert len(lines) == len(forms)
        found.update(lines)
        assert done.stdout.splitlines()[-2:] == [ours, "all well"]  # the same name, in another session
        assert not list((tmp_path / "store").rglob("*probe"))
    assert len(found) == 1
