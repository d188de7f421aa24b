"""Partitions that only the driver's cache has: brought file by file, compared by digest; no other file is served."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import hopyard as hy
from hopyard.data.manifest import Manifest, file_names
from hopyard.data.partitions.cache import evict
from hopyard.data.partitions.mapped import close_partition, fetched_bytes, open_partition, rows_here
from hopyard.data.partitions.supply import SUPPLIES, serve, supply
from hopyard.errors import DataError
from hopyard.spec import PartitionRange


@pytest.fixture
def manifest() -> Manifest:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 3)).astype(np.float32), rng.integers(0, 2, 60)
    return hy.Dataset.numpy(x, y, weight=np.ones(60), validation=0.2, partitions=2).prepare()


def elsewhere(manifest: Manifest, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Manifest:
    """The same manifest on a host that does not see the entry."""
    monkeypatch.setattr("hopyard.data.partitions.mapped.default_root", lambda: cache)
    return _moved(manifest)


def _moved(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, path="/nowhere/" + manifest.key)


def test_a_partition_is_brought_once(manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = elsewhere(manifest, monkeypatch, tmp_path)
    asked = []

    def get(name: str) -> memoryview:
        asked.append(name)
        return serve(manifest, name)

    supply(there, get)
    for kind in ("train", "validate"):
        for partition in range(len(getattr(manifest, kind))):
            ours, brought = open_partition(manifest, kind, partition), open_partition(there, kind, partition)
            assert np.array_equal(ours.inputs, brought.inputs) and np.array_equal(ours.targets, brought.targets)
            assert np.array_equal(ours.weights, brought.weights)
    assert fetched_bytes(there) == manifest.bytes > 0 == fetched_bytes(manifest)
    parts = len(manifest.train) + len(manifest.validate)
    assert len(asked) == len(set(asked)) == parts * len(file_names(manifest.fields)) == parts * 3
    again = _moved(manifest)  # another process of that host
    supply(again, get)
    open_partition(again, "train", 1)
    assert len(asked) == parts * 3
    assert fetched_bytes(again) == 0
    number = id(again)
    del again
    assert number not in SUPPLIES


def test_a_partition_that_cannot_be_fetched(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = elsewhere(manifest, monkeypatch, tmp_path)

    def gone(name: str) -> memoryview:
        raise FileNotFoundError(name)

    supply(there, gone)
    with pytest.raises(DataError, match=r"train partition 0"):
        open_partition(there, "train", 0)

    def damaged(name: str) -> memoryview:
        return memoryview(bytes(serve(manifest, name))[:-4] + b"\0\1\2\3")

    supply(there, damaged)
    with pytest.raises(DataError):
        open_partition(there, "train", 0)
    supply(there, lambda name: serve(manifest, name))
    open_partition(there, "train", 0)


def test_a_host_that_sees_the_entry_asks_nobody(manifest: Manifest) -> None:
    supply(manifest, lambda name: pytest.fail("the rows are here"))
    open_partition(manifest, "train", 0)


@pytest.mark.parametrize(
    "name",
    ["../../secret", "train-00000/../../manifest.json", "train-00009/inputs-0.npy", "manifest.json", "", "/etc/x"],
)
def test_no_other_file_is_served(manifest: Manifest, name: str) -> None:
    with pytest.raises(FileNotFoundError, match="no file of"):
        serve(manifest, name)


def test_the_rows_of_a_host(manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it brought, as ranges; all of them where it sees the driver's entry."""
    parts = len(manifest.validate)
    assert rows_here(manifest) == (PartitionRange("train", 0, 2), PartitionRange("validate", 0, parts))
    there = elsewhere(manifest, monkeypatch, tmp_path)
    supply(there, lambda name: serve(manifest, name))
    assert rows_here(there) == ()
    open_partition(there, "train", 1)
    assert rows_here(there) == (PartitionRange("train", 1, 2),)
    for partition in range(parts):
        open_partition(there, "validate", partition)
    assert rows_here(there) == (PartitionRange("train", 1, 2), PartitionRange("validate", 0, parts))
    for number in (3, 4, 7):
        (tmp_path / f"{manifest.key}-train-{number:05d}").mkdir()
    (tmp_path / f"{'0' * len(manifest.key)}-train-00000").mkdir()  # of another table
    ranges = [(1, 2), (3, 5), (7, 8)]
    assert rows_here(there)[:3] == tuple(PartitionRange("train", first, end) for first, end in ranges)


def test_a_host_that_may_not_look_for_the_entry_brings_its_rows(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a folder of the driver's path that belongs to another user there ended all units, as did any error."""
    there = msgspec.structs.replace(elsewhere(manifest, monkeypatch, tmp_path), path=f"/{'x' * 300}/{manifest.key}")
    supply(there, lambda name: serve(manifest, name))
    assert rows_here(there) == ()
    open_partition(there, "train", 0)
    assert rows_here(there) == (PartitionRange("train", 0, 1),)


def test_a_partition_that_was_closed_can_be_evicted(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is still open cannot, however little room there is."""
    there = elsewhere(manifest, monkeypatch, tmp_path)
    supply(there, lambda name: serve(manifest, name))
    for partition in (0, 1):
        open_partition(there, "train", partition)
    evict(tmp_path, 0)
    assert rows_here(there) == (PartitionRange("train", 0, 2),)
    close_partition(there, "train", 0)
    close_partition(there, "validate", 0)  # it was never open
    evict(tmp_path, 0)
    assert rows_here(there) == (PartitionRange("train", 1, 2),)
    open_partition(there, "train", 0)
