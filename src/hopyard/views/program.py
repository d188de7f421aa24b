"""A program as its journal tells it: how it stands, and each of its tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.core.events import Lost
from hopyard.core.program_facts import (
    Assigned,
    Ended,
    Launched,
    Over,
    ProgramLine,
    Reported,
    Reserved,
    Running,
    decode,
)
from hopyard.errors import JournalError
from hopyard.views import words


@dataclass(slots=True)
class TaskRow:
    """One task of the last attempt."""

    name: str
    slot: int
    host: str = ""
    status: str = "starting"
    values: dict[str, float] = field(default_factory=dict)
    step: int | None = None


@dataclass(slots=True)
class Story:
    """A program."""

    name: str = ""
    roles: str = ""
    engine: str = ""
    status: str = "reserving"
    cause: str = ""
    script: bool = False
    alone: bool = False
    """Whether tasks are started again by themselves."""
    restarts: int = 0
    began: float = 0.0
    last: float = 0.0
    tasks: dict[int, TaskRow] = field(default_factory=dict)

    def stands(self, status: str) -> None:
        """How it stands, which a journal alone does not tell; what was left in the midst stands the same."""
        self.status = status
        for task in self.tasks.values():
            if status == "interrupted" and task.status in ("starting", "running"):
                task.status = status


def read(path: Path) -> list[ProgramLine]:
    """All whole lines of a program's journal.

    Raises:
        JournalError: damaged before its end.
    """
    data = path.read_bytes()
    found = []
    for number, text in enumerate(data.split(b"\n")[:-1], 1):
        try:
            found.append(decode(text))
        except JournalError as error:
            raise JournalError(f"{path}, line {number}: {error}") from error
    return found


def story(lines: Iterable[ProgramLine]) -> Story:
    """The fold of the journal."""
    told, hosts = Story(), dict[int, str]()
    for line in lines:
        told.last = line.at
        match line:
            case Launched():
                told.name, told.script, told.began = line.spec.name, line.spec.script, line.at
                told.alone = line.spec.restart == "task"
                told.engine = str(line.about.get("engine", ""))
                told.roles = ", ".join(f"{count} {role}" for role, (count, _, _) in line.spec.roles.items())
            case Reserved():
                hosts[line.place.slot] = line.place.host
            case Assigned():
                told.status, told.restarts = "running", line.restart
                alone = told.alone and {row.name for row in told.tasks.values()} == {task.name for task in line.tasks}
                kept = {slot: row for slot, row in told.tasks.items() if alone and row.status in ("running", "done")}
                told.tasks = {
                    task.slot: kept.get(task.slot) or TaskRow(task.name, task.slot, hosts.get(task.slot, ""))
                    for task in line.tasks
                }
            case Running() if line.slot in told.tasks:
                told.tasks[line.slot].status = "running"
            case Reported() if line.slot in told.tasks:
                task = told.tasks[line.slot]
                task.values |= line.values
                task.step = line.step if line.step is not None else task.step
            case Ended() if line.slot in told.tasks:
                good = not line.error and line.code == 0 and (line.returned or told.script)
                told.tasks[line.slot].status = "ended" if line.halted else "done" if good else "failed"
            case Lost() if line.slot in told.tasks:
                told.tasks[line.slot].status = "lost"
            case Over():
                told.status, told.cause = line.status, line.cause
            case _:
                pass
    return told


def report(told: Story, directory: Path) -> str:
    """For people."""
    lines = [
        f"{told.name}: {told.status}",
        f"  directory  {directory}",
        f"  roles      {told.roles}, on {told.engine}",
        f"  lasted     {words.duration(told.last - told.began)}",
    ]
    if told.restarts:
        lines.append(f"  restarts   {told.restarts}")
    if told.cause:
        lines += ["  cause      " + told.cause.replace("\n", "\n             ")]
    for task in told.tasks.values():
        values = "  ".join(f"{name} {words.number(value)}" for name, value in task.values.items())
        step = "" if task.step is None else f"step {task.step}  "
        lines.append(f"  {task.name:<12} {task.status:<9} {task.host}  slot-{task.slot}.log  {step}{values}".rstrip())
    return "\n".join(lines) + "\n"
