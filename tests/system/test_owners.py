"""Who may write a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopyard.system.owners import other_writers

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users, which only root may")
STRANGER = 54321


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    path = folder / "recipe.pkl"
    path.touch(mode=0o600)
    return path


def test_ones_own(file: Path) -> None:
    assert other_writers(file) == ""
    file.chmod(0o644)
    file.parent.chmod(0o755)
    assert other_writers(file) == ""


@pytest.mark.parametrize("mode", [0o606, 0o602, 0o666, 0o1777])
@pytest.mark.parametrize("of_folder", [False, True])
def test_all_may_write(file: Path, mode: int, of_folder: bool) -> None:
    what, name = (file.parent, "its folder") if of_folder else (file, "it")
    what.chmod(mode | 0o700)
    assert other_writers(file) == f"all users may write {name} (mode {mode | 0o700:04o})"


@needs_root
@pytest.mark.parametrize("of_folder", [False, True])
def test_anothers(file: Path, of_folder: bool) -> None:
    os.chown(file.parent if of_folder else file, STRANGER, -1)
    assert other_writers(file) == f"{'its folder' if of_folder else 'it'} belongs to user {STRANGER}"


@needs_root
def test_a_group(file: Path) -> None:
    file.chmod(0o660)
    assert other_writers(file) == ""  # the group root has root alone
    os.chown(file, -1, STRANGER)
    assert other_writers(file) == f"the group {STRANGER} may write it (mode 0660)"
    file.chmod(0o640)
    assert other_writers(file) == ""


def test_links_count_as_what_they_lead_to_and_as_where_they_lie(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "links"
    folder.mkdir(mode=0o700)
    link = folder / "recipe.pkl"
    link.symlink_to(file)
    assert other_writers(link) == ""
    file.parent.chmod(0o777)
    assert "its folder" in other_writers(link)
    file.parent.chmod(0o700)
    folder.chmod(0o777)
    assert "its folder" in other_writers(link)
    with pytest.raises(FileNotFoundError):
        other_writers(file.with_name("none"))
