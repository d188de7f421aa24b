"""`hopyard clean`: what it lists, what it removes, and what it never touches."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hopyard as hy
import hopyard.cli as cli
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import FILE
from hopyard.data.shared.needed import need
from hopyard.store.lock import Lock
from hopyard.store.urls import working
from hopyard.system import scratch
from hopyard.views import words
from jobs import digests, select
from spark_rows import NAME, spark_rows


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(cli.app, ["clean", *[str(each) for each in arguments]], catch_exceptions=False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a cache, a temporary directory and a working directory of their own."""
    for name in ("cache", "tmp", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(scratch, "_prefix", lambda: f"hopyard-{os.geteuid()}-{tmp_path.name}-")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def entry(home: Path, seed: int, days: float = 0.0) -> Any:
    x = np.full((20, 2), float(seed))
    manifest = Dataset.numpy(x, x[:, 0], partitions=2).prepare(home / "cache" / "hopyard" / "data")
    os.utime(Path(manifest.path) / FILE, (time.time() - days * 86_400,) * 2)
    return manifest


def there(home: Path) -> set[str]:
    return {path.parent.name for path in (home / "cache" / "hopyard" / "data").glob(f"*/{FILE}")}


def test_clean_of_an_empty_directory(home: Path) -> None:
    assert call().stdout == "nothing to remove\n"
    assert not list((home / "cache").iterdir())


def test_clean_lists_and_removes_only_on_request(home: Path) -> None:
    old, new = entry(home, 1, 20).key, entry(home, 2, 3).key
    listed = call()
    assert listed.exit_code == 0
    assert "20 days ago" in listed.stdout and "3 days ago" in listed.stdout
    assert "nothing was removed; --yes removes 2 of 2, " in listed.stdout
    assert there(home) == {old, new}
    assert "1 of 2 removed" in call("--yes", "--older-than", "7d").stdout
    assert there(home) == {new}
    assert "1 of 1 removed" in call("-y").stdout
    assert there(home) == set()


def test_clean_reports_the_caches_path_and_size(home: Path) -> None:
    root, old, new = home / "cache" / "hopyard" / "data", entry(home, 1, 20).path, entry(home, 2, 3).path
    sizes = {item["path"]: item["bytes"] for item in json.loads(call("--json").stdout)["items"]}
    assert json.loads(call("--json").stdout)["cache"] == {"path": str(root), "bytes": sum(sizes.values())}
    assert sizes[old] > 0
    left = words.size(sizes[new])
    said = (
        f"cache: {left} in {root}; at most 68.7 GB (cache_bytes= of a Dataset), and nothing that was unused for 30 days"
    )
    assert said in call("--yes", "--older-than", "7d").stdout


def test_needed_or_used_entries_stay(home: Path) -> None:
    run = home / "work" / "runs" / "a"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_text("x" * 500)
    needed, held = entry(home, 1), entry(home, 2)
    need(needed, run)
    keys = {needed.key, held.key}
    found = call("--yes")
    assert f"{run} may go on" in found.stdout
    assert "a process uses it" in found.stdout
    assert "0 of 2 removed" in found.stdout
    assert "runs: 1 run directory, 500 B; clean never removes these" in found.stdout
    assert there(home) == keys
    assert run.exists()


def test_rows_at_a_path_are_looked_at_when_it_is_named(home: Path) -> None:
    path = home / "rows"
    young, half = NAME.format(0), NAME.format(2)
    for number, age in enumerate((0.0, 9.0, 0.0, 9.0)):
        for file in Path(spark_rows(str(path), number, half=number > 1)).iterdir():
            os.utime(file, (time.time() - age * 86_400,) * 2)
    (path / "mine").mkdir()
    (path / "mine" / FILE).write_text("{}")
    assert call().stdout == "nothing to remove\n"
    found = call(path, "--yes", "--older-than", "1w")
    assert "2 of 4 removed" in found.stdout
    assert "written right now" in found.stdout
    assert {folder.name for folder in path.iterdir()} == {young, half, "mine"}
    found = call(path, "--yes")
    assert "0 of 2 removed" in found.stdout
    assert "--older-than 0" in found.stdout
    assert "1 of 2 removed" in call(path, "--yes", "--older-than", "0").stdout
    assert {folder.name for folder in path.iterdir()} == {half, "mine"}


@pytest.mark.parametrize("days", [0.9, 1.1])
def test_rows_at_a_path_may_be_read_for_a_day(home: Path, days: float) -> None:
    """Who reads them, a program for example, may leave neither a lock nor a note."""
    rows, cached = Path(spark_rows(str(home / "rows"))), entry(home, 1).key
    for file in rows.iterdir():
        os.utime(file, (time.time() - days * 86_400,) * 2)
    call(rows.parent, "--yes")
    assert rows.exists() == (days < 1)
    assert cached not in there(home)  # its readers hold a lock


def test_rows_whose_age_the_file_system_does_not_tell(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Path(spark_rows(str(home / "rows")))
    monkeypatch.setattr("hopyard.filesystems.Directory.times", lambda self: {})
    assert "its age is unknown; --older-than 0 removes it" in call(rows.parent, "--yes").stdout
    assert rows.exists()
    call(rows.parent, "--yes", "--older-than", "0")
    assert not rows.exists()


def test_leftovers_of_killed_processes(home: Path) -> None:
    temporary = home / "tmp"
    (temporary / "other").mkdir()
    young, dead, live = (scratch.Folder(temporary, name) for name in ("young", "dead", "live"))
    for folder in (young, dead):
        os.close(folder._fd)
    (young.path / "lock").unlink()
    listed = json.loads(call("--json").stdout)["items"]
    assert {item["path"]: (item["kept"], item["removed"]) for item in listed} == {str(dead.path): ("", False)}
    assert "1 of 1 removed" in call("--yes").stdout
    assert {path.name for path in temporary.iterdir()} == {"other", young.path.name, live.path.name}
    live.close()


@pytest.mark.parametrize("text", ["7", "00", "d", "7 d", "-1d", "7y", ""])
def test_ages_that_are_none(home: Path, text: str) -> None:
    found = call("--older-than", text)
    assert found.exit_code == 2
    assert "--older-than must be" in found.stderr and f"got {text!r}" in found.stderr


def test_clean_removes_copies_of_runs_at_urls_that_the_urls_have_whole(home: Path) -> None:
    url = f"local://{home}/bucket/run"
    (home / "bucket").mkdir()
    trained = digests(select(url))
    journal = working.folder_of(url) / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b"\n")
    call("--yes")
    assert journal.exists()
    (item,) = (item for item in json.loads(call("--json").stdout)["items"] if item["kind"] == "copy of a run")
    assert "may lack its end" in item["kept"]
    journal.write_bytes(whole)
    lock = Lock(journal.parent / "lock")
    assert "a driver is at work there" in call("--yes").stdout and journal.exists()
    lock.free()
    (home / "bucket").rename(home / "away")
    call("--yes")
    assert journal.exists(), "the last copy of the run"
    (home / "away").rename(home / "bucket")
    (journal.parent / ".earlier-1").mkdir()
    call("--yes")
    assert journal.exists(), "a copy of an earlier run"
    (journal.parent / ".earlier-1").rmdir()
    call("--yes")
    assert not any((home / "cache" / "hopyard" / "urls").iterdir())
    assert digests(hy.load(url)) == trained
