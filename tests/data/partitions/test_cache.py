from __future__ import annotations

import copy
import gc
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard import meter
from hopyard.data import npy
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.data.partitions import cache as caches
from hopyard.data.partitions.cache import pin
from hopyard.data.partitions.mapped import open_partition
from hopyard.data.partitions.prepare import LocalRows, entry_key
from hopyard.data.sources import paths as files_room
from hopyard.errors import DataError, SpecError


def arrays(seed: int = 0, rows: int = 1000, **options: Any) -> Dataset:
    x = np.random.default_rng(seed).normal(size=(rows, 4))
    return Dataset.numpy(x, x[:, 0], **({"partitions": 2} | options))


def key_of(data: Dataset) -> str | None:
    assert isinstance(data.rows, LocalRows)
    return entry_key([data.rows.rows], data.rows.options)


def entries(root: Path) -> set[str]:
    return {path.parent.name for path in root.glob("*/manifest.json")}


def test_found_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = arrays().prepare(cache)
    monkeypatch.setattr("hopyard.data.partitions.prepare.build", None)  # would fail if it built again
    assert arrays().prepare(cache) == first
    assert Path(first.path) == cache / first.key


def test_the_key_is_of_all_that_matters(cache: Path, files: Path) -> None:
    def key(**options: Any) -> str:
        given: dict[str, Any] = {"features": ["a", "b"], "label": "n", "partitions": 2} | options
        return Dataset.parquet(files, **given).prepare(cache).key

    factor = 1

    def one(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if factor else None

    first = key()
    keys = [
        first,
        key(features=["b", "a"]),
        key(label="late"),
        key(weight="weight"),
        key(partitions=3),
        key(validation=0.2),
        key(validation=0.2, seed=1),
        key(validation="held"),
        key(encode={"b": "one-hot"}),
        key(standardize=True),
        key(assign="contiguous"),
        key(transform=one),
    ]
    factor = 2  # what the function closes over counts
    keys.append(key(transform=one))
    part = files / "part-0.parquet"
    os.utime(part, ns=(1, 1))
    keys.append(key())
    pq.write_table(pq.read_table(part).slice(1), part)
    keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key(cache_bytes=1 << 40) == keys[-1]
    assert key(seed=5) == keys[-1]  # picks nothing without a fraction


def test_the_footer_is_part_of_the_key(tmp_path: Path) -> None:
    """Other rows in a file of the same size, with the same time."""
    keys = []
    for value in (1.0, 2.0):
        pq.write_table(pa.table({"a": np.full(100, value)}), tmp_path / "f.parquet")
        os.utime(tmp_path / "f.parquet", ns=(1, 1))
        keys.append(
            (key_of(Dataset.parquet(tmp_path / "f.parquet", features="a")), (tmp_path / "f.parquet").stat().st_size)
        )
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1]


def rows_of(manifest: Manifest) -> Any:
    return open_partition(manifest, "train", 0).inputs


def test_an_edited_module_makes_other_rows(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function of a module, and of a function of the script that calls one."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found: dict[str, list[Any]] = {"module": [], "script": []}
    for factor in (1, 100, 1):
        (tmp_path / "prepmod.py").write_text(
            "import pyarrow as pa\n"
            f"def times(values):\n    return [value * {factor} for value in values]\n"
            "def clean(batch):\n    return pa.record_batch({'a': times(batch['a'].to_pylist())})\n"
        )
        monkeypatch.delitem(sys.modules, "prepmod", raising=False)
        importlib.invalidate_caches()
        prepmod = importlib.import_module("prepmod")

        def script(batch: pa.RecordBatch, module: Any = prepmod) -> pa.RecordBatch:
            return pa.record_batch({"a": module.times(batch["a"].to_pylist())})

        for name, transform in (("module", prepmod.clean), ("script", script)):
            table = pa.table({"a": [1.0, 2.0]})
            data = Dataset.arrow(table, features="a", transform=transform, partitions=1)
            found[name].append((data.prepare(cache).key, rows_of(data.prepare(cache)).tolist()))
    for one in found.values():
        assert [rows for _, rows in one] == [[1, 2], [100, 200], [1, 2]]
        assert one[0] == one[2] and one[0][0] != one[1][0]


def test_streams_and_items_are_named_by_columns_and_types(cache: Path) -> None:
    """Equal buffers, other names or types."""
    n = np.arange(4)

    def prepared(columns: dict[str, Any]) -> list[Any]:
        stream = Dataset.arrow(iter([pa.record_batch(columns)]), features=["width", "height"], partitions=1)
        items = [{name: np.asarray(values)[i] for name, values in columns.items()} for i in range(4)]
        torch = Dataset.torch(items, features=["width", "height"], partitions=1)
        return [(data.prepare(cache).key, rows_of(data.prepare(cache)).tolist()) for data in (stream, torch)]

    right, swapped = prepared({"width": n, "height": n + 9}), prepared({"height": n, "width": n + 9})
    for one, other in zip(right, swapped, strict=True):
        assert one[0] != other[0]
        assert one[1] == [[i, i + 9] for i in range(4)] and other[1] == [[i + 9, i] for i in range(4)]
    unsigned, signed = (prepared({"width": n, "height": (n - 1).astype(kind)}) for kind in (np.uint32, np.int32))
    assert [rows[0][1] for _, rows in signed] == [-1, -1]
    assert [rows[0][1] for _, rows in unsigned] == [np.float32(2**32 - 1)] * 2


def test_other_images_in_an_object_column(cache: Path) -> None:
    def rows(value: float) -> float:
        images = np.empty(2, object)
        images[:] = [np.zeros(2000), np.zeros(2000)]
        images[1][1000] = value
        return float(rows_of(Dataset.numpy({"x": images}, partitions=1).prepare(cache))["x"][1, 1000])

    assert [rows(1.0), rows(2.0)] == [1.0, 2.0]


def test_the_order_of_named_inputs_is_kept(cache: Path) -> None:
    table = pa.table({"a": [1.0], "b": [2.0]})
    for names in ("ab", "ba"):
        manifest = Dataset.arrow(table, features={name: name for name in names}, partitions=1).prepare(cache)
        assert list(manifest.inputs) == list(names)


def test_a_copy_with_preserved_times_is_another_file(cache: Path, tmp_path: Path) -> None:
    """Same size, times and footer: statistics in a footer are optional."""
    keys = []
    for value in (1.0, 2.0):
        pq.write_table(pa.table({"a": np.full(100, value)}), tmp_path / "new", write_statistics=False)
        os.utime(tmp_path / "new", ns=(1, 1))
        (tmp_path / "new").rename(tmp_path / "f.parquet")
        manifest = Dataset.parquet(tmp_path / "f.parquet", features="a", partitions=1).prepare(cache)
        assert rows_of(manifest)[0] == value
        keys.append(manifest.key)
    assert keys[0] != keys[1]


class Tagged:
    """A file system that tells a tag in its own way, keeps listings, or tells nothing but sizes."""

    def __init__(self, info: dict[str, Any]) -> None:
        self.told, self.info_now = dict(info), info

    def _parent(self, path: str) -> str:
        return path.rpartition("/")[0]

    def invalidate_cache(self, path: str) -> None:
        self.told = dict(self.info_now)

    def info(self, path: str) -> dict[str, Any]:
        return {"name": path, "size": 3, "type": "file", **self.told}


@pytest.mark.parametrize("tag", ["ETag", "etag", "generation", "md5Hash", "LastModified", "modificationTime", "mtime"])
def test_tags_of_other_file_systems_count(monkeypatch: pytest.MonkeyPatch, tag: str) -> None:
    system = Tagged({tag: "one"})
    monkeypatch.setattr(files_room, "open_url", lambda path: (system, path))
    first = files_room.stamp("s3://bucket/a")
    assert files_room.stamp("s3://bucket/a") == first
    system.info_now[tag] = "two"  # by somebody else, who does not tell this process
    assert files_room.stamp("s3://bucket/a") != first


def test_a_file_with_only_a_size_gets_a_new_stamp_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_room, "open_url", lambda path: (Tagged({"mtime": None}), path))
    assert files_room.stamp("odd://a") != files_room.stamp("odd://a")


def test_rows_that_change_while_they_are_read_are_not_kept(cache: Path, files: Path) -> None:
    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        os.utime(files / "part-2.parquet", ns=(1, 1))
        return batch

    array = np.arange(10.0)

    def spoil(batch: pa.RecordBatch) -> pa.RecordBatch:
        array[3] = 0.5
        return batch

    several = [
        (
            Dataset.parquet(files, features="a", transform=transform),
            r"3 files, .*/part-0.parquet.*: call prepare\(\) again",
        ),
        (Dataset.numpy(array, transform=spoil, partitions=1), "arrays in memory of 10 rows.*: make the Dataset again"),
    ]
    for data, what in several:
        with pytest.raises(DataError, match=what):
            data.prepare(cache)
        assert entries(cache) == set()


def test_arrays_and_frames_are_those_of_the_first_prepare(cache: Path) -> None:
    array, frame = np.arange(10.0), pd.DataFrame({"a": np.arange(10.0)})
    several = [Dataset.numpy(array, partitions=1), Dataset.pandas(frame, features="a", partitions=1)]
    first = [data.prepare(cache).digest for data in several]
    array[3] = frame.loc[3, "a"] = 0.5
    assert [data.prepare(cache).digest for data in several] == first
    assert Dataset.numpy(array, partitions=1).prepare(cache).digest != first[0]
    with pytest.raises(DataError, match="changed after"):
        several[0].prepare(cache / "another")


@pytest.mark.parametrize("key", ["../planted", "/planted", "a/b", "a\x00b", "", ".", "A", "a\n", "a" * 101])
def test_keys_of_manifests_are_no_paths(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    told = json.loads(msgspec.json.encode(arrays().prepare(tmp_path / "cache")))
    told["stored"] = {"url": str(folder), "index": "0" * 64}
    (folder / "manifest.json").write_text(json.dumps(told) + "\n")
    assert Dataset.open(folder).prepare().stored is not None
    (folder / "manifest.json").write_text(json.dumps(told | {"key": key}) + "\n")
    for read in (lambda: Dataset.open(folder), lambda: Manifest.load(folder / "manifest.json")):
        with pytest.raises(DataError, match=r"cannot be read .*`\$.key`"):
            read()
    told["stored"]["index"] = key and f"{key}/x"
    (folder / "manifest.json").write_text(json.dumps(told) + "\n")
    with pytest.raises(DataError, match=r"cannot be read .*`\$.stored.index`"):
        Dataset.open(folder)


MAKE = """
import sys, numpy as np
from hopyard.data.dataset import Dataset
import hopyard.data.partitions.prepare as room
real = room.build
def build(directory, job, blocks):
    print("built", flush=True)
    made = real(directory, job, blocks)
    sys.stdin.readline()
    return made
room.build = build
print("ready", flush=True)
sys.stdin.readline()
x = np.arange(4000.0).reshape(1000, 4)
print(Dataset.numpy(x, x[:, 0], partitions=2).prepare(sys.argv[1]).digest, flush=True)
"""


@pytest.mark.slow
def test_two_processes_make_one_entry_at_once(cache: Path) -> None:
    """Both are at `prepare` while one is held inside its build: the other waits, and does not build."""
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE, str(cache)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for maker in makers:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "ready\n"
    outputs = [maker.communicate("go\ngo\n", timeout=60)[0].split() for maker in makers]
    assert sum(words.count("built") for words in outputs) == 1
    assert outputs[0][-1] == outputs[1][-1]
    assert len(entries(cache)) == 1
    assert list(cache.glob(".tmp-*")) == []


def test_threads_make_one_entry_at_once(cache: Path) -> None:
    built: list[int] = []

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        built.append(batch.num_rows)
        return batch

    table = pa.table({"a": np.arange(100.0)})
    data = Dataset.arrow(table, features="a", transform=count, partitions=2)
    key_of(data)
    threads = [threading.Thread(target=data.prepare, args=(cache,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [100]


def make_in_child(root: str, seed: int) -> None:
    arrays(seed).prepare(root)


def test_a_killed_maker_leaves_nothing_that_hinders(cache: Path) -> None:
    key = key_of(arrays())
    left = cache / f".tmp-{key}-abc"
    left.mkdir(parents=True)
    (left / "train-00000").mkdir()
    other = cache / ".tmp-0123-xyz"
    other.mkdir()
    manifest = arrays().prepare(cache)
    assert manifest.key == key
    assert list(cache.glob(".tmp-*")) == []


def test_the_oldest_entries_go_first(cache: Path) -> None:
    size = 1000 * 5 * 4
    keys = []
    for seed in range(4):
        keys.append(arrays(seed).prepare(cache).key)
        os.utime(cache / keys[-1] / "manifest.json", (time.time() - 99 + seed,) * 2)
    gc.collect()
    arrays(0).prepare(cache)  # used again: now the newest
    gc.collect()
    keys.append(arrays(4, cache_bytes=int(3.7 * size)).prepare(cache).key)
    assert entries(cache) == {keys[0], keys[3], keys[4]}
    assert list(cache.glob(".tmp-*")) == []
    assert not (cache / "locks" / f"{keys[1]}.use").exists()


def test_held_entries_stay(cache: Path) -> None:
    held, opened, loose = arrays(0).prepare(cache), arrays(1).prepare(cache), arrays(2).prepare(cache)
    data = open_partition(opened, "train", 0)
    keys = {held.key, opened.key}
    gone = loose.key
    del loose, opened
    gc.collect()
    made = arrays(3, cache_bytes=0).prepare(cache)
    assert entries(cache) == keys | {made.key}
    assert gone not in entries(cache)
    del data, held
    gc.collect()
    arrays(4, cache_bytes=0).prepare(cache)
    assert len(entries(cache)) == 2  # the one just made, and the one whose manifest lives
    assert made.rows == 1000


def test_another_process_holds(cache: Path) -> None:
    key = arrays(0).prepare(cache).key
    gc.collect()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        kept = pin(cache, key)
        theirs.send(kept is not None)
        theirs.recv()
        os._exit(0)

    process = context.Process(target=child)
    process.start()
    assert ours.recv()
    arrays(1, cache_bytes=0).prepare(cache)
    assert key in entries(cache)
    ours.send(None)
    process.join()
    arrays(2, cache_bytes=0).prepare(cache)
    assert key not in entries(cache)


def test_mapped_rows_outlive_their_entry(cache: Path) -> None:
    import shutil

    manifest = arrays().prepare(cache)
    data = open_partition(manifest, "train", 0)
    before = data.inputs.copy()
    shutil.rmtree(manifest.path)
    assert np.array_equal(data.inputs, before)


def test_an_entry_that_is_gone(cache: Path, tmp_path: Path) -> None:
    import shutil

    manifest = arrays().prepare(cache)
    manifest.save(tmp_path / "copy.json")
    shutil.rmtree(manifest.path)
    with pytest.raises(DataError, match=r"gone.*prepare\(\)"):
        open_partition(manifest, "train", 0)
    with pytest.raises(DataError, match=r"gone.*prepare\(\)"):
        Manifest.load(tmp_path / "copy.json")
    assert Manifest.load(tmp_path / "copy.json", check=False) == manifest
    assert arrays().prepare(cache) == manifest  # made again, while we still hold the old one
    assert open_partition(manifest, "train", 0).rows == 500


def damage_size(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_header(path: Path) -> None:
    path.write_bytes(bytes(10) + path.read_bytes()[10:])


@pytest.mark.parametrize("damage", [damage_size, damage_header, Path.unlink])
def test_damaged_files(cache: Path, damage: Any) -> None:
    manifest = arrays().prepare(cache)
    damage(Path(manifest.path) / "train-00001" / "inputs-0.npy")
    open_partition(manifest, "train", 0)
    with pytest.raises(DataError, match=r"train partition 1 .*damaged.*prepare\(\)"):
        open_partition(manifest, "train", 1)


def test_prepare_makes_an_incomplete_entry_again(cache: Path) -> None:
    manifest = arrays().prepare(cache)
    damage_size(Path(manifest.path) / "train-00001" / "inputs-0.npy")
    assert arrays().prepare(cache).digest == manifest.digest
    assert open_partition(manifest, "train", 1).rows == 500
    (Path(manifest.path) / "manifest.json").write_text("{")
    assert arrays().prepare(cache).digest == manifest.digest


def flip(path: Path) -> None:
    """Turns one bit of a file's data, at another time than it was written."""
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("options", [{}, {"standardize": True}, {"key": np.arange(1000)}], ids=["", "scaled", "named"])
@pytest.mark.parametrize("file", ["inputs-0.npy", "targets-0.npy"])
def test_a_flipped_bit_is_found(
    cache: Path, options: dict[str, Any], file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where rows are opened it is an error; where their source is at hand, they are made again."""
    manifest = arrays(**options).prepare(cache)
    path = Path(manifest.path) / "train-00001" / file
    whole = path.read_bytes()
    flip(path)
    assert open_partition(manifest, "train", 0).rows
    with pytest.raises(DataError, match=rf"train partition 1 in {path.parent} is damaged: .*{file}.*prepare\(\)"):
        open_partition(manifest, "train", 1)
    again = arrays(**options).prepare(cache)
    assert path.read_bytes() == whole and again == manifest
    (said,) = caplog.messages
    assert str(path.parent.parent) in said and file in said and "made again" in said
    assert open_partition(again, "train", 1).rows and open_partition(manifest, "train", 1).rows


def test_a_flipped_bit_where_the_rows_are_elsewhere(cache: Path) -> None:
    """A copy of rows in memory has none to make the entry again from."""
    data = arrays()
    flip(Path(data.prepare(cache).path) / "train-00000" / "inputs-0.npy")
    with pytest.raises(DataError, match=r"call prepare\(\) there"):
        cloudpickle.loads(cloudpickle.dumps(data)).prepare(cache)


def test_a_file_is_compared_once_in_a_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process wrote, never: only another process sees what was flipped without a trace."""
    manifest = arrays().prepare(cache)
    path = Path(manifest.path) / "train-00000" / "inputs-0.npy"
    times = path.stat()
    flip(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert arrays().prepare(cache) == manifest and open_partition(manifest, "train", 0).rows
    monkeypatch.setattr(npy, "_VERIFIED", {})  # as another process has it
    with pytest.raises(DataError, match="damaged"):
        open_partition(msgspec.structs.replace(manifest), "train", 0)
    assert len(npy._VERIFIED) == 0
    assert open_partition(manifest, "train", 1).rows and len(npy._VERIFIED) == 2


def test_partitions_stay_mapped_while_the_manifest_lives(cache: Path) -> None:
    manifest = arrays().prepare(cache)
    first = open_partition(manifest, "train", 0)
    again = open_partition(manifest, "train", 0)
    assert again is not first
    assert again.inputs is first.inputs
    key, mapped = manifest.key, weakref.ref(first.inputs)
    del first, again
    assert mapped() is not None
    del manifest
    gc.collect()
    assert mapped() is None
    arrays(1, cache_bytes=0).prepare(cache)
    assert key not in entries(cache)


def test_the_files_are_plain_npy(cache: Path) -> None:
    manifest = arrays().prepare(cache)
    path = Path(manifest.path) / "train-00001" / "inputs-0.npy"
    assert np.array_equal(np.load(path), open_partition(manifest, "train", 1).inputs)


@pytest.mark.parametrize(("kind", "number"), [("train", 2), ("train", -1), ("validate", 0), ("test", 0)])
def test_partitions_that_are_not(cache: Path, kind: Any, number: int) -> None:
    with pytest.raises(SpecError, match="partition"):
        open_partition(arrays().prepare(cache), kind, number)


def test_manifests_that_cannot_be_read(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "m.json"
    with pytest.raises(DataError, match="cannot be read"):
        Manifest.load(path)
    path.write_text("[]")
    with pytest.raises(DataError, match="cannot be read"):
        Manifest.load(path)
    arrays().prepare(cache).save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(DataError, match="version 99"):
        Manifest.load(path)


def test_a_pickle_leaves_the_rows_behind(cache: Path, files: Path) -> None:
    data = arrays(rows=20_000)
    pickled = cloudpickle.dumps(data)
    assert len(pickled) < 5000
    with pytest.raises(DataError, match="memory of the process"):
        cloudpickle.loads(pickled).prepare(cache)
    manifest = data.prepare(cache)
    assert cloudpickle.loads(pickled).prepare(cache) == manifest
    again = cloudpickle.loads(cloudpickle.dumps(cloudpickle.loads(pickled)))
    assert again.prepare(cache) == manifest


def test_a_pickle_of_files_is_their_paths(cache: Path, files: Path) -> None:
    add = 3

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, batch.num_rows - add)

    second = Dataset.parquet(files / "part-1.parquet", features=["a"], label="n", partitions=2)
    data = Dataset.parquet(
        files / "part-0.parquet", features=["a"], label="n", transform=transform, validation=second, partitions=2
    )
    copy = cloudpickle.loads(cloudpickle.dumps(data))
    manifest = copy.prepare(cache)
    assert manifest.validate_rows == 100
    assert data.prepare(cache) == manifest


def test_a_pickle_of_a_reader(cache: Path) -> None:
    def make() -> Dataset:
        return Dataset.arrow(iter([pa.record_batch({"a": np.arange(50.0)})]), features="a", partitions=2)

    with pytest.raises(DataError, match="in the memory"):
        cloudpickle.loads(cloudpickle.dumps(make())).prepare(cache)
    data = make()
    manifest = data.prepare(cache)
    assert cloudpickle.loads(cloudpickle.dumps(data)).prepare(cache) == manifest


def test_the_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("hopyard.data.dataset.default_root", caches.default_root)
    assert tmp_path in Path(arrays().prepare().path).parents
    assert caches.default_root().name == "data"


def test_a_copy_keeps_its_rows(cache: Path) -> None:
    assert copy.deepcopy(copy.copy(arrays())).prepare(cache).rows == 1000


MEMORY = """
import resource, sys, numpy as np, pyarrow as pa
from hopyard.data.dataset import Dataset

def batches():
    for start in range(0, 1_000_000, 50_000):
        n = np.arange(start, start + 50_000, dtype=np.float64)
        yield pa.record_batch({"n": n} | {f"f{i}": n + i for i in range(39)})

Dataset.numpy(np.zeros((1000, 4)), np.zeros(1000), partitions=2, standardize=True).prepare(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
features = [f"f{i}" for i in range(39)]
Dataset.arrow(batches(), features=features, label="n", standardize=sys.argv[2] == "1").prepare(sys.argv[1])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("standardize", ["0", "1"])
def test_more_rows_than_memory(cache: Path, standardize: str) -> None:
    """320 MB of rows stream through: memory grows by a few batches (16 MB each) and one partition's mapped stage."""
    command = [sys.executable, "-c", MEMORY, str(cache), standardize]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 140e6


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def advance(self, count: int) -> None:
        self.count += 1

    def enter(self, phase: str) -> None:
        pass


@pytest.mark.slow
def test_waiting_for_a_maker_counts_as_its_progress(cache: Path) -> None:
    """Else who waits for a partition that another worker of the host brings would look hung."""
    counter = Counter()
    writes, stands, ends = threading.Event(), threading.Event(), threading.Event()

    def make(directory: Path) -> Manifest:
        made = Path(arrays().prepare(cache / "other").path)
        while not stands.is_set():
            with (directory / "part").open("ab") as file:
                file.write(bytes(100))
            writes.set()
            time.sleep(0.01)
        ends.wait(60)
        (directory / "part").unlink()
        for path in made.rglob("*.npy"):
            (directory / path.relative_to(made)).parent.mkdir(exist_ok=True)
            path.rename(directory / path.relative_to(made))
        return Manifest.load(made / "manifest.json", check=False)

    threads = [
        threading.Thread(target=caches.find_or_make, args=(cache, "key", make, 1 << 30), daemon=True) for _ in range(2)
    ]
    threads[0].start()
    assert writes.wait(60)
    meter.count_with(counter)
    try:
        threads[1].start()
        end = time.monotonic() + 60
        while counter.count < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert counter.count >= 3
        stands.set()
        time.sleep(1.5)
        before = counter.count
        time.sleep(1.5)
        assert counter.count == before
    finally:
        meter.count_with(None)
        stands.set()
        ends.set()
    for thread in threads:
        thread.join(60)
    assert entries(cache) == {"key"}
