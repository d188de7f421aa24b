"""The paths of a run directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.errors import RunDirectoryError
from hopyard.store.layout import Layout, find, fresh


def test_the_names_are_those_of_the_docstring() -> None:
    layout = Layout(Path("runs/x"))
    names = {path.name for path in (layout.journal, layout.lock, layout.about, layout.recipe, layout.manifest)}
    assert names == {"journal.jsonl", "lock", "run.json", "recipe.pkl", "manifest.json"}
    assert (layout.states.name, layout.logs.name) == ("states", "logs")
    assert (layout.report.name, layout.gantt.name) == ("report.txt", "gantt.html")
    assert layout.log(3) == Path("runs/x/logs/slot-3.log").absolute()
    assert all(path.parent == layout.root for path in (layout.journal, layout.states, layout.report))


def test_a_run_is_found_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "journal.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert find("runs/a").root == find("a").root == tmp_path / "runs" / "a"
    assert find("a").shown == "runs/a"
    assert find(tmp_path / "runs" / "a").exists


def test_a_layout_stays_where_it_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layout = Layout(Path("a"))
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    assert (layout.root, layout.shown) == (tmp_path / "a", str(tmp_path / "a"))
    (tmp_path / "b").rmdir()
    assert layout.shown == str(tmp_path / "a")


def test_a_missing_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"no run here.*hopyard ls") as caught:
        find(tmp_path)
    assert caught.value.exit_code == 2


def test_a_run_directory_that_cannot_be_looked_at() -> None:
    """As another user's, but an error that root sees too."""
    with pytest.raises(RunDirectoryError, match="File name too long"):
        find("x" * 300)


def test_a_fresh_directory_is_not_there(tmp_path: Path) -> None:
    names = set()
    for _ in range(20):
        path = fresh(tmp_path)
        assert path.parent == tmp_path
        assert not path.exists()
        path.mkdir()
        names.add(path)
    assert len(names) == 20
