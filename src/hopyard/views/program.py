"""The status of a program and of each of its tasks, according to its journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.core.programs.events import Launched, ProgramLine
from hopyard.core.programs.machine import begun
from hopyard.text import escaped, one_line
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
class ProgramSummary:
    """A program: what it is, its status and its tasks."""

    name: str = ""
    roles: str = ""
    engine: str = ""
    status: str = "running"
    cause: str = ""
    restarts: int = 0
    began: float = 0.0
    last: float = 0.0
    tasks: dict[int, TaskRow] = field(default_factory=dict)

    def set_status(self, status: str) -> None:
        """Set the status, which the journal alone does not show; if "interrupted", also of tasks that had not ended."""
        self.status = status
        for task in self.tasks.values():
            if status == "interrupted" and task.status in ("starting", "running"):
                task.status = status


def summarize(lines: Iterable[ProgramLine]) -> ProgramSummary:
    """Return the status of the program after these lines.

    Raises:
        JournalError: the first of them is not `Launched`.
    """
    summary = ProgramSummary()
    machine = None
    for line in lines:
        if machine is None:
            machine = begun(line)
            if isinstance(line, Launched):
                summary.engine = str(line.about.get("engine", ""))
        machine.apply(line)
        summary.last = line.at
    if machine is None:  # nothing has happened yet
        return summary
    summary.name, summary.began = machine.spec.name, machine.began
    summary.roles = ", ".join(f"{count} {role}" for role, (count, _, _) in machine.spec.roles.items())
    summary.status, summary.cause, summary.restarts = machine.status, machine.cause, machine.restart
    for slot, record in machine.tasks.items():
        host = machine.known[slot].host if slot in machine.known else ""
        summary.tasks[slot] = TaskRow(record.task.name, slot, host, record.status, dict(record.values), record.step)
    return summary


def report(summary: ProgramSummary, directory: Path) -> str:
    """Return the summary as text for people."""
    lines = [
        f"{one_line(summary.name)}: {summary.status}",
        f"  directory  {one_line(str(directory))}",
        f"  roles      {summary.roles}, on {summary.engine}",
        f"  lasted     {words.duration(summary.last - summary.began)}",
    ]
    if summary.restarts:
        lines.append(f"  restarts   {summary.restarts}")
    if summary.cause:
        lines += ["  cause      " + summary.cause.replace("\n", "\n             ")]
    for task in summary.tasks.values():
        values = "  ".join(f"{name} {words.number(value)}" for name, value in task.values.items())
        step = "" if task.step is None else f"step {task.step}  "
        lines.append(f"  {task.name:<12} {task.status:<9} {task.host}  slot-{task.slot}.log  {step}{values}".rstrip())
    return escaped("\n".join(lines) + "\n")
