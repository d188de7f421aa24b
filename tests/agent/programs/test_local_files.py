"""`ctx.files`: local paths of files at URLs, copied ahead of the reader and removed behind it."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hopyard import SpecError
from hopyard.agent.programs.context import ProgramContext
from hopyard.errors import DataError, ResourceError
from hopyard.system.scratch import left

NAMES = [f"part-{number:05d}" for number in range(9)]


class Counted(MemoryFileSystem):
    """Files in memory, whose copies are counted while they are made."""

    protocol = "counted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    most = now = copied = 0
    lock = threading.Lock()
    meeting = threading.Barrier(1)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("counted://", "memory://"))

    def get_file(self, *args: Any, **more: Any) -> Any:
        with Counted.lock:
            Counted.now += 1
            Counted.copied += 1
            Counted.most = max(Counted.most, Counted.now)
        Counted.meeting.wait(60)
        result = super().get_file(*args, **more)
        with Counted.lock:
            Counted.now -= 1
        return result


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    fsspec.register_implementation("counted", Counted, clobber=True)
    system = fsspec.filesystem("counted")
    for name in [*NAMES, "_SUCCESS", ".hidden"]:
        system.pipe_file(f"/rows/{name}", f"of {name}".encode())
    Counted.most = Counted.now = Counted.copied = 0
    Counted.meeting = threading.Barrier(1)
    yield "counted://rows"
    system.rm("/rows", recursive=True)


def task(folder: Path, rank: int = 0, world_size: int = 1) -> ProgramContext:
    ctx = object.__new__(ProgramContext)
    ctx.role, ctx.index, ctx.rank, ctx.world_size, ctx.directory = "worker", rank, rank, world_size, folder
    ctx._session = SimpleNamespace(folder=folder)  # type: ignore[assignment]
    return ctx


def copies(folder: Path) -> list[Path]:
    return [path for path in folder.glob("hopyard-*/*") if path.name != "lock"]


def test_shares_and_order_are_those_of_shard(url: str, tmp_path: Path) -> None:
    for source in (url, f"{url}/part-*", [f"{url}/{name}" for name in NAMES]):
        for rank in range(2):
            ctx = task(tmp_path, rank, 2)
            texts = [Path(path).read_text() for path in ctx.files(source)]
            assert texts == [f"of {name}" for name in NAMES[rank::2]]
            assert [shared.rpartition("/")[2] for shared in ctx.shard(source)] == NAMES[rank::2]
    everything = [Path(path).read_text() for path in task(tmp_path, -1, 2).files(url, shard=False)]
    assert everything == [f"of {name}" for name in NAMES]


@pytest.mark.parametrize(("ahead", "keep"), [(1, 1), (2, 1), (3, 4), (20, 20)])
def test_copies_are_few(ahead: int, keep: int, url: str, tmp_path: Path) -> None:
    seen: list[str] = []
    for path in task(tmp_path).files(url, ahead=ahead, keep=keep):
        seen.append(path)
        assert len(copies(tmp_path)) <= ahead + keep
        for number, kept in list(enumerate(seen))[-keep:]:
            assert Path(kept).read_text() == f"of {NAMES[number]}" and kept.endswith(NAMES[number])
        assert not any(Path(gone).exists() for gone in seen[:-keep])
    assert len(seen) == len(NAMES) and Counted.copied == len(NAMES) and Counted.most <= ahead
    assert list(tmp_path.iterdir()) == []


def test_as_many_as_ahead_are_copied_at_once(url: str, tmp_path: Path) -> None:
    Counted.meeting = threading.Barrier(3)  # breaks unless three copies are made at the same time
    assert len(list(task(tmp_path).files(url, ahead=3))) == 9


def test_a_reader_that_stops_leaves_nothing(url: str, tmp_path: Path) -> None:
    for path in task(tmp_path).files(url, ahead=3):
        assert Path(path).exists()
        break
    assert list(tmp_path.iterdir()) == [] and Counted.copied <= 5


def test_local_files_are_not_copied(url: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    for name in NAMES:
        (rows / name).write_text(name)
    assert list(task(tmp_path, 1, 3).files("rows")) == [str(rows / name) for name in NAMES[1::3]]
    mixed = [rows / NAMES[0], f"{url}/{NAMES[1]}"]
    given = [Path(path).read_text() for path in task(tmp_path).files(mixed)]
    assert given == [NAMES[0], f"of {NAMES[1]}"] and (rows / NAMES[0]).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_faults_in_words(url: str, tmp_path: Path) -> None:
    ctx = task(tmp_path)
    with pytest.raises(DataError, match="no input file matches 'counted://rows/x\\*'"):
        ctx.files(f"{url}/x*")
    paths = ctx.files(url, ahead=1)
    next(paths)
    fsspec.filesystem("counted").rm(f"/rows/{NAMES[3]}")
    with pytest.raises(DataError, match=f"ctx.files: host .* cannot read counted:///rows/{NAMES[3]}: FileNot"):
        list(paths)
    assert list(tmp_path.iterdir()) == []
    for wrong in ({"ahead": 0}, {"keep": 0}, {"shard": 1}):
        with pytest.raises(SpecError, match=next(iter(wrong))):
            ctx.files(url, **wrong)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="has no shard"):
        task(tmp_path, -1, 2).files(url)


def test_no_room(tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
    fsspec.filesystem("memory").pipe_file("/large/rows", b"x" * (2 << 20))
    with pytest.raises(ResourceError, match=r"has no room in .* for a copy of memory:///large/rows .*TMPDIR"):
        list(task(small_disk("1m")).files("memory://large"))
    fsspec.filesystem("memory").rm("/large", recursive=True)


def test_no_room_for_a_file_of_this_size(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/large/rows", b"x" * (2 << 20))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(ResourceError, match="for a copy of memory:///large/rows"):
            list(task(tmp_path).files("memory://large"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
        fsspec.filesystem("memory").rm("/large", recursive=True)


KILLED = """
import os, signal, sys
from pathlib import Path
import fsspec
from hopyard.agent.programs.local_files import local_paths
fsspec.filesystem("memory").pipe_file("/rows/a", b"1")
for path in local_paths(["memory://rows/a"] * 9, Path(sys.argv[1]), 2, 1):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_what_a_killed_process_leaves_is_removed_by_the_next_call(url: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL and copies(tmp_path) and left(tmp_path)
    list(task(tmp_path).files(url))
    assert list(tmp_path.iterdir()) == []
