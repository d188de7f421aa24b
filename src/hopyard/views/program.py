"""A program as its journal tells it: how it stands, and each of its tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.core.programs.events import Launched, ProgramLine
from hopyard.core.programs.machine import begun
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


def story(lines: Iterable[ProgramLine]) -> Story:
    """How the program stands after these lines.

    Raises:
        JournalError: the first of them is not `Launched`.
    """
    told = Story()
    machine = None
    for line in lines:
        if machine is None:
            machine = begun(line)
            if isinstance(line, Launched):
                told.engine = str(line.about.get("engine", ""))
        machine.apply(line)
        told.last = line.at
    if machine is None:  # nothing has happened yet
        return told
    told.name, told.began = machine.spec.name, machine.began
    told.roles = ", ".join(f"{count} {role}" for role, (count, _, _) in machine.spec.roles.items())
    told.status, told.cause, told.restarts = machine.status, machine.cause, machine.restart
    for slot, record in machine.tasks.items():
        host = machine.known[slot].host if slot in machine.known else ""
        told.tasks[slot] = TaskRow(record.task.name, slot, host, record.status, dict(record.values), record.step)
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
