"""DataFrames to TFRecord files and back, on real executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("google_crc32c")

import hopyard as hy
from hopyard.errors import DataError, ResourceError, SpecError
from hopyard.formats.example import encode
from hopyard.formats.tfrecord import framed
from hopyard.spark.tfrecords import load_tfrecords, save_tfrecords

pytestmark = pytest.mark.spark

SCHEMA = (
    "n bigint, byte tinyint, short smallint, flag boolean, single float, double double, text string, binary binary, "
    "ints array<int>, flags array<boolean>, floats array<float>, doubles array<double>, texts array<string>, "
    "binaries array<binary>, empty array<int>, none double"
)
BINARY = ["binary", "binaries"]


def row(n: int) -> tuple[Any, ...]:
    if n % 5 == 4:
        return (n, *[None] * 15)
    return (
        n, n, -n, n % 2 == 0, n + 0.1, n + 0.1, f"é{n}", bytes([255, n]), list(range(n % 4)), [True, False],
        [n + 0.5], [0.1] * (n % 3), [f"t{n}"] * (n % 3), [b"\xff"] * (n % 2), [], None,
    )  # fmt: skip


@pytest.fixture
def df(spark: Any) -> Any:
    return spark.createDataFrame([row(n) for n in range(20)], SCHEMA).repartition(3, "n")


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def count(spark: Any, rows: int, slices: int = 2) -> Any:
    return spark.range(0, rows, 1, slices)


class TestThereAndBack:
    def test_all_types(self, spark: Any, df: Any, tmp_path: Path) -> None:
        save_tfrecords(df, tmp_path / "rows")
        assert names(tmp_path / "rows") == ["_SUCCESS", "part-r-00000", "part-r-00001", "part-r-00002"]
        found = load_tfrecords(spark, tmp_path / "rows", binary_features=BINARY)
        types = dict(found.dtypes)
        assert found.columns == sorted(df.columns)
        assert types == {
            "n": "bigint", "byte": "bigint", "short": "bigint", "flag": "bigint", "single": "double",
            "double": "double", "text": "string", "binary": "binary", "ints": "array<bigint>",
            "flags": "array<bigint>", "floats": "double", "doubles": "array<double>", "texts": "array<string>",
            "binaries": "array<binary>", "empty": "array<bigint>", "none": "string",
        }  # fmt: skip
        assert found.rdd.getNumPartitions() == 3
        mine = [one.asDict() for one in found.orderBy("n").collect()]
        for one, other in zip(mine, [one.asDict() for one in df.orderBy("n").collect()], strict=True):
            for name, value in other.items():
                expected = value
                if name == "floats" and value is not None:  # one value in each record: no list to be seen
                    (expected,) = value
                if name in ("single", "double", "doubles") and value is not None:
                    expected = pytest.approx(value, rel=1e-6)
                assert one[name] == expected, name

    def test_through_a_glob_a_file_and_a_list(self, spark: Any, tmp_path: Path) -> None:
        save_tfrecords(count(spark, 10), f"file:{tmp_path}/rows")  # as Spark and Hadoop print it
        both = [f"{tmp_path}/rows/part-r-00001", f"file://{tmp_path}/rows/part-r-00000"]
        for path, expected in [
            (both, [*range(5, 10), *range(5)]),
            (both[0], range(5, 10)),
            (f"{tmp_path}/*/part*", range(10)),
        ]:
            assert [one.id for one in load_tfrecords(spark, path).collect()] == list(expected)  # type: ignore[arg-type]

    def test_a_list_that_only_the_last_file_shows(self, spark: Any, tmp_path: Path) -> None:
        import pyarrow as pa

        for number, values in enumerate([[1], [2], [[3, 4]]]):
            data = encode(pa.RecordBatch.from_pydict({"x": values, f"only{number}": ["a"]}))
            (tmp_path / f"part-r-0000{number}").write_bytes(b"".join(map(framed, data)))
        found = load_tfrecords(spark, tmp_path)
        assert dict(found.dtypes) == {"only0": "string", "only1": "string", "only2": "string", "x": "array<bigint>"}
        assert [one.x for one in found.collect()] == [[1], [2], [3, 4]]
        assert [one.only1 for one in found.collect()] == [None, "a", None]

    def test_names_of_any_kind(self, spark: Any, tmp_path: Path) -> None:
        df = spark.createDataFrame([(1, 2)], ["a.b", "c`d"])
        save_tfrecords(df, tmp_path / "rows")
        assert load_tfrecords(spark, tmp_path / "rows").first().asDict() == {"a.b": 1, "c`d": 2}

    def test_empty_partitions_are_files(self, spark: Any, tmp_path: Path) -> None:
        save_tfrecords(count(spark, 2, 4), tmp_path / "rows")
        assert len(names(tmp_path / "rows")) == 5
        assert load_tfrecords(spark, tmp_path / "rows").count() == 2

    def test_a_dataset_of_it(self, spark: Any, tmp_path: Path) -> None:
        save_tfrecords(count(spark, 100), tmp_path / "rows")
        manifest = hy.Dataset.tfrecord(tmp_path / "rows", features="id").prepare(tmp_path / "cache")
        assert sum(part.rows for part in manifest.train) == 100

    def test_read_by_tensorflow(self, df: Any, tmp_path: Path) -> None:
        tf = pytest.importorskip("tensorflow")
        save_tfrecords(df, tmp_path / "rows")
        single = {"n": tf.io.FixedLenFeature([], tf.int64), "text": tf.io.FixedLenFeature([], tf.string, "none")}
        ragged = {"doubles": tf.io.RaggedFeature(tf.float32), "binaries": tf.io.RaggedFeature(tf.string)}
        seen = set()
        for record in tf.data.TFRecordDataset([str(path) for path in (tmp_path / "rows").glob("part-*")]):
            found = tf.io.parse_single_example(record, single | ragged)
            n = int(found["n"])
            expected = dict(zip(df.columns, row(n), strict=True))
            assert found["text"].numpy().decode() == (expected["text"] or "none")
            assert found["doubles"].numpy().tolist() == pytest.approx(expected["doubles"] or [], rel=1e-6)
            assert found["binaries"].numpy().tolist() == (expected["binaries"] or [])
            seen.add(n)
        assert seen == set(range(20))


class TestWriting:
    def test_refuses_what_is_there(self, spark: Any, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(SpecError, match=r"holds 1 files or folders, 'notes.txt' .*mode=\"overwrite\""):
            save_tfrecords(count(spark, 1), tmp_path)
        with pytest.raises(SpecError, match=r"notes.txt' is a file"):
            save_tfrecords(count(spark, 1), tmp_path / "notes.txt", mode="overwrite")
        assert names(tmp_path) == ["notes.txt"]

    def test_an_empty_directory_will_do(self, spark: Any, tmp_path: Path) -> None:
        save_tfrecords(count(spark, 1, 1), tmp_path)
        assert names(tmp_path) == ["_SUCCESS", "part-r-00000"]

    def test_overwrites_its_own_source(self, spark: Any, tmp_path: Path) -> None:
        save_tfrecords(count(spark, 10, 4), tmp_path / "rows")
        found = load_tfrecords(spark, tmp_path / "rows")
        save_tfrecords(found.filter("id > 4").coalesce(1), tmp_path / "rows", mode="overwrite")
        assert names(tmp_path / "rows") == ["_SUCCESS", "part-r-00000"]
        assert [one.id for one in load_tfrecords(spark, tmp_path / "rows").collect()] == list(range(5, 10))

    @pytest.mark.parametrize("there", [False, True])
    def test_leaves_nothing_behind(self, spark: Any, tmp_path: Path, there: bool) -> None:
        df = spark.createDataFrame([([1],)] * 5 + [([None],)] + [([2],)] * 4, "x array<int>")
        place = tmp_path / "rows"
        if there:
            save_tfrecords(count(spark, 3, 1), place)
        with pytest.raises(DataError, match=r"partition 1, rows from 0: column 'x': .* null"):
            save_tfrecords(df, place, mode="overwrite")
        assert (names(place) if place.exists() else []) == (["_SUCCESS", "part-r-00000"] if there else [])

    def test_a_job_that_fails(self, spark: Any, tmp_path: Path) -> None:
        with pytest.raises(Exception, match="mine"):
            save_tfrecords(
                spark.sql("select raise_error('mine') as x from range(3)").selectExpr("string(x) x"), tmp_path / "rows"
            )
        assert not (tmp_path / "rows").exists()

    def test_no_room(self, spark: Any, small_disk: Any) -> None:
        place = small_disk("1m")
        with pytest.raises(ResourceError, match="no room in"):
            save_tfrecords(spark.range(100_000).selectExpr("id", "repeat('x', 100) text"), place / "rows")
        assert not (place / "rows").exists()

    @pytest.mark.parametrize(
        "kind", ["date", "timestamp", "decimal(5,2)", "array<array<int>>", "map<string,int>", "struct<a:int>"]
    )
    def test_types_that_are_not_there(self, spark: Any, tmp_path: Path, kind: str) -> None:
        df = spark.createDataFrame([], f"good int, x {kind}")
        with pytest.raises(DataError, match=r"column 'x' has type .*, which TFRecord lacks; .* cast it"):
            save_tfrecords(df, tmp_path / "rows")
        assert not (tmp_path / "rows").exists()

    def test_what_is_not_allowed(self, spark: Any, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"mode must be .* got 'append'"):
            save_tfrecords(count(spark, 1), tmp_path, mode="append")  # type: ignore[arg-type]
        with pytest.raises(SpecError, match=r"df must .* list"):
            save_tfrecords([1], tmp_path)
        with pytest.raises(SpecError, match=r"path must be .* got None"):
            save_tfrecords(count(spark, 1), None)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match="nosuch://x"):
            save_tfrecords(count(spark, 1), "nosuch://x")

    def test_a_place_that_executors_do_not_share(self, spark: Any) -> None:
        with pytest.raises(SpecError, match=r"got memory://.* does not see"):
            save_tfrecords(count(spark, 1), "memory://rows")


class TestReading:
    @pytest.fixture
    def place(self, spark: Any, tmp_path: Path) -> Path:
        save_tfrecords(spark.range(0, 10, 1, 2).selectExpr("id", "binary(concat('x', id)) text"), tmp_path / "rows")
        return tmp_path / "rows"

    def test_damage_is_reported_while_reading_columns(self, spark: Any, place: Path) -> None:
        path = place / "part-r-00001"
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(DataError, match=r"^/.*part-r-00001, record 4, byte \d+: .*cut off") as caught:
            load_tfrecords(spark, place)
        assert "Traceback" not in str(caught.value)

    def test_damage_later(self, spark: Any, place: Path) -> None:
        found = load_tfrecords(spark, place)
        (place / "part-r-00001").write_bytes(b"other")
        with pytest.raises(Exception, match=r"part-r-00001, record 0, byte 0: this is no TFRecord file"):
            found.collect()

    def test_two_kinds_in_two_files(self, spark: Any, place: Path) -> None:
        import pyarrow as pa

        data = encode(pa.RecordBatch.from_pydict({"id": ["a"]}))
        (place / "part-r-00002").write_bytes(b"".join(map(framed, data)))
        with pytest.raises(DataError, match=r"'id' .*whole .*record 0 of .*part-r-00000 .*bytes in record 0"):
            load_tfrecords(spark, place)

    def test_no_text(self, spark: Any, tmp_path: Path) -> None:
        save_tfrecords(spark.createDataFrame([(b"\xff",)], "x binary"), tmp_path / "rows")
        with pytest.raises(Exception, match=r"feature 'x' is no text .* name it in binary_features"):
            load_tfrecords(spark, tmp_path / "rows").collect()
        assert load_tfrecords(spark, tmp_path / "rows", ["x"]).first().x == b"\xff"

    def test_no_records(self, spark: Any, tmp_path: Path) -> None:
        save_tfrecords(count(spark, 4).filter("id < 0"), tmp_path / "rows")
        with pytest.raises(DataError, match="no records"):
            load_tfrecords(spark, tmp_path / "rows")
        nothing = spark.createDataFrame(spark.sparkContext.emptyRDD(), "x int")  # no partition, so no file
        save_tfrecords(nothing, tmp_path / "empty")
        with pytest.raises(DataError, match="empty: no records"):
            load_tfrecords(spark, tmp_path / "empty")

    def test_what_is_not_allowed(self, spark: Any, place: Path) -> None:
        with pytest.raises(SpecError, match="spark must be a SparkSession, got SparkContext"):
            load_tfrecords(spark.sparkContext, place)
        with pytest.raises(SpecError, match=r"binary_features must .* 'text'"):
            load_tfrecords(spark, place, "text")
        with pytest.raises(SpecError, match=r"binary_features names 'tex'.*did you mean 'text'"):
            load_tfrecords(spark, place, ["tex"])
        with pytest.raises(DataError, match="no TFRecord file matches"):
            load_tfrecords(spark, place / "nothing")
