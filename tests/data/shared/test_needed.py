"""What a run may still need stays in the cache, whatever its size and age; all else goes by both."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hopyard.data.dataset import Dataset
from hopyard.data.manifest import FILE, Manifest
from hopyard.data.partitions import cache as caches
from hopyard.data.partitions.cache import Entry, entries, evict, remove_rows, rows_in
from hopyard.data.shared.needed import need, needed, spare
from hopyard.errors import SpecError
from spark_rows import NAME, spark_rows


def made(cache: Path, seed: int) -> Manifest:
    """An entry that nobody holds."""
    x = np.random.default_rng(seed).normal(size=(50, 2))
    manifest = Dataset.numpy(x, x[:, 0], partitions=2).prepare(cache)
    path = Path(manifest.path)
    copy = Manifest.load(path / FILE)
    copy.path = str(path)
    return copy


def used(manifest: Manifest, days: float) -> None:
    """It was last used so many days ago."""
    os.utime(Path(manifest.path) / FILE, (time.time() - days * 86_400,) * 2)


def keys(cache: Path) -> list[str]:
    return [entry.path.name for entry in entries(cache)]


def test_by_age_and_by_size(cache: Path) -> None:
    old, second, third = (made(cache, seed) for seed in range(3))
    for manifest, days in ((old, 31), (second, 29)):
        used(manifest, days)
    assert keys(cache) == [old.key, second.key, third.key]
    evict(cache, 1 << 30)
    assert keys(cache) == [second.key, third.key]
    evict(cache, sum(entry.bytes for entry in entries(cache)) - 1)
    assert keys(cache) == [third.key]


def test_rows_of_a_run_stay_until_it_ends_or_is_removed(cache: Path, tmp_path: Path) -> None:
    first, second = made(cache, 1), made(cache, 2)
    runs = [tmp_path / "runs" / name for name in "ab"]
    for manifest, run in zip((first, second), runs, strict=True):
        run.mkdir(parents=True)
        need(manifest, run)
        need(manifest, run)
    used(first, 99)
    used(second, 98)
    assert [entry.runs for entry in entries(cache)] == [[str(run)] for run in runs]
    evict(cache, 0)
    assert len(keys(cache)) == 2
    spare(first, runs[0])
    runs[1].rmdir()
    evict(cache, 0)
    assert keys(cache) == []


@pytest.mark.parametrize("remote", [False, True], ids=["path", "url"])
def test_a_run_of_another_host_counts_for_30_days(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    manifest, run = made(cache, 1), tmp_path / "never"
    where = f"file://{manifest.path}" if remote else manifest.path
    noted: Any = SimpleNamespace(key="k", path="", stored=SimpleNamespace(url=where)) if remote else manifest

    def need_elsewhere() -> Path:
        with monkeypatch.context() as patch:
            patch.setattr("hopyard.data.shared.needed.socket.gethostname", lambda: "elsewhere")
            need(noted, run)
        (note,) = Path(manifest.path).glob(".needed-*")
        return note

    def days_ago(note: Path, days: float) -> None:
        os.utime(note, (time.time() - days * 86_400,) * 2)

    days_ago(need_elsewhere(), 29)
    assert needed(where) == [f"elsewhere:{run}"]
    evict(cache, 0)
    assert keys(cache) == [manifest.key]
    days_ago(need_elsewhere(), 31)
    assert needed(where) == []
    need_elsewhere()  # the run was resumed
    assert needed(where) == [f"elsewhere:{run}"]
    days_ago(need_elsewhere(), 31)
    evict(cache, 0)
    assert keys(cache) == []


def test_a_run_of_this_host_counts_whatever_the_age_of_its_note(cache: Path, tmp_path: Path) -> None:
    manifest = made(cache, 1)
    need(manifest, tmp_path)
    (note,) = Path(manifest.path).glob(".needed-*")
    os.utime(note, (0, 0))
    assert needed(manifest.path) == [str(tmp_path)]


def test_a_read_only_place_gets_no_mark(cache: Path, tmp_path: Path) -> None:
    manifest = made(cache, 1)
    manifest.path = str(tmp_path / "gone")
    need(manifest, tmp_path)
    spare(manifest, tmp_path)


@pytest.mark.parametrize("remote", [False, True], ids=["path", "url"])
def test_folders_of_rows_are_found_and_removed(tmp_path: Path, remote: bool) -> None:
    import fsspec

    store = f"memory://{tmp_path.name}" if remote else str(tmp_path / "store")
    url, named = spark_rows(store), spark_rows(store, name="flights-v1.2_b", half=True)
    assert rows_in(store) == [url, named] and rows_in(url) == [url] and rows_in(named) == [named]
    assert rows_in(f"{store}/nothing") == []
    remove_rows(url)
    remove_rows(named)
    assert rows_in(store) == []
    files, root = fsspec.core.url_to_fs(store)
    assert files.find(root) == []


@pytest.mark.parametrize("victim", ["run", "web", "notes", "spark-3.5.1-bin-hadoop3", NAME.format(7)])
def test_foreign_files_are_not_touched(tmp_path: Path, victim: str) -> None:
    """A run directory has the manifest of its rows; a browser's app a file of that name; a download Spark's name."""
    rows = Path(spark_rows(str(tmp_path / "rows")))
    folder = tmp_path / victim
    folder.mkdir()
    files = {
        "run": {FILE: (rows / FILE).read_text(), "journal.jsonl": "{}", "run.json": "{}"},
        "web": {FILE: '{"name": "app"}', "app.js": "1"},
        "notes": {"thesis.txt": "x"},
    }.get(victim, {"README": "x"})
    for name, text in files.items():
        (folder / name).write_text(text)
        os.utime(folder / name, (0, 0))
    os.utime(folder, (0, 0))
    assert rows_in(str(tmp_path)) == [] and rows_in(str(folder)) == []
    evict(tmp_path, 0)
    for url in (str(tmp_path), str(folder)):
        with pytest.raises(SpecError, match=r"no folder of rows"):
            remove_rows(url)
    assert {path.name for path in folder.iterdir()} == set(files)


def test_a_file_that_somebody_put_beside_rows_stays(tmp_path: Path) -> None:
    url = spark_rows(str(tmp_path))
    (Path(url) / "notes.txt").write_text("x")
    remove_rows(url)
    assert [path.name for path in Path(url).iterdir()] == ["notes.txt"]


def test_partitions_that_this_host_fetched_go_too(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "default_root", lambda: cache)
    manifest = made(cache, 1)
    Path(manifest.path).rename(cache / f"{manifest.key}-train-00000")
    path = cache / f"{manifest.key}-train-00000" / FILE
    fetched = Manifest.load(path, check=False)
    fetched.key = path.parent.name  # as `adopt` names it
    fetched.save(path)
    url = spark_rows(str(tmp_path), key=manifest.key)
    other = made(cache, 2)
    remove_rows(url)
    assert not Path(url).exists()
    assert keys(cache) == [other.key]


def test_held_rows_are_not_removed(cache: Path) -> None:
    x = np.ones((10, 2))
    held: Any = Dataset.numpy(x, x[:, 0], partitions=2).prepare(cache)
    (entry,) = entries(cache)
    assert isinstance(entry, Entry)
    assert not entry.remove()
    del held
    assert entry.remove()
