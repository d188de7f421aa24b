"""What a program keeps by itself: `ctx.checkpoint`, `ctx.restored`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopyard.agent.programs.context import ProgramContext


@pytest.fixture
def ctx(tmp_path: Path) -> Any:
    """Of a worker whose program has its directory here."""
    made = object.__new__(ProgramContext)
    made.directory, made.role, made.index = tmp_path, "worker", 0
    (tmp_path / "program.jsonl").touch()
    return made


def folder(ctx: Any) -> Path:
    return Path(ctx.directory) / "checkpoints" / "worker-0"


def test_the_last_one_written_comes_back_also_when_steps_begin_again(ctx: Any) -> None:
    assert ctx.restored() is None
    for step in (900, 1000, 1, 2, 3):
        ctx.checkpoint({"step": step}, step)
        assert ctx.restored() == ({"step": step}, step)
    assert sorted(path.name for path in folder(ctx).iterdir()) == ["000000004-2.safetensors", "000000005-3.safetensors"]


def test_a_step_may_be_written_twice_and_be_of_any_size(ctx: Any) -> None:
    for value, step in ((1, 5), (2, 5), (3, 10**13), (4, -1)):
        ctx.checkpoint({"value": value}, step)
        assert ctx.restored() == ({"value": value}, step)


def test_files_of_a_killed_writer_are_swept(ctx: Any) -> None:
    ctx.checkpoint({"w": 1}, 1)
    for pid in (1, 22, 333):
        (folder(ctx) / f".part-{pid}-000000002-2.safetensors").write_bytes(b"half")
    (folder(ctx) / "notes.txt").touch()
    assert ctx.restored() == ({"w": 1}, 1)
    ctx.checkpoint({"w": 2}, 2)
    assert {path.name for path in folder(ctx).iterdir()} == {
        "000000001-1.safetensors",
        "000000002-2.safetensors",
        "notes.txt",
    }
