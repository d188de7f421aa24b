from __future__ import annotations

import copy
import gc
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
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopyard.data import cache as caches
from hopyard.data.cache import hold, open_partition
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.errors import DataError, SpecError


def arrays(seed: int = 0, rows: int = 1000, **options: Any) -> Dataset:
    x = np.random.default_rng(seed).normal(size=(rows, 4))
    return Dataset.numpy(x, x[:, 0], **({"partitions": 2} | options))


def entries(root: Path) -> set[str]:
    return {path.parent.name for path in root.glob("*/manifest.json")}


def test_found_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = arrays().prepare(cache)
    monkeypatch.setattr("hopyard.data.dataset.build", None)  # would fail if it built again
    assert arrays().prepare(cache) == first
    assert Path(first.path) == cache / first.key


def test_the_key_is_of_all_that_matters(cache: Path, files: Path) -> None:
    def key(**options: Any) -> str:
        given = {"features": ["a", "b"], "label": "n", "partitions": 2} | options
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
        key(assign="blocks"),
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
            (Dataset.parquet(tmp_path / "f.parquet", features="a")._key(), (tmp_path / "f.parquet").stat().st_size)
        )
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1]


MAKE = """
import sys, numpy as np
from hopyard.data.dataset import Dataset
import hopyard.data.dataset as room
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
    data._key()
    threads = [threading.Thread(target=data.prepare, args=(cache,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == [100]


def make_in_child(root: str, seed: int) -> None:
    arrays(seed).prepare(root)


def test_a_killed_maker_leaves_nothing_that_hinders(cache: Path) -> None:
    key = arrays()._key()
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


def test_what_is_held_stays(cache: Path) -> None:
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
        kept = hold(cache, key)
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
    with pytest.raises(DataError, match="in the memory of the process that named them"):
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


@pytest.mark.parametrize("standardize", ["0", "1"])
def test_more_rows_than_memory(cache: Path, standardize: str) -> None:
    """320 MB of rows stream through: memory grows by a few batches (16 MB each) and one partition's mapped stage."""
    command = [sys.executable, "-c", MEMORY, str(cache), standardize]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < 140e6
