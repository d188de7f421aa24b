"""Segments and their index, folders, and the way of a partition to a host; all without Spark."""

from __future__ import annotations

import os
import tempfile
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from blake3 import blake3

from hopyard import meter
from hopyard.data.encoding.extremes import Extremes
from hopyard.data.encoding.finalize import FeatureFinalizer
from hopyard.data.manifest import Column, Field, Manifest, PartitionInfo, Stored
from hopyard.data.npy import Appender, compare
from hopyard.data.partitions import mapped
from hopyard.data.partitions.builder import make_manifest
from hopyard.data.partitions.mapped import fetched_bytes, open_partition
from hopyard.data.rows.hash import row_hashes
from hopyard.data.rows.names import Names
from hopyard.data.shared.fetch import fetch
from hopyard.data.shared.segments import Index, Segment, Writer, infos, ranges, run_bytes, views
from hopyard.data.shared.storage import reaching, shared_directory
from hopyard.errors import DataError, ResourceError, SpecError
from hopyard.filesystems import Directory
from hopyard.formats.vectors import LIST, is_vector, lists, without_vectors

FIELDS = [
    Field("inputs", "inputs", False, [Column("x", "list:float32", (3,))], "float32", "float32"),
    Field("targets", "targets", False, [Column("y", "int16:int16", ())], "int16", "int16"),
]


def rows(start: int, stop: int) -> list[Any]:
    n = np.arange(start, stop)
    return [np.stack([n, n + 0.5, -n], axis=1).astype(np.float32), n.astype(np.int16)]


def named_rows(start: int, stop: int) -> Names:
    """By the number of the row, in an order that is neither that of the rows nor its reverse."""
    return Names(row_hashes(pa.RecordBatch.from_arrays([pa.array(range(start, stop))], names=["n"]), ["n"], "t"))


def written(folder: Directory, batches: list[tuple[int, int]], limit: int, partitions: int = 3) -> Segment:
    """A segment of batches (start, stop); every fourth row validates."""
    name = f"{uuid.uuid4().hex}.seg"
    with folder.stream(name) as stream:
        writer = Writer(FIELDS, partitions, 2, lambda chunk: stream.write(chunk.data), limit)
        for start, stop in batches:
            writer.take(rows(start, stop), named_rows(start, stop), np.arange(start, stop) % 4 == 0)
        writer.flush()
    return Segment(name, writer.bytes, writer.chunks, writer.digests(), [f"{total:x}" for total in writer.sums])


def kept(folder: Directory, segments: list[Segment], partitions: int = 3) -> Manifest:
    """The manifest of what is in a folder."""
    index = Index(partitions, 2, segments)
    data = msgspec.json.encode(index)
    stored = Stored(folder.url, blake3(data).hexdigest())
    folder.put(stored.file, data)
    parts: Any = {
        kind: [
            PartitionInfo(count, count * 14, "")
            for p in range(partitions)
            if (count := sum(segment.rows(index.run(kind, p)) for segment in segments))
        ]
        for kind in ("train", "validate")
    }
    made = make_manifest(FeatureFinalizer(FIELDS, {}, {}), {}, Extremes(), parts, ["x", "y"])
    return msgspec.structs.replace(made, key=uuid.uuid4().hex, stored=stored)


def own_rule(batches: list[tuple[int, int]], kind: str, partition: int, partitions: int = 3) -> list[int]:
    """Row numbers of one partition, by the rule itself: one row at a time, in Python's integers."""
    mine = []
    for n in (n for start, stop in batches for n in range(start, stop)):
        words = named_rows(n, n + 1)
        ((run, _, _),) = words.runs(partitions, np.array([n % 4 == 0]))
        if run == partition + (partitions if kind == "validate" else 0):
            mine.append((words.words[0].tolist(), n))
    return [n for _, n in sorted(mine)]


@pytest.fixture(params=["path", "memory"])
def folder(request: Any, tmp_path: Path) -> Directory:
    made = shared_directory(str(tmp_path / "kept") if request.param == "path" else f"memory://{uuid.uuid4().hex}")
    made.make()
    return made


@pytest.mark.parametrize("limit", [1, 200, 1 << 20])
def test_every_row_comes_back_where_the_rule_says(folder: Directory, limit: int) -> None:
    batches = [[(0, 17), (17, 20), (20, 61)], [(100, 101)], [(200, 290)]]
    manifest = kept(folder, [written(folder, each, limit) for each in batches])
    every = [batch for each in batches for batch in each]
    for kind in ("train", "validate"):
        for partition in range(3):
            got = open_partition(manifest, kind, partition)
            wanted = own_rule(every, kind, partition)
            assert wanted
            assert got.targets.tolist() == wanted
            assert got.inputs.tolist() == [[n, n + 0.5, -n] for n in wanted]
            assert got.inputs.ctypes.data % 64 == 0


def test_bytes_that_are_fetched_and_compared_are_progress(
    folder: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that takes minutes to come is not a worker that hangs."""

    class Counter:
        count = 0

        def advance(self, count: int) -> None:
            self.count += count

        def enter(self, phase: str) -> None:
            pass

    counter = Counter()
    monkeypatch.setattr(meter._Process, "counter", counter)
    manifest = kept(folder, [written(folder, [(0, 300)], 1 << 20)])
    rows = manifest.train[0].rows
    fetch(tmp_path, manifest, "train", 0)
    assert counter.count >= rows * (3 * 4 + 2 + 16)  # the inputs, the targets, and the name of each row
    path = tmp_path / "x.npy"
    with closing(Appender(path, (4,), "float32", keep=True)) as file:
        file.append(np.zeros((9, 4), np.float32))
        digest = file.finish()
    monkeypatch.setattr("hopyard.data.npy._VERIFIED", {})  # as in a process that did not write it
    counter.count = 0
    compare(path, digest)
    assert counter.count == 9 * 4 * 4


def test_runs_are_aligned_and_follow_from_the_counts(folder: Directory) -> None:
    segment = written(folder, [(0, 40), (40, 50)], 200)
    assert len(segment.chunks) > 1
    kinds = infos(FIELDS, 2)
    assert segment.bytes == sum(run_bytes(kinds, count) for chunk in segment.chunks for count in chunk)
    assert folder.sizes()[segment.name] == segment.bytes
    for run in range(6):
        for count, start, stop in ranges(kinds, segment, run):
            assert start % 64 == 0
            data = folder.range(segment.name, start, stop)
            x, y, names = views(kinds, count, np.frombuffer(data, np.uint8))
            assert x.shape == (count, 3) and y.shape == (count,)
            assert np.array_equal(x[:, 0].astype(np.int16), y)
            assert np.array_equal(names, np.concatenate([named_rows(n, n + 1).words for n in y.tolist()]))


def test_the_cut_into_batches_changes_nothing_within_a_chunk(folder: Directory) -> None:
    one, other = (written(folder, batches, 1 << 20) for batches in ([(0, 50)], [(0, 1), (1, 30), (30, 50)]))
    assert one.digests == other.digests and one.chunks == other.chunks


def test_a_writer_without_rows_writes_nothing() -> None:
    writer = Writer(FIELDS, 2, 2, lambda chunk: pytest.fail("nothing was to write"))
    writer.take(rows(0, 0), named_rows(0, 0), None)
    writer.flush()
    assert (writer.bytes, writer.chunks, writer.digests()) == (0, [], [""] * 4)


def test_a_flipped_byte_is_found_and_nothing_is_kept_of_it(tmp_path: Path) -> None:
    folder = shared_directory(str(tmp_path / "kept"))
    folder.make()
    segment = written(folder, [(0, 60)], 1 << 20)
    manifest = kept(folder, [segment])
    path = tmp_path / "kept" / segment.name
    data = bytearray(path.read_bytes())
    own = len(own_rule([(0, 60)], "train", 1))
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"\.seg is damaged: .*digest of its rows"):
        open_partition(manifest, "train", 0)
    assert open_partition(manifest, "train", 1).rows == own  # another run of the same file
    data[5] ^= 1
    path.write_bytes(data)
    assert open_partition(manifest, "train", 0).rows == len(own_rule([(0, 60)], "train", 0))


def test_a_short_or_missing_file_is_named(tmp_path: Path) -> None:
    folder = shared_directory(str(tmp_path / "kept"))
    folder.make()
    segment = written(folder, [(0, 60)], 1 << 20)
    manifest = kept(folder, [segment])
    path = tmp_path / "kept" / segment.name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{segment.name} is damaged: .*early"):
        open_partition(manifest, "validate", 2)
    path.unlink()
    with pytest.raises(DataError, match=rf"{segment.name} .*FileNotFoundError"):
        open_partition(manifest, "train", 0)


def test_another_index_is_refused(folder: Directory) -> None:
    manifest = kept(folder, [written(folder, [(0, 60)], 1 << 20)])
    assert manifest.stored is not None
    folder.put(manifest.stored.file, b"{}")
    with pytest.raises(DataError, match="is damaged: its digest"):
        open_partition(manifest, "train", 0)
    folder.remove(manifest.stored.file)
    with pytest.raises(DataError, match=r"cannot read .*index-"):
        open_partition(manifest, "train", 0)


def test_the_order_of_segments_changes_nothing(folder: Directory) -> None:
    several = [written(folder, [each], 200) for each in ((0, 20), (20, 21), (21, 80))]
    manifests = [
        kept(folder, several),
        kept(folder, several[::-1]),
        kept(folder, [written(folder, [(0, 80)], 1 << 20)]),
    ]
    for kind, partition in ((kind, partition) for kind in ("train", "validate") for partition in range(3)):
        found = [open_partition(manifest, kind, partition) for manifest in manifests]  # type: ignore[arg-type]
        assert len({columns.inputs.tobytes() for columns in found}) == 1


@pytest.mark.parametrize("name", ["../segment", "/etc/passwd", "a/b", ".", "", "a\x00"])
def test_names_of_an_index_are_of_its_folder(tmp_path: Path, name: str) -> None:
    folder = shared_directory(str(tmp_path / "kept"))
    folder.make()
    manifest = kept(folder, [written(folder, [(0, 60)], 1 << 20)])
    assert manifest.stored is not None
    index = msgspec.json.decode(folder.get(manifest.stored.file))
    index["segments"][0]["name"] = name
    data = msgspec.json.encode(index)
    manifest.stored = Stored(folder.url, blake3(data).hexdigest())  # by whoever may write there
    folder.put(manifest.stored.file, data)
    with pytest.raises(DataError, match=r"is no index: .*`\$.segments\[0\].name`"):
        open_partition(manifest, "train", 0)


def test_a_host_brings_a_partition_once(tmp_path: Path) -> None:
    folder = shared_directory(str(tmp_path / "kept"))
    folder.make()
    manifest = kept(folder, [written(folder, [(0, 60)], 1 << 20)])
    manifest.path = str(tmp_path / "cache")
    first = open_partition(manifest, "train", 1)
    for file in (tmp_path / "kept").iterdir():
        file.unlink()
    again = msgspec.structs.replace(manifest)  # as in another process
    assert np.array_equal(open_partition(again, "train", 1).inputs, first.inputs)
    assert (fetched_bytes(manifest), fetched_bytes(again)) == (manifest.train[1].bytes, 0)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.name != "locks"] == [
        f"{manifest.key}-train-00001"
    ]


def test_a_host_brings_a_partition_again_that_is_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = shared_directory(str(tmp_path / "kept"))
    folder.make()
    manifest = kept(folder, [written(folder, [(0, 60)], 1 << 20)])
    manifest.path = str(tmp_path / "cache")
    whole = open_partition(manifest, "train", 1).inputs.tobytes()
    path = tmp_path / "cache" / f"{manifest.key}-train-00001" / "train-00000" / "inputs-0.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    assert open_partition(msgspec.structs.replace(manifest), "train", 1).inputs.tobytes() == whole
    assert any("inputs-0.npy has another digest" in said for said in caplog.messages)


def test_old_manifests_are_read(tmp_path: Path) -> None:
    folder = shared_directory(str(tmp_path))
    manifest = kept(folder, [written(folder, [(0, 60)], 1 << 20)])
    plain = msgspec.to_builtins(manifest)
    del plain["stored"]
    assert msgspec.json.decode(msgspec.json.encode(plain), type=Manifest).stored is None


def test_a_host_without_a_home_uses_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(mapped, "default_root", lambda: file / "data")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    root = mapped._host_root(str(file / "wanted"))
    assert root.parent.parent == tmp_path and root.is_dir() and root.parent.stat().st_mode & 0o777 == 0o700
    assert mapped._host_root(str(tmp_path / "wanted")) == tmp_path / "wanted"


def test_a_folder_keeps_files_by_name(folder: Directory) -> None:
    assert folder.sizes() == {} and not folder.has("a")
    folder.put("a", b"12345")
    folder.put("a", b"123")
    assert folder.get("a") == b"123" and folder.has("a") and folder.sizes() == {"a": 3}
    assert folder.range("a", 0, 2) == b"12" and folder.range("a", 2, 3) == b"3"
    folder.drop()
    assert folder.has("a")
    folder.remove("a")
    folder.remove("a")
    folder.drop()
    with pytest.raises(FileNotFoundError):
        folder.get("a")


def test_errors_of_file_systems_name_path() -> None:
    with pytest.raises(SpecError, match=r"path: host .* nowhere://x: .*'nowhere'"):
        shared_directory("nowhere://x")
    with pytest.raises(ResourceError, match=r"path: no room .* x "), reaching("x", "write to"):
        raise OSError(28, "No space left on device")
    with pytest.raises(DataError, match="as it is"), reaching("x", "write to"):
        raise DataError("as it is")


VECTOR = pa.struct(
    [
        pa.field("type", pa.int8(), nullable=False),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)


def dense(*values: float) -> dict[str, Any]:
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def sparse(size: int, given: dict[int, float]) -> dict[str, Any]:
    return {"type": 0, "size": size, "indices": list(given), "values": list(given.values())}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([dense(1, 2), dense(3, 4)], [[1, 2], [3, 4]]),
        ([sparse(3, {1: 5.0}), dense(1, 2, 3), None, sparse(3, {})], [[0, 5, 0], [1, 2, 3], None, [0, 0, 0]]),
        ([None, dense(1, 2)], [None, [1, 2]]),
        ([sparse(2, {0: 1.0, 1: 2.0}), sparse(4, {3: 9.0})], [[1, 2], [0, 0, 0, 9]]),
        ([], []),
    ],
)
def test_vectors_become_lists(given: list[Any], wanted: list[Any]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(given, VECTOR), pa.array(range(len(given)))], names=["v", "n"])
    assert is_vector(batch.schema.field("v").type) and not is_vector(LIST)
    assert without_vectors(batch.schema).field("v").type == LIST
    made = list(lists(batch))
    assert [row for part in made for row in part.column(0).to_pylist()] == wanted
    assert [row for part in made for row in part.column(1).to_pylist()] == list(range(len(given)))
    assert all(part.schema == without_vectors(batch.schema) for part in made)


def test_sliced_vectors_become_lists() -> None:
    given = [dense(9, 9), sparse(2, {1: 5.0}), dense(1, 2), sparse(2, {0: 7.0}), dense(8, 8)]
    batch = pa.RecordBatch.from_arrays([pa.array(given, VECTOR)], names=["v"]).slice(1, 3)
    assert [part.column(0).to_pylist() for part in lists(batch)] == [[[0, 5], [1, 2], [7, 0]]]


def test_wide_sparse_vectors_are_cut_into_batches() -> None:
    given = [sparse(1 << 20, {n: 1.0}) for n in range(20)]
    batch = pa.RecordBatch.from_arrays([pa.array(given, VECTOR)], names=["v"])
    sizes = [part.num_rows for part in lists(batch)]
    assert sizes == [8, 8, 4]
