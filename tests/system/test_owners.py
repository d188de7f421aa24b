"""Who may write a file."""

from __future__ import annotations

import os
import struct
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


@needs_root
def test_root_is_nobodys_own_group_but_roots(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.chmod(0o660)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert other_writers(file) == "the group root may write it (mode 0660)"


def test_an_access_control_list(file: Path) -> None:
    entries = [(1, 6, 0xFFFFFFFF), (2, 6, STRANGER), (4, 0, 0xFFFFFFFF), (16, 6, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(file, "system.posix_acl_access", acl)
    except OSError as error:
        pytest.skip(f"this file system has no access control lists: {error}")
    assert other_writers(file) == "an access control list says who may write it"


def test_an_open_file_is_judged_by_itself(file: Path) -> None:
    with file.open("rb") as opened:
        file.chmod(0o666)
        file.unlink()
        file.touch(mode=0o600)
        assert other_writers(file) == ""
        assert "all users" in other_writers(file, opened.fileno())


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
