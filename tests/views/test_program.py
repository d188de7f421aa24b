"""A program as its journal tells it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hopyard.core.facts import Lost
from hopyard.core.programs.events import (
    CODEC,
    Assigned,
    Ended,
    Launched,
    Over,
    ProgramLine,
    Reported,
    Reserved,
    Running,
    spec_of,
)
from hopyard.core.programs.placement import Place, Task
from hopyard.errors import JournalError
from hopyard.store.journal import read
from hopyard.views.program import report, summarize

PLACE = Place(0, "a", 1, "10.0.0.1", (1, 2, 3))
TASKS = (Task("worker", 0, 0, 0, 0, 2, 0), Task("worker", 1, 1, 1, 1, 2, 0))
LINES: list[ProgramLine] = [
    Launched(at=1.0, spec=spec_of({"worker": 2}, None, name="train"), about={"engine": "local"}),
    Reserved(at=2.0, place=PLACE),
    Assigned(at=3.0, restart=1, tasks=TASKS, incarnations=(1, 2)),
    Running(at=3.0, slot=0, incarnation=1),
    Reported(at=4.0, slot=0, incarnation=1, values={"loss": 0.5}, step=7),
    Ended(at=5.0, slot=0, incarnation=1, returned=True),
    Lost(at=6.0, slot=1, reason="x"),
    Over(at=7.0, status="failed", cause="worker 1 failed: x\nmore", slot=1),
]


def test_the_report_says_how_each_task_stands() -> None:
    text = report(summarize(LINES), Path("runs/p"))
    assert text.splitlines()[0] == "train: failed"
    assert "roles      2 worker, on local" in text and "restarts   1" in text
    assert "worker 0     completed a  slot-0.log  step 7  loss 0.5" in text
    assert "worker 1     failed" in text


def test_a_torn_last_line_is_ignored_and_damage_reported(tmp_path: Path) -> None:
    path = tmp_path / "program.jsonl"
    whole = b"".join(msgspec.json.encode(line) + b"\n" for line in LINES)
    path.write_bytes(whole + b'{"type":"Ov')
    assert list(read(path, CODEC)) == LINES
    path.write_bytes(whole + b"rubbish\n")
    with pytest.raises(JournalError, match="line 9"):
        list(read(path, CODEC))


def test_a_newer_format_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "program.jsonl"
    path.write_bytes(b'{"type":"Launched","at":1.0,"format":2,"purpose":{"roles":[]}}\n{"type":"Renamed"}\n')
    with pytest.raises(JournalError, match=r"format 2, .*up to 1"):
        list(read(path, CODEC))


def test_a_journal_begins_with_the_launch() -> None:
    with pytest.raises(JournalError, match="begins with Launched, not Reserved"):
        summarize(LINES[1:])
    assert summarize([]).status == "running"


def test_unfinished_work_of_a_lost_driver_is_interrupted() -> None:
    told = summarize(LINES[:5])
    assert (told.status, told.tasks[0].status, told.tasks[1].status) == ("running", "running", "starting")
    told.set_status("interrupted")
    assert [told.status, *(task.status for task in told.tasks.values())] == ["interrupted"] * 3
    told = summarize(LINES[:6])
    told.set_status("interrupted")
    assert [task.status for task in told.tasks.values()] == ["completed", "interrupted"]
