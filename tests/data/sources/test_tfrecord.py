"""TFRecord files: records, Examples, columns from all records, and what is said of damaged ones; against TensorFlow."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("google_crc32c")

import hopyard as hy
from hopyard.data.sources.tfrecord import TFRecordFiles, batches, find
from hopyard.errors import DataError, SpecError
from hopyard.formats.example import Seen, decode, encode, look, merge, schema
from hopyard.formats.tfrecord import checksum, framed, records

GZIP = gzip.compress(b"abc", mtime=0)
ROWS = pa.RecordBatch.from_pydict(
    {
        "binary": pa.array([b"\xff\xfe", b"", None, b"\x00"], pa.binary()),
        "blobs": pa.array([[b"\xff"], [], None, [b"a", b""]], pa.list_(pa.binary())),
        "double": pa.array([1.5, -0.1, None, 3e300], pa.float64()),
        "flag": [True, False, None, True],
        "floats": pa.array([[1.0, 2.0], [], None, [0.1]], pa.list_(pa.float64())),
        "int": pa.array([1, -2, None, 2**63 - 1], pa.int64()),
        "ints": pa.array([[1, -2], [], None, [-(2**63)]], pa.list_(pa.int64())),
        "none": pa.array([None] * 4, pa.int32()),
        "text": ["a", "é", None, ""],
        "texts": pa.array([["a", "日本"], [], None, ["x"]], pa.list_(pa.string())),
    }
)


def write(path: Path, payloads: Iterable[bytes]) -> str:
    path.write_bytes(b"".join(map(framed, payloads)))
    return str(path)


def rows(**columns: Any) -> list[bytes]:
    return list(encode(pa.RecordBatch.from_pydict(columns)))


def read(path: str, binary: Iterable[str] = ()) -> Any:
    made = TFRecordFiles([path], binary)  # type: ignore[arg-type]
    return pa.Table.from_batches([piece[0] for piece in made.pieces(None, [])], made.schema())


class TestRecords:
    def test_checksum_is_that_of_the_specification(self) -> None:
        crc = 0xE3069283  # CRC-32C of "123456789", RFC 3720
        assert checksum(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32

    @pytest.mark.parametrize("name", ["a", "a.gz"])
    def test_read_back(self, tmp_path: Path, name: str) -> None:
        payloads = [b"", b"x" * 100, b"y" * (3 << 20)]
        data = b"".join(map(framed, payloads))
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        assert list(records(str(tmp_path / name))) == payloads

    def test_no_records(self, tmp_path: Path) -> None:
        assert list(records(write(tmp_path / "a", []))) == []

    def test_a_record_at_a_time(self, tmp_path: Path) -> None:
        """What is read after a record that was taken does not matter yet."""
        path = write(tmp_path / "a", [b"x" * (2 << 20), b"y"])
        with (tmp_path / "a").open("ab") as stream:
            stream.write(b"rest")
        taken = records(path)
        assert len(next(taken)) == 2 << 20
        assert next(taken) == b"y"
        with pytest.raises(DataError, match="cut off"):
            next(taken)

    @pytest.mark.parametrize("at", range(12, 24))
    def test_damaged_length(self, tmp_path: Path, at: int) -> None:
        path = write(tmp_path / "a", [b"", b"abc"])
        (tmp_path / "a").write_bytes(
            bytes(byte ^ (n == 16 + at - 12) for n, byte in enumerate((tmp_path / "a").read_bytes()))
        )
        with pytest.raises(DataError, match=r"a, record 1, byte 16: the length"):
            list(records(path))

    @pytest.mark.parametrize("at", range(28, 35))
    def test_damaged_data(self, tmp_path: Path, at: int) -> None:
        path = write(tmp_path / "a", [b"", b"abc"])
        (tmp_path / "a").write_bytes(bytes(byte ^ (n == at) for n, byte in enumerate((tmp_path / "a").read_bytes())))
        with pytest.raises(DataError, match=r"a, record 1, byte 16: the 3 bytes"):
            list(records(path))

    @pytest.mark.parametrize("kept", range(17, 35))
    def test_cut_off(self, tmp_path: Path, kept: int) -> None:
        path = write(tmp_path / "a", [b"", b"abc"])
        (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:kept])
        with pytest.raises(DataError, match=r"a, record 1, byte 16: .*cut off"):
            list(records(path))

    def test_cut_off_compressed(self, tmp_path: Path) -> None:
        whole = gzip.compress(framed(b"a") + framed(bytes(range(256)) * 9), mtime=0)
        (tmp_path / "a.gz").write_bytes(whole[:-12])
        with pytest.raises(DataError, match=r"record 1, byte 17: .*cut off .*compressed"):
            list(records(str(tmp_path / "a.gz")))

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"PAR1" + bytes(20), "looks like Parquet"),
            (
                gzip.compress(b"abc", mtime=0),
                'looks like gzip; such a file is decompressed if its name ends with ".gz"',
            ),
            (b"a,b\n1,2\n3,4\n", "its first bytes are 61 2c"),
            (b"abc", "its first bytes are 61 62 63"),
        ],
    )
    def test_another_kind_of_file(self, tmp_path: Path, data: bytes, words: str) -> None:
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(DataError, match="a, record 0, byte 0: this is no TFRecord file") as caught:
            list(records(str(tmp_path / "a")))
        assert words in str(caught.value)

    def test_no_gzip(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="record 0, byte 0: cannot be read: Not a gzipped file"):
            list(records(write(tmp_path / "a.gz", [b"abc"])))

    def test_no_protobuf_is_so_large(self, tmp_path: Path) -> None:
        length = struct.pack("<Q", 1 << 40)
        (tmp_path / "a").write_bytes(framed(b"") + length + struct.pack("<I", checksum(length)))
        with pytest.raises(DataError, match="record 1, byte 16"):
            list(records(str(tmp_path / "a")))

    def test_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"record 0, byte 0: cannot be read: .*No such file"):
            list(records(str(tmp_path / "a")))


class TestExamples:
    def test_there_and_back(self, tmp_path: Path) -> None:
        found = read(write(tmp_path / "a", encode(ROWS)), ["binary", "blobs"])
        assert found.column_names == sorted(ROWS.schema.names)
        for name in ROWS.schema.names:
            expected = ROWS.column(name)
            if name in ("double", "floats"):
                kind = pa.float32() if name == "double" else pa.list_(pa.float32())
                expected = expected.cast(kind, safe=False)
            elif name == "flag":
                expected = expected.cast(pa.int64())
            elif name == "none":
                expected = pa.array([None] * 4, pa.string())
            assert found[name].to_pylist() == expected.to_pylist()
            assert found[name].type == expected.type

    def test_equal_rows_equal_bytes(self) -> None:
        assert list(encode(ROWS)) == list(encode(ROWS))

    def test_slices(self) -> None:
        assert list(encode(ROWS.slice(1, 2))) == list(encode(ROWS))[1:3]

    @pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.float16(), pa.float32()])
    def test_narrow_numbers(self, tmp_path: Path, kind: Any) -> None:
        values = pa.array(np.array([1, 0, 5], kind.to_pandas_dtype()))
        assert read(write(tmp_path / "a", rows(x=values)))["x"].to_pylist() == [1, 0, 5]

    def test_a_list_in_any_record_is_an_array(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", [*rows(x=[1], y=["a"]), *rows(x=[[1, 2]]), *rows(y=["b"]), b""])
        found = read(path)
        assert found.schema == pa.schema({"x": pa.list_(pa.int64()), "y": pa.string()})
        assert found.to_pydict() == {"x": [[1], [1, 2], None, None], "y": ["a", None, "b", None]}

    def test_an_empty_list_is_an_array(self, tmp_path: Path) -> None:
        found = read(write(tmp_path / "a", rows(x=pa.array([[], [1.5]], pa.list_(pa.float64())))))
        assert found["x"].to_pylist() == [[], [1.5]]

    def test_two_kinds(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", [*rows(x=[1]), *rows(x=[1.5])])
        with pytest.raises(DataError, match=r"'x' .*whole .*record 0 of .*a .*floats .*record 1 of .*a"):
            read(path)

    def test_two_kinds_in_two_files(self) -> None:
        mine, other = {"x": Seen("int64_list", False, "here")}, {"x": Seen("bytes_list", True, "there")}
        with pytest.raises(DataError, match=r"'x' .*whole .*here .*bytes .*there"):
            merge(mine, other)

    def test_no_text(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", rows(x=[b"a", None, b"\xff"]))
        with pytest.raises(DataError, match=r"a, record 2: feature 'x' is no text .*binary_features"):
            read(path)
        assert read(path, ["x"])["x"].to_pylist() == [b"a", None, b"\xff"]

    def test_no_text_in_a_list(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", rows(x=[[b"a", b"b"], [], None, [b"c", b"\xff"]]))
        with pytest.raises(DataError, match=r"a, record 3: feature 'x' is no text"):
            read(path)

    def test_binary_features_are_checked(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", rows(image=[b"a"], label=[1]))
        with pytest.raises(SpecError, match=r"binary_features names 'imag'.*did you mean 'image'"):
            read(path, ["imag"])
        for wrong in ("image", [1], 3):
            with pytest.raises(SpecError, match=r"binary_features must be"):
                read(path, wrong)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match=r"'label', which holds whole numbers"):
            read(path, ["label"])

    def test_no_example(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"a, record 1 is no tf.train.Example"):
            read(write(tmp_path / "a", [b"", b"\xff\xff"]))

    def test_another_message(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"a, record 0 is no tf.train.Example: .*SequenceExample"):
            read(write(tmp_path / "a", [b"\x12\x00"]))

    def test_no_records(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="there are no records"):
            read(write(tmp_path / "a", []))

    def test_unpacked_numbers(self, tmp_path: Path) -> None:
        """As old writers put them: one tag each."""
        floats = b"".join(b"\x0d" + struct.pack("<f", value) for value in (1.5, 2.5))
        feature = b"\x12" + bytes([len(floats)]) + floats
        entry = b"\x0a\x01x\x12" + bytes([len(feature)]) + feature
        features = b"\x0a" + bytes([len(entry)]) + entry
        path = write(tmp_path / "a", [b"\x0a" + bytes([len(features)]) + features])
        assert read(path)["x"].to_pylist() == [[1.5, 2.5]]

    def test_a_null_in_an_array(self) -> None:
        with pytest.raises(DataError, match=r"'x': .* null"):
            rows(x=[[1, None]])

    @pytest.mark.parametrize("values", [[{"a": 1}], [[[1]]], pa.array([1], pa.timestamp("s"))])
    def test_types_that_are_not_there(self, values: Any) -> None:
        with pytest.raises(DataError, match=r"column 'x' has type .*, which TFRecord lacks"):
            rows(x=values)

    def test_files_that_changed_since(self) -> None:
        data = rows(x=[1.5])
        with pytest.raises(DataError, match=r"record 7: feature 'x' is no int64, .* written anew"):
            decode(data, pa.schema({"x": pa.int64()}), "a", 7)
        with pytest.raises(DataError, match=r"record 7: feature 'x' is no list<.*>, .* written anew"):
            decode(data, pa.schema({"x": pa.list_(pa.int64())}), "a", 7)

    def test_batches_are_bounded(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", rows(x=list(range(10)), y=["a" * 100] * 10))
        columns = pa.schema({"x": pa.int64()})
        assert [batch.num_rows for batch in batches(path, columns, rows=4)] == [4, 4, 2]
        assert [batch.num_rows for batch in batches(path, columns, size=300)] == [3, 3, 3, 1]
        assert pa.Table.from_batches(batches(path, columns, rows=4))["x"].to_pylist() == list(range(10))


class TestFind:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("part-r-00001", "part-r-00000", "_SUCCESS", ".part-r-00000.crc", "_temporary/0", "below/x.gz"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"")
        return tmp_path

    def test_a_directory(self, folder: Path) -> None:
        expected = [str(folder / name) for name in ("below/x.gz", "part-r-00000", "part-r-00001")]
        assert find(folder) == find(f"{folder}/") == find(f"file://{folder}") == expected

    def test_a_glob(self, folder: Path) -> None:
        assert find(f"{folder}/part*") == [str(folder / name) for name in ("part-r-00000", "part-r-00001")]
        assert find(f"{folder}/*") == find(folder)
        (folder / "below" / "x.gz").rename(folder / "part.gz")
        assert find(f"{folder}/part*") == [str(folder / name) for name in ("part-r-00000", "part-r-00001", "part.gz")]

    def test_a_list(self, folder: Path) -> None:
        names = [folder / "part-r-00001", str(folder / "_SUCCESS")]  # who names a file means it
        assert find(names) == [str(name) for name in names]

    def test_a_url(self) -> None:
        system = fsspec.filesystem("memory")
        system.pipe_file("/tfrecords/part-r-00000", framed(rows(x=[4])[0]))
        assert find("memory://tfrecords") == ["memory:///tfrecords/part-r-00000"]
        assert read(find("memory://tfrecords")[0])["x"].to_pylist() == [4]

    @pytest.mark.parametrize("source", [None, "", [], 3])
    def test_no_path(self, source: Any) -> None:
        with pytest.raises(SpecError, match="source must be") as caught:
            find(source)
        assert str(caught.value).endswith(f"got {source!r}")

    def test_a_folder_of_spark_without_a_record(self, tmp_path: Path) -> None:
        (tmp_path / "_SUCCESS").touch()
        with pytest.raises(DataError, match=r"no records.*_SUCCESS"):
            find(tmp_path)

    def test_no_tfrecord_files(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "x", tmp_path / "x*"):
            with pytest.raises(DataError, match="no TFRecord file matches"):
                find(path)
        with pytest.raises(DataError, match=r"nosuch://x: .*'nosuch'"):
            find("nosuch://x")


class TestDataset:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        place = tmp_path / "rows"
        place.mkdir()
        for file in range(3):
            n = np.arange(40) + file * 40
            write(
                place / f"part-r-0000{file}",
                rows(n=n, x=pa.array([[v, v + 0.5] for v in n.tolist()]), kind=[["a", "b"][v % 2] for v in n.tolist()]),
            )
        return place

    def test_rows(self, folder: Path, cache: Path, read: Any) -> None:
        data = hy.Dataset.tfrecord(
            folder, features=["x", "kind"], label="n", encode={"kind": "one-hot"}, partitions=2, assign="contiguous"
        )
        manifest = data.prepare(cache)
        found = np.concatenate([part.inputs for part in read(manifest)])
        n = np.arange(120)
        np.testing.assert_array_equal(found, np.stack([n, n + 0.5, n % 2 == 0, n % 2 == 1], 1).astype(np.float32))
        assert [(source.rows) for source in manifest.sources] == [40, 40, 40]

    def test_equals_arrow(self, folder: Path, cache: Path) -> None:
        n = np.arange(120)
        table = pa.table({"n": n, "x": pa.array([[v, v + 0.5] for v in n.tolist()], pa.list_(pa.float32()))})
        given: dict[str, Any] = {"features": "x", "label": "n", "validation": 0.25}
        mine = hy.Dataset.tfrecord(folder, **given).prepare(cache)
        assert [part.digest for part in mine.train] == [
            part.digest for part in hy.Dataset.arrow(table, **given).prepare(cache).train
        ]

    def test_found_again_until_a_file_changes(self, folder: Path, cache: Path) -> None:
        data = hy.Dataset.tfrecord(folder, features="x", label="n")
        first = data.prepare(cache)
        assert pickle.loads(pickle.dumps(data)).prepare(cache).key == first.key
        write(folder / "part-r-00001", rows(n=[1], x=[[1.0, 2.0]]))
        second = data.prepare(cache)
        assert second.key != first.key
        assert sum(part.rows for part in second.train) == 81

    def test_images(self, tmp_path: Path, cache: Path, read: Any) -> None:
        path = write(tmp_path / "a", rows(image=[b"\x00\xff", b"\x80\x01"], y=[0, 1]))
        data = hy.Dataset.tfrecord(path, features="image", label="y", partitions=1, binary_features=["image"])
        np.testing.assert_array_equal(read(data.prepare(cache))[0].inputs, [[0, 255], [128, 1]])

    def test_a_column_that_is_not_there(self, folder: Path, cache: Path) -> None:
        with pytest.raises(DataError, match="'z'"):
            hy.Dataset.tfrecord(folder, features="z", label="n").prepare(cache)

    def test_a_damaged_file(self, folder: Path, cache: Path) -> None:
        path = folder / "part-r-00002"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(DataError, match=r"part-r-00002, record 39, byte \d+: .*cut off"):
            hy.Dataset.tfrecord(folder, features="x", label="n").prepare(cache)


@pytest.mark.tensorflow
class TestTensorFlow:
    """The reference."""

    @pytest.fixture
    def tf(self) -> Any:
        return pytest.importorskip("tensorflow")

    @pytest.mark.parametrize("compression", ["", "GZIP"])
    def test_reads_what_we_write(self, tf: Any, tmp_path: Path, compression: str) -> None:
        path = tmp_path / "a"
        path.write_bytes((gzip.compress if compression else bytes)(b"".join(map(framed, encode(ROWS)))))
        lists = {name: tf.io.RaggedFeature(kind) for name, kind in (("floats", tf.float32), ("ints", tf.int64))}
        texts = {name: tf.io.RaggedFeature(tf.string) for name in ("blobs", "texts")}
        single = {
            name: tf.io.FixedLenFeature([], kind, default)
            for name, kind, default in (
                ("binary", tf.string, "none"), ("double", tf.float32, -9.0), ("flag", tf.int64, -9),
                ("int", tf.int64, -9), ("none", tf.int64, -9), ("text", tf.string, "none"),
            )
        }  # fmt: skip
        found = [
            tf.io.parse_single_example(record, lists | texts | single)
            for record in tf.data.TFRecordDataset(str(path), compression_type=compression)
        ]
        assert len(found) == ROWS.num_rows
        for row, example in zip(ROWS.to_pylist(), found, strict=True):
            for name, value in row.items():
                mine = example[name].numpy()
                if name in lists:
                    np.testing.assert_array_equal(mine, np.array(value or [], mine.dtype))
                elif name in texts:
                    assert [one.decode() if name == "texts" else one for one in mine.tolist()] == (value or [])
                elif value is None:
                    assert mine in (b"none", -9)
                elif name == "text":
                    assert mine.decode() == value
                elif name == "double":
                    with np.errstate(over="ignore"):
                        assert mine == np.float32(value)
                else:
                    assert mine == value

    def test_we_read_what_it_writes(self, tf: Any, tmp_path: Path) -> None:
        path = str(tmp_path / "a")
        train = tf.train
        rng = np.random.default_rng(0)
        values = rng.standard_normal((20, 784)).astype(np.float32)
        payloads = []
        for n in range(20):
            feature = {
                "x": train.Feature(float_list=train.FloatList(value=values[n])),
                "n": train.Feature(int64_list=train.Int64List(value=[n - 10])),
                "words": train.Feature(bytes_list=train.BytesList(value=[b"w"] * (n % 3))),
            }
            if n % 2:
                feature["odd"] = train.Feature(bytes_list=train.BytesList(value=["é".encode()]))
            payloads.append(train.Example(features=train.Features(feature=feature)).SerializeToString())
        for compression, name in (("", path), ("GZIP", f"{path}.gz")):
            with tf.io.TFRecordWriter(name, compression) as writer:
                for data in payloads:
                    writer.write(data)
            found = read(name)
            assert list(records(name)) == payloads
            assert found["n"].to_pylist() == list(range(-10, 10))
            assert found["odd"].to_pylist() == ["é" if n % 2 else None for n in range(20)]
            assert found["words"].to_pylist() == [["w"] * (n % 3) for n in range(20)]
            np.testing.assert_array_equal(np.stack(found["x"].to_numpy()), values)
        assert write(tmp_path / "b", payloads) and (tmp_path / "b").read_bytes() == Path(path).read_bytes()

    def test_same_columns_whatever_the_order(self, tmp_path: Path) -> None:
        data = [*rows(x=[1]), b"", *rows(x=[[1, 2]], y=["a"])]
        found = []
        for order in (data, data[::-1]):
            seen: dict[str, Seen] = {}
            assert look(seen, order, "a") == 3
            found.append(schema(seen, (), "a"))
        assert found[0] == found[1]


@pytest.mark.parametrize("name", ["empty", "nested", "label"])
def test_lists_that_are_always_empty(tmp_path: Path, name: str) -> None:
    columns: dict[str, Any] = {
        "x": [1.0, 2.0, 3.0],
        "y": [0, 1, 0],
        "empty": pa.array([[], [], None], pa.list_(pa.int64())),
    }
    columns |= {"nested": pa.array([[[], []]] * 3, pa.list_(pa.list_(pa.float32()))), "label": columns["empty"]}
    data = hy.Dataset.arrow(pa.table(columns), features=["x"], label="y", partitions=1)
    assert data.prepare(tmp_path / "cache").inputs["inputs"].shape == (1,)
    role: dict[str, Any] = (
        {"features": "x", "label": name} if name == "label" else {"features": {"x": "x", name: name}, "label": "y"}
    )
    with pytest.raises(DataError, match=f"'{name}' .* without values.*leave the column out"):
        hy.Dataset.arrow(pa.table(columns), **role, partitions=1).prepare(tmp_path / "cache")


def test_a_feature_of_tfrecords_that_is_always_empty(tmp_path: Path) -> None:
    empty = pa.array([[]] * 4, pa.list_(pa.int64()))
    examples = encode(pa.RecordBatch.from_pydict({"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1], "empty": empty}))
    (tmp_path / "rows").write_bytes(b"".join(map(framed, examples)))
    named = hy.Dataset.tfrecord(tmp_path / "rows", features={"x": "x", "empty": "empty"}, label="y", partitions=1)
    with pytest.raises(DataError, match=r"'empty' .* without values"):
        named.prepare(tmp_path / "cache")
    manifest = hy.Dataset.tfrecord(tmp_path / "rows", features="x", label="y", partitions=1).prepare(tmp_path / "cache")
    assert list(manifest.inputs) == ["inputs"]
