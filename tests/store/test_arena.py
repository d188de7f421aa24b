"""Shared memory: what is taken is what was laid, whoever is reused, removed or killed."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.errors import ResourceError
from hopyard.spec import Ref
from hopyard.store import arena as module
from hopyard.store.arena import HEADER, Arena, ArenaReader, memory_name, memory_root, take
from hopyard.store.tree import decode, plan
from hopyard.system import scratch
from hopyard.system.scratch import Folder, sweep

MB = 1 << 20


class Bytes:
    """Something to lay without the codec."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.total = len(data)

    def write(self, buffer: memoryview) -> None:
        assert len(buffer) == self.total
        buffer[:] = self.data


def got(directory: Path, where: str, ref: Ref) -> bytes | None:
    taken = ArenaReader().take(directory, where, ref)
    if taken is None:
        return None
    data = bytes(taken.data)
    return data if taken.intact() else None


def file(where: str) -> str:
    """Files are used again, words are not."""
    return where.partition(".")[0]


def ref(step: int) -> Ref:
    return Ref(1, step, 1)


def test_a_written_state_can_be_read(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, MB)
    tree: dict[str, Any] = {"x": np.arange(100.0), "lr": 0.1}
    where = arena.lay(ref(1), plan(tree))
    taken = take(tmp_path, where, ref(1))
    assert taken is not None and taken.data.readonly
    back = decode(taken.data)
    assert np.array_equal(back["x"], tree["x"]) and taken.intact()
    assert bytes(arena.view(where)) == bytes(taken.data) and arena.view(where).readonly
    assert back["x"].ctypes.data % 64 == 0 or tree["x"].nbytes % 64


def test_another_ref_or_word_gives_none(tmp_path: Path) -> None:
    where = Arena(tmp_path, 0, MB).lay(ref(1), Bytes(b"x" * 10))
    for other in (Ref(2, 1, 1), Ref(1, 2, 1), Ref(1, 1, 2)):
        assert take(tmp_path, where, other) is None
    for word in ("", "0-00000000-0", "../../etc/passwd", "/etc/passwd", where + "/..", "lock", where + "\n"):
        assert take(tmp_path, word, ref(1)) is None
    assert take(tmp_path / "nowhere", where, ref(1)) is None


def test_settled_files_are_used_again_oldest_first(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, MB)
    wheres = [arena.lay(ref(step), Bytes(b"%d" % step)) for step in range(3)]
    assert len(set(wheres)) == 3
    for where in wheres[1], wheres[0]:
        arena.settle(where)
    again = arena.lay(ref(3), Bytes(b"3"))
    assert file(again) == file(wheres[0])
    assert got(tmp_path, wheres[0], ref(0)) is None
    assert got(tmp_path, again, ref(3)) == b"3"
    assert got(tmp_path, wheres[1], ref(1)) == b"1"  # settled, but still there
    assert file(arena.lay(ref(4), Bytes(b"4"))) == file(wheres[1])
    assert file(arena.lay(ref(5), Bytes(b"5"))) not in map(file, wheres)


def test_unsettled_states_are_never_touched(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, 4 * (1 << 16))
    wheres = [arena.lay(ref(step), Bytes(b"%d" % step)) for step in range(6)]
    assert wheres[4:] == ["", ""] and all(wheres[:4])
    assert [got(tmp_path, where, ref(step)) for step, where in enumerate(wheres[:4])] == [b"0", b"1", b"2", b"3"]
    arena.settle(wheres[2])
    arena.settle("not mine")
    assert file(arena.lay(ref(9), Bytes(b"9"))) == file(wheres[2])


def test_settled_files_of_other_sizes_make_room(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, 2 * MB)
    small = [arena.lay(ref(step), Bytes(b"s" * 200_000)) for step in range(5)]
    assert all(small)
    assert arena.lay(ref(10), Bytes(b"x" * MB)) == ""  # and nothing was given up for it
    assert all(got(tmp_path, where, ref(step)) for step, where in enumerate(small))
    for where in small:
        arena.settle(where)
    large = arena.lay(ref(11), Bytes(b"x" * MB))
    assert large and got(tmp_path, large, ref(11)) == b"x" * MB
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * MB
    assert arena.lay(ref(12), Bytes(b"x" * 3 * MB)) == ""


def test_a_larger_settled_file_will_do_when_there_is_no_room(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, MB + (1 << 18))
    large = arena.lay(ref(0), Bytes(b"x" * MB))
    arena.settle(large)
    assert file(arena.lay(ref(1), Bytes(b"y" * 300_000))) == file(large)
    assert got(tmp_path, large, ref(1)) == b"y" * 300_000


def test_size_classes_lose_at_most_a_quarter() -> None:
    for size in [1, 1 << 16, (1 << 16) + 1, 100_000_000, 2**30 - 1, 2**30, 2**30 + 1, *range(70_000, 900_000, 997)]:
        given = module._size_class(size)
        assert size <= given and (given <= 1 << 16 or given <= size * 1.25)
        assert module._size_class(given) == given


def test_a_failing_write_leaves_nothing_to_take(tmp_path: Path) -> None:
    class Broken(Bytes):
        def write(self, buffer: memoryview) -> None:
            super().write(buffer)
            raise RuntimeError("broken")

    arena = Arena(tmp_path, 0, MB)
    where = arena.lay(ref(0), Bytes(b"old"))
    arena.settle(where)
    with pytest.raises(RuntimeError):
        arena.lay(ref(1), Broken(b"new"))
    assert got(tmp_path, where, ref(0)) is None and got(tmp_path, where, ref(1)) is None
    assert file(arena.lay(ref(2), Bytes(b"next"))) == file(where)
    assert got(tmp_path, where, ref(2)) == b"next"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_gives_no_word_and_no_file(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(tmp_path, 0, 10 * MB)
    first = arena.lay(ref(0), Bytes(b"x" * MB))

    def full(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert arena.lay(ref(1), Bytes(b"y" * MB)) == ""
    assert [path.name for path in tmp_path.iterdir()] == [file(first)]
    arena.settle(first)
    assert file(arena.lay(ref(1), Bytes(b"y" * MB))) == file(first)


def test_other_faults_come_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(OSError, match="broken"):
        Arena(tmp_path, 0, MB).lay(ref(0), Bytes(b"x"))


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounts a small tmpfs")
def test_a_full_tmpfs_is_no_sigbus(tmp_path: Path) -> None:
    script = f"""
import ctypes, sys
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x00020000) or libc.mount(b"t", b"{tmp_path}", b"tmpfs", 0, b"size=8m"):
    print("no mount"); sys.exit()
sys.path.insert(0, "{Path(__file__).parent}")
from test_arena import *
arena = Arena(Path("{tmp_path}"), 0, 1 << 30)
words = [arena.lay(ref(n), Bytes(b"x" * 3 * MB)) for n in range(4)]
print([bool(word) for word in words])
arena.settle(words[0])
assert arena.lay(ref(9), Bytes(b"y" * 3 * MB)).partition(".")[0] == words[0].partition(".")[0]
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    if told.stdout.strip() == "no mount":
        pytest.skip("may not mount here")
    assert told.stdout.strip() == "[True, True, False, False]"


def test_a_swept_folder_gives_no_word(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    arena = Arena(folder, 0, MB)
    folder.rmdir()
    assert arena.lay(ref(0), Bytes(b"x")) == ""


def test_a_new_agent_of_the_slot_removes_the_files_of_the_old_one(tmp_path: Path) -> None:
    old = Arena(tmp_path, 1, MB).lay(ref(0), Bytes(b"old"))
    other = Arena(tmp_path, 11, MB).lay(ref(0), Bytes(b"other"))
    new = Arena(tmp_path, 1, MB).lay(ref(0), Bytes(b"new"))
    assert old != new and take(tmp_path, old, ref(0)) is None
    assert got(tmp_path, other, ref(0)) == b"other" and got(tmp_path, new, ref(0)) == b"new"


def test_close_removes_all_files_and_views_stay_good(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, MB)
    view = arena.view(arena.lay(ref(0), Bytes(b"abc")))
    arena.close()
    assert list(tmp_path.iterdir()) == [] and bytes(view) == b"abc"


def test_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    where = Arena(folder, 0, MB).lay(ref(0), Bytes(b"x"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / file(where)).stat().st_mode & 0o777 == 0o600


def test_a_reader_keeps_few_mappings_and_lets_go_of_removed_files(tmp_path: Path) -> None:
    arena, reader = Arena(tmp_path, 0, 10 * MB), ArenaReader(mappings=3)
    wheres = [arena.lay(ref(step), Bytes(b"%d" % step)) for step in range(5)]
    for step, where in enumerate(wheres):
        taken = reader.take(tmp_path, where, ref(step))
        assert taken is not None and bytes(taken.data) == b"%d" % step
    assert len(reader._mapped) == 3
    for where in wheres[1:]:
        (tmp_path / file(where)).unlink()
    assert reader.take(tmp_path, wheres[0], ref(0)) is not None
    assert len(reader._mapped) == 1


def test_a_state_overwritten_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, MB)
    where = arena.lay(ref(0), Bytes(b"a" * 1000))
    taken = take(tmp_path, where, ref(0))
    assert taken is not None and taken.intact()
    arena.settle(where)
    assert taken.intact()
    assert file(arena.lay(ref(1), Bytes(b"b" * 1000))) == file(where)
    assert not taken.intact()


def test_readers_never_see_a_mixture(tmp_path: Path) -> None:
    """A writer reuses one file as fast as it can; readers accept only whole States of the address they asked for."""
    size, seconds = 200_000, 1.0
    arena = Arena(tmp_path, 0, MB)
    latest: list[Any] = [None]
    ended = threading.Event()
    wrong: list[Any] = []
    good = [0, 0]

    def read() -> None:
        reader = ArenaReader()
        while not ended.is_set():
            if latest[0] is None:
                continue
            where, step = latest[0]
            taken = reader.take(tmp_path, where, ref(step))
            if taken is None:
                good[1] += 1
                continue
            data = bytes(taken.data)
            if taken.intact():
                good[0] += 1
                if data != bytes([step % 256]) * size:
                    wrong.append((step, data[:3], data[-3:]))
            else:
                good[1] += 1

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        where = arena.lay(ref(step), Bytes(bytes([step % 256]) * size))
        latest[0] = (where, step)
        arena.settle(where)
        step += 1
        if step % 7 == 0:
            time.sleep(0.002)
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert good[0] > 10


def test_lay_and_seal_from_two_threads(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, 2 * MB)
    laid: list[tuple[str, int]] = []
    done = threading.Event()
    faults: list[int] = []

    def seal() -> None:
        while not done.is_set() or laid:
            if laid:
                where, step = laid.pop(0)
                if bytes(arena.view(where)) != b"%d" % step * 5000:
                    faults.append(step)
                arena.settle(where)

    sealer = threading.Thread(target=seal)
    sealer.start()
    for step in range(300):
        where = arena.lay(ref(step), Bytes(b"%d" % step * 5000))
        if where:
            laid.append((where, step))
    done.set()
    sealer.join()
    assert not faults


def test_folder_is_removed_by_the_last_one(tmp_path: Path) -> None:
    first, second = Folder(tmp_path, "run/1"), Folder(tmp_path, "run/1")
    assert first.path == second.path and first.path.parent == tmp_path
    assert first.path.stat().st_mode & 0o777 == 0o700
    first.close()
    first.close()
    assert second.path.exists() and sweep(tmp_path) == []
    second.close()
    assert not second.path.exists()


def test_sweep_removes_what_kill_9_left(tmp_path: Path) -> None:
    script = f"""
import time
from pathlib import Path
from hopyard.system.scratch import Folder
folder = Folder(Path("{tmp_path}"), "run")
(folder.path / "0-00000000-0").write_bytes(b"State")
print("up", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        [left] = tmp_path.iterdir()
        assert sweep(tmp_path) == [] and left.exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert sweep(tmp_path) == [left]
    assert list(tmp_path.iterdir()) == []


def test_sweep_leaves_alone_what_is_not_ours_or_just_made(tmp_path: Path) -> None:
    for name in ("other", f"{scratch._prefix()}new", "hopyard-99999-run"):
        (tmp_path / name).mkdir()
    (tmp_path / "hopyard-99999-run" / "lock").touch()
    assert sweep(tmp_path) == []
    old = tmp_path / f"{scratch._prefix()}new"
    os.utime(old, (time.time() - 100, time.time() - 100))
    assert sweep(tmp_path) == [old]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"{scratch._prefix()}run"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    with pytest.raises(ResourceError, match="0700"):
        Folder(tmp_path, "run")
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(ResourceError):
        Folder(tmp_path, "run")


def test_memory_root_wants_room(tmp_path: Path) -> None:
    assert memory_root(tmp_path, 1 << 60) == tmp_path
    assert memory_root(tmp_path, 0) in (tmp_path, Path("/dev/shm"))


def test_removed_files_give_their_memory_back(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, 10 * MB)
    where = arena.lay(ref(0), Bytes(b"x" * MB))
    held = arena._files[file(where)]
    assert len(held.map) >= MB + HEADER
    arena.close()
    del held
    gc.collect()
    with open("/proc/self/maps") as maps:
        assert file(where) not in maps.read()


def test_a_late_release_spares_the_next_state_in_the_file(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, MB)
    old = arena.lay(ref(0), Bytes(b"old"))
    arena.settle(old)
    new = arena.lay(ref(1), Bytes(b"new"))
    assert file(new) == file(old) and new != old
    arena.settle(old)
    assert file(arena.lay(ref(2), Bytes(b"other"))) != file(new)
    assert bytes(arena.view(new)) == b"new"
    with pytest.raises(KeyError):
        arena.view(old)


# ---------------------------------------------------------------- a folder that is removed while the run goes on


def test_what_lies_in_a_removed_folder_can_still_be_stored_and_new_states_go_by_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Folder(tmp_path, "run")
    arena = Arena(folder.path, 0, 1 << 20)
    old, settled, new = Ref(0, 1, 1), Ref(1, 1, 1), Ref(0, 2, 2)
    where = arena.lay(old, Bytes(b"old"))
    arena.settle(arena.lay(settled, Bytes(b"settled")))
    shutil.rmtree(folder.path)
    assert take(folder.path, where, old) is None
    for _ in range(2):
        assert arena.lay(new, Bytes(b"new")) == ""
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert bytes(arena.view(where)) == b"old"
    own = arena.own(where, old)
    assert own is not None and bytes(own) == b"old"
    assert arena.own(where, new) is None
    arena.settle(where)
    assert arena.lay(new, Bytes(b"new")) == ""  # nothing else lies where nobody can open it
    arena.close()
    folder.close()
    assert not folder.path.exists()


def test_a_folder_that_others_have_made_again_goes_with_the_last_of_them(tmp_path: Path) -> None:
    driver = Folder(tmp_path, "run")
    shutil.rmtree(driver.path)
    agent = Folder(tmp_path, "run")
    driver.close()
    assert driver.path.exists()
    agent.close()
    assert not driver.path.exists()
    driver = Folder(tmp_path, "run")
    shutil.rmtree(driver.path)
    agent = Folder(tmp_path, "run")
    os.close(agent._fd)  # it was killed
    driver.close()
    assert not driver.path.exists()


def test_without_a_folder_states_go_by_the_store_alone(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "memory", 0, 1 << 20)
    shutil.rmtree(tmp_path / "memory")
    assert arena.lay(Ref(0, 1, 1), Bytes(b"x")) == ""
    arena.close()


def test_a_single_file_that_was_removed_is_not_used_again(tmp_path: Path) -> None:
    arena = Arena(tmp_path / "memory", 0, 1 << 20)
    where = arena.lay(Ref(0, 1, 1), Bytes(b"x"))
    arena.settle(where)
    (tmp_path / "memory" / where.partition(".")[0]).unlink()
    again = arena.lay(Ref(0, 2, 2), Bytes(b"y"))
    assert take(tmp_path / "memory", again, Ref(0, 2, 2)) is not None
    arena.close()


def test_folders_of_different_directories_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [memory_name(path) for path in (tmp_path / "run", tmp_path / "run", tmp_path / "runs", Path("run"))]
    assert len(set(names)) == 4
    first, again, other, relative = (name.partition("-")[0] for name in names)
    assert first == again == relative != other
