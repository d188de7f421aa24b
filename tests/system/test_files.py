"""Changes of files that nobody sees half."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from hopyard.system.files import replacing, still_there, sweep_parts, sync_directory, total_bytes


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("old")
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old" and part.parent == tmp_path
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_only_parts_of_writers_are_swept(tmp_path: Path) -> None:
    with replacing(tmp_path / "model.keras") as part:
        part.touch()
        mine = part.name
    assert mine.startswith(".part-") and mine.endswith("-model.keras")
    names = [mine, ".part-3-a.safetensors", ".run.json.12", ".part-x", ".part-7-", "run.json", "part-1-x"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / ".part-1-folder").mkdir()
    sweep_parts(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*names[2:], ".part-1-folder", "model.keras"}


def test_a_folder_is_summed_while_its_parts_vanish(tmp_path: Path) -> None:
    """As a worker looks at the partition that another one writes, and moves away at the end."""
    (tmp_path / "stays").write_bytes(bytes(7))
    ends = threading.Event()

    def come_and_go() -> None:
        while not ends.is_set():
            for i in range(20):
                (tmp_path / f"{i}" / "inner").mkdir(parents=True)
                (tmp_path / f"{i}" / "inner" / "part").write_bytes(bytes(100))
            for i in range(20):
                shutil.rmtree(tmp_path / f"{i}")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        found: list[int] = []
        until = time.monotonic() + 60  # the other thread may get no processor for long
        while len(found) < 500 or (len(set(found)) < 2 and time.monotonic() < until):
            found.append(total_bytes(tmp_path))
    finally:
        ends.set()
        thread.join()
    assert total_bytes(tmp_path) == 7
    assert all(count % 100 == 7 for count in found) and len(set(found)) > 1


def test_only_directories_are_synced(tmp_path: Path) -> None:
    sync_directory(tmp_path)
    (tmp_path / "data").touch()
    with pytest.raises(NotADirectoryError):
        sync_directory(tmp_path / "data")


def test_a_file_that_was_removed_is_not_there_any_longer(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        assert still_there(file, path)
        path.rename(tmp_path / "other")
        assert not still_there(file, path)
        path.touch()
        assert not still_there(file, path)
    finally:
        os.close(file)
