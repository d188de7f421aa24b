"""The lock of a run directory: one driver at a time, whatever ends it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hopyard.errors import RunDirectoryError
from hopyard.store.lock import Lock
from hopyard.store.standing import held


def test_a_lock_says_who_holds_it(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    with pytest.raises(RunDirectoryError, match=rf"\(process {os.getpid()}\)") as caught:
        Lock(tmp_path / "lock")
    assert caught.value.exit_code == 4, "it may be free later"
    lock.free()
    Lock(tmp_path / "lock").free()


def test_a_lock_waits_for_who_only_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").touch()
    asking = (tmp_path / "lock").open()
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr("time.sleep", lambda seconds: asking.close())
    Lock(tmp_path / "lock").free()
    monkeypatch.setattr("hopyard.store.lock.PATIENCE", 0.0)
    with (tmp_path / "lock").open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        with pytest.raises(RunDirectoryError, match="in use"):
            Lock(tmp_path / "lock")


def test_a_lock_that_is_asked_for_all_the_time_is_taken(tmp_path: Path) -> None:
    Lock(tmp_path / "lock").free()
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            held(tmp_path / "lock")

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    try:
        for _ in range(100):
            Lock(tmp_path / "lock").free()
    finally:
        ended.set()
        for thread in asking:
            thread.join()


def test_a_lock_that_is_free_closes_no_other_file(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    lock.free()
    with (tmp_path / "other").open("wb") as other:  # most likely the same descriptor
        lock.free()
        other.write(b"x")


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        f"import os, pathlib; from hopyard.store.lock import Lock; Lock(pathlib.Path({str(tmp_path / 'lock')!r})); "
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == -9
    Lock(tmp_path / "lock").free()


def test_a_lock_that_is_withdrawn_was_never_there(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    assert lock.made
    lock.withdraw()
    assert not (tmp_path / "lock").exists()
    Lock(tmp_path / "lock").free()
    again = Lock(tmp_path / "lock")
    assert not again.made
    again.withdraw()
    assert (tmp_path / "lock").exists()


def test_a_lock_on_a_file_that_was_removed_meanwhile_protects_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, path = fcntl.flock, tmp_path / "lock"

    def removed(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()  # by `withdraw` of another, between open and lock
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed)
    lock = Lock(path)
    assert path.exists()
    with pytest.raises(RunDirectoryError, match="in use"):
        Lock(path)
    lock.free()
