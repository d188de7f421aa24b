"""What an agent that hosts a program starts beside it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hopyard.agent.programs.supervisor import TaskSupervisor
from hopyard.agent.programs.tensorboard import TensorBoard
from hopyard.core.programs.messages import FeedAllowed, FeedQuery
from hopyard.engines.local import AGENT, python_path


def test_no_process_looks_for_modules_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file there with the name of one of Python's own would be run in its place."""
    for place in ("here", "path"):
        (tmp_path / place / "tensorboard").mkdir(parents=True)
        (tmp_path / place / "tensorboard" / "__init__.py").touch()
        (tmp_path / place / "tensorboard" / "main.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'w').write('{place}')"
        )
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    board = TensorBoard("logs", "127.0.0.1")
    board._process.wait(60)
    board.close()
    assert (tmp_path / "ran").read_text() == "path"
    assert AGENT[1:3] == ("-P", "-m")


def test_an_agent_looks_where_this_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", ["/a", "", "/b"])
        found = python_path()
    assert found == os.pathsep.join(["/a", str(Path.cwd()), "/b"])


def test_how_far_a_feed_may_go_waits_for_a_task_that_does_not_read() -> None:
    """Bug: a question behind it took its place, and nobody said it again."""

    class Full:
        def __init__(self) -> None:
            self.sent: list[object] = []
            self.reads = False

        def writable(self) -> bool:
            return self.reads

        def send(self, message: object) -> None:
            self.sent.append(message)

    supervisor = TaskSupervisor.__new__(TaskSupervisor)
    supervisor._allowed = {}
    supervisor._pipe = pipe = Full()  # type: ignore[assignment]
    first, last = (FeedAllowed(feed="train", batches=n, final=n == 2) for n in (1, 2))
    supervisor._send(first)
    supervisor._send(last)
    supervisor._send(FeedQuery(feed="train", question=1))
    assert supervisor._allowed == {"train": last} and not pipe.sent
    pipe.reads = True
    supervisor._send(FeedQuery(feed="train", question=2))
    assert supervisor._allowed == {"train": last}, "it goes by the next step"
