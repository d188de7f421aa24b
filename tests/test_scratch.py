"""Folders of one process in the temporary directory, where every user may put something, too."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from pathlib import Path

import pytest

from hopyard.scratch import PREFIX, scratch

FOLDER = f"{PREFIX}task-"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left(root: Path, name: str) -> Path:
    """A folder whose process was killed."""
    made = root / f"{FOLDER}{name}"
    made.mkdir()
    (made / "lock").touch()
    return made


def made_in_time() -> Path:
    """The folder; a test that would wait for ever fails."""
    found: list[Path] = []
    thread = threading.Thread(target=lambda: found.append(scratch("task")), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for what somebody else put there"
    return found[0]


def test_folders_of_processes_that_were_killed_are_removed(temporary: Path) -> None:
    dead, alive = left(temporary, "dead"), left(temporary, "alive")
    with (alive / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mine = made_in_time()
        assert not dead.exists() and alive.exists() and mine.exists()
    scratch("task")
    assert not alive.exists() and mine.exists(), "its own lock is held by this process"


def test_a_pipe_in_the_place_of_a_lock_stops_nobody(temporary: Path) -> None:
    (temporary / f"{FOLDER}trap").mkdir()
    os.mkfifo(temporary / f"{FOLDER}trap" / "lock")
    (temporary / f"{FOLDER}file").touch()
    assert made_in_time().is_dir()


def test_links_are_not_followed(temporary: Path) -> None:
    kept = left(temporary, "x").rename(temporary / "kept")
    (temporary / f"{FOLDER}link").symlink_to(kept)
    inner = left(temporary, "inner")
    (inner / "lock").unlink()
    (inner / "lock").symlink_to(kept / "lock")
    made_in_time()
    assert (kept / "lock").exists() and inner.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_folders_of_other_users_are_left_alone(temporary: Path) -> None:
    theirs = left(temporary, "theirs")
    os.chown(theirs, 12345, 12345)
    made_in_time()
    assert theirs.exists()
