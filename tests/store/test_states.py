"""What only the local store promises: order of write, sync and rename. The rest is in tests/ports/test_store.py."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hopyard.errors import ResourceError
from hopyard.spec import Ref
from hopyard.store.states import LocalStore
from hopyard.system.files import FULL

REF = Ref(0, 8, 2)


def test_the_name_is_the_address(tmp_path: Path) -> None:
    LocalStore(tmp_path).put(REF, memoryview(b"x"))
    assert [path.name for path in tmp_path.iterdir()] == ["0-8-2.safetensors"]


def test_other_files_are_not_states(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in ("notes.txt", "1-2.safetensors", "1-2-3.safetensors.bak", "a-b-c.safetensors"):
        (tmp_path / name).touch()
    assert store.refs() == set()
    assert store.sweep() == 0


def test_synced_before_it_is_renamed_and_the_directory_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def synced(fd: int) -> None:
        fsync(fd)
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name.partition('-')[0]}")

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"rename to {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    store = LocalStore(tmp_path / "states")
    store.put(Ref(0, 7, 2), memoryview(b"x"))  # the first one tries whether files can be renamed
    done.clear()
    store.put(REF, memoryview(b"x"))
    assert done == ["sync .part", "rename to 0-8-2.safetensors", "sync states"]


@pytest.mark.slow
def test_kill_9_while_writing_leaves_a_part_that_sweep_removes(tmp_path: Path) -> None:
    script = f"""
import os, time
from pathlib import Path
from hopyard.spec import Ref
from hopyard.store.states import LocalStore
def stop(fd):
    print("writing", flush=True)
    time.sleep(60)
os.fsync = stop
LocalStore(Path("{tmp_path}")).put(Ref(0, 8, 2), memoryview(b"half"))
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    store = LocalStore(tmp_path)
    assert store.refs() == set() and len(list(tmp_path.iterdir())) == 1
    assert store.sweep() == 1 and list(tmp_path.iterdir()) == []
    store.put(REF, memoryview(b"whole"))
    assert store.get(REF) == b"whole"


@pytest.mark.parametrize("number", FULL, ids=errno.errorcode.__getitem__)
def test_no_space_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Bug: a limit of a file's size was told as a store that is away, and waited for without end."""

    def full(fd: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ResourceError, match="no room for State 0-8-2"):
        LocalStore(tmp_path).put(REF, memoryview(b"x"))
    assert list(tmp_path.iterdir()) == []


def test_short_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    store = LocalStore(tmp_path)
    store.put(REF, memoryview(bytes(range(100))))
    assert store.get(REF) == bytes(range(100))


def test_a_large_state_is_read_into_memory_that_is_aligned(tmp_path: Path) -> None:
    store, data = LocalStore(tmp_path), os.urandom((5 << 20) + 3)
    store.put(REF, memoryview(data))
    found = store.get(REF)
    assert found == data and not found.readonly
    assert np.frombuffer(found, np.uint8).ctypes.data % 64 == 0
