"""The kernel's count of processes that it killed for want of memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopyard.system import oom
from hopyard.system.oom import Kills, counter, kills


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/user.slice/run.scope", "user.slice/run.scope/memory.events"),
        ("4:memory:/docker/abc", "memory/docker/abc/memory.oom_control"),
        ("4:memory:/docker/abc", "memory/memory.oom_control"),  # a container sees its own part as the root
        ("5:cpu,memory:/a", "memory/a/memory.oom_control"),
    ],
)
def test_which_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, file: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cgroup").write_text(f"3:cpuset:/x\n{line}\n")
    made = tmp_path / "cgroup" / file
    made.parent.mkdir(parents=True)
    made.write_text("low 0\noom 4\noom_kill 3\n")
    monkeypatch.setattr(oom, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(oom, "Path", lambda name: tmp_path / "proc" / "cgroup" if "cgroup" in name else Path(name))
    found = counter(1)
    assert found == made and kills(found) == 3


def test_without_a_cgroup_the_whole_machine_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom, "CGROUPS", tmp_path)
    found = counter(os.getpid())
    assert found is None or found == oom.VMSTAT


def test_each_kill_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "memory.events"
    file.write_text("oom_kill 5\n")
    monkeypatch.setattr(oom, "counter", lambda pid: file)
    known = Kills()
    first, second = known.watch(1), known.watch(2)
    assert first == second == (file, 5)
    assert not known.killed(first)
    file.write_text("oom_kill 6\n")
    assert known.killed(second) and not known.killed(first)
    file.write_text("oom_kill 7\n")
    assert known.killed(first) and not known.killed(second)
    file.unlink()
    assert not known.killed(first) and not known.killed(None)


def test_a_kill_of_before_a_process_began_is_no_kill_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a neighbour in the cgroup ran out of memory, and the next worker that somebody killed was told to have."""
    file = tmp_path / "memory.events"
    file.write_text("oom_kill 0\n")
    monkeypatch.setattr(oom, "counter", lambda pid: file)
    known = Kills()
    first = known.watch(1)
    file.write_text("oom_kill 1\n")
    second = known.watch(2)
    assert not known.killed(second)
    assert known.killed(first)
    file.write_text("oom_kill 2\n")
    assert known.killed(second)


def test_one_kill_is_reported_for_one_worker_after_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: what was told did not catch up with what had happened before the workers began."""
    file = tmp_path / "memory.events"
    file.write_text("oom_kill 0\n")
    monkeypatch.setattr(oom, "counter", lambda pid: file)
    known = Kills()
    known.watch(1)
    file.write_text("oom_kill 10\n")
    second, third = known.watch(2), known.watch(3)
    file.write_text("oom_kill 11\n")
    assert known.killed(second) and not known.killed(third)


def test_a_process_that_is_gone_has_no_count() -> None:
    assert counter(2**30) is None
