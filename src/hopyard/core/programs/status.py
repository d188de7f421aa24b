"""The status of a program: one immutable value. The loop's thread makes it, other threads read it and wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hopyard.core.programs.events import Phase, Status
from hopyard.core.programs.machine import ProgramMachine
from hopyard.core.programs.messages import Endpoint
from hopyard.core.programs.placement import Task


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task.

    Attributes:
        task: its role, index and ranks.
        incarnation: a number that no other start of a task has.
        status: "starting", "running", "completed", "failed" or "ended".
        host: where it runs.
        agent: process of its agent; 0: not known.
        values: the metrics that it reported last.
        step: the training step that it reported last.
        endpoint: where it takes rows; None: not known yet.
    """

    task: Task
    incarnation: int
    status: str
    host: str
    agent: int
    values: Mapping[str, float]
    step: int | None
    endpoint: Endpoint | None


@dataclass(frozen=True, slots=True)
class ProgramStatus:
    """A program at one moment.

    Attributes:
        phase: the phase of its machine.
        status: the status that the user sees.
        cause: why it failed, or was stopped.
        failed_slot: slot of the task that failed first; −1: none.
        no_slots: whether it failed for want of slots.
        restart: times that tasks were started again.
        tasks: those of the present attempt, by slot.
        tensorboard_url: where TensorBoard listens; "": it does not.
        tensorboard_error: why it does not, though it was asked for.
        ended: whether nothing of it runs any more.
        error: the error that ended its driver.
    """

    phase: Phase
    status: Status | Literal["running"]
    cause: str
    failed_slot: int
    no_slots: bool
    restart: int
    tasks: tuple[TaskStatus, ...]
    tensorboard_url: str = ""
    tensorboard_error: str = ""
    ended: bool = False
    error: BaseException | None = None

    @property
    def fed(self) -> tuple[TaskStatus, ...]:
        """Chiefs and workers, by rank: rows go to them."""
        return tuple(sorted((task for task in self.tasks if task.task.rank >= 0), key=lambda task: task.task.rank))

    @property
    def slots(self) -> list[int]:
        """Slots of those that are fed."""
        return [task.task.slot for task in self.fed]

    @property
    def incarnations(self) -> frozenset[int]:
        """The incarnations of the tasks that are fed; a restart changes them."""
        return frozenset(task.incarnation for task in self.tasks if task.task.rank >= 0)

    @property
    def well(self) -> bool:
        """Whether it has ended as "completed", and its driver without an error."""
        return self.ended and self.status == "completed" and self.error is None

    def names(self, slots: list[int]) -> str:
        """Return the names of the tasks in these slots, as text."""
        names = {task.task.slot: task.task.name for task in self.tasks}
        return ", ".join(names.get(slot, f"slot {slot}") for slot in slots)


def status_of(machine: ProgramMachine, endpoints: Mapping[int, Endpoint]) -> ProgramStatus:
    """Return the program's status. `endpoints`: incarnation → where it takes rows."""
    tasks = []
    for slot, record in sorted(machine.tasks.items()):
        place = machine.known.get(slot)
        host, agent = ("", 0) if place is None else (place.host, place.pid)
        endpoint = endpoints.get(record.incarnation)
        tasks.append(
            TaskStatus(
                record.task, record.incarnation, record.status, host, agent, dict(record.values), record.step, endpoint
            )
        )
    return ProgramStatus(
        machine.phase,
        machine.status,
        machine.cause,
        machine.failed_slot,
        machine.no_slots,
        machine.restart,
        tuple(tasks),
    )
