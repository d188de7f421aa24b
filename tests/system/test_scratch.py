"""Folders of one process in the temporary directory, where every user may put something, too."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hopyard.system.scratch import scratch, scratch_folder, sweep

FOLDER = f"hopyard-{os.geteuid()}-task-"
HOLDS = """
import os, sys, time
from hopyard.system.scratch import scratch
made = scratch("model")
(made / "weights").write_bytes(b"x" * 1000)
if sys.argv[1] == "fork" and os.fork():
    os._exit(0)
print(os.getpid(), made, flush=True)
time.sleep(100)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
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


def holder(how: str) -> tuple[int, Path, subprocess.Popen[str]]:
    """A process that has a folder: the one that is started, or its fork."""
    child = subprocess.Popen([sys.executable, "-c", HOLDS, how], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pid, path = child.stdout.readline().split(" ", 1)
    if how == "fork":
        child.wait()
    child.stdout.close()
    return int(pid), Path(path.strip()), child


def gone(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "fork"])
def test_the_folder_of_a_killed_process_is_removed_by_the_next(temporary: Path, how: str) -> None:
    pid, path, child = holder(how)
    with scratch_folder("model"):
        assert (path / "weights").exists()  # it lives
    os.kill(pid, signal.SIGKILL)
    child.wait()

    def swept() -> bool:
        sweep(temporary)
        return not path.exists()

    assert gone(swept)
    assert list(temporary.iterdir()) == []


def test_a_folder_lives_as_long_as_its_block(temporary: Path) -> None:
    with scratch_folder("replay") as path:
        (path / "inner").mkdir()
        sweep(temporary)
        assert (path / "inner").exists() and path.parent == temporary and path.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []


def test_an_unfinished_directory_stays_until_it_is_old(temporary: Path) -> None:
    young = temporary / f"{FOLDER}young"
    young.mkdir()
    sweep(temporary)
    assert young.exists()
    os.utime(young, (time.time() - 100, time.time() - 100))
    sweep(temporary)
    assert not young.exists()


def test_two_of_one_process_do_not_remove_each_other(temporary: Path) -> None:
    first = scratch("spark")
    second = scratch("spark")
    assert first.exists() and second.exists()
