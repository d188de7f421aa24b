"""The life of a program: reserved → running → completed, failed or stopped, and restarted on the way.

It is for programs what `core/runs/machine.py` is for runs: facts in, commands out, no clock and no I/O. `apply` changes
state by one line of the journal and is a plain fold; `handle` applies one event and then decides what follows.
Decisions that change state are facts themselves, and belong in the journal behind the event that led to them. A `Tick`
changes nothing, so it is not in the journal; what the machine decides after a `Tick` is.

*reserving*: agents come up, each reserves ports; slots that are too few may be given back (`reservation.py`).
*running*: tasks run. *failing*: a task failed; for a moment others may report what they know, as the first to notice is
seldom the first to fail. Where failed tasks alone are restarted, *running* follows. *restarting*: all tasks of the old
attempt end before those of the new one begin, since they would connect to each other. *closing*: the program is over,
tasks that only serve are ended. *over*: nothing runs any more.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Literal

import msgspec

from hopyard.core.facts import Lost, Tick
from hopyard.core.programs.events import (
    AskedAgain,
    Assigned,
    Begin,
    Closing,
    Decision,
    Ended,
    Finish,
    GiveBack,
    Halt,
    Launched,
    Over,
    Overdue,
    Phase,
    ProgramCommand,
    ProgramEvent,
    ProgramLine,
    ProgramSpec,
    Renew,
    Reported,
    RequestStop,
    Reserved,
    Restarting,
    Running,
    Status,
    Stop,
    Waiting,
    Yielded,
)
from hopyard.core.programs.placement import SERVING, Place, Task, assign, environment, peers
from hopyard.core.programs.reservation import ELASTIC, FAILED_STARTS, Reservation
from hopyard.errors import JournalError, SpecError

SETTLE = 0.7
"""Seconds from the first failure until its cause is judged."""
LAST = 5.0
"""Seconds in which tasks that the driver ends must have ended."""


class TaskRecord(msgspec.Struct, eq=False):
    """What the machine, which owns it, knows of one task."""

    task: Task
    incarnation: int
    began: float
    status: Literal["starting", "running", "completed", "failed", "ended"] = "starting"
    code: int | None = None
    cause: str = ""
    values: dict[str, float] = {}
    step: int | None = None
    up: bool = True
    """Whether its `main` is running or starting."""


class _Failure(msgspec.Struct, frozen=True):
    at: float
    record: TaskRecord
    text: str
    killed: bool
    lost: bool


class ProgramMachine:
    """The only owner of a program's state."""

    def __init__(self, spec: ProgramSpec) -> None:
        self.spec = spec
        self.phase: Phase = "reserving"
        self.status: Status | Literal["running"] = "running"
        self.cause = ""
        self.no_slots = False
        """Whether it failed for want of slots."""
        self.failed_slot = -1
        self.began = 0.0
        """When it was launched."""
        self.reservation = Reservation(spec)
        self.tasks: dict[int, TaskRecord] = {}
        """Slot → its task in the present attempt."""
        self.restart = 0
        """Times that tasks were started again, for whatever reason."""
        self.incarnations = 0
        self._spent = 0
        """Restarts after failures: these count against `max_restarts`."""
        self._phase_began = 0.0
        """When the present phase began."""
        self._failures: list[_Failure] = []
        self._stopping: Stop | None = None
        """A stop whose grace time has begun."""
        self._halted = False
        self._verdict: Status = "completed"
        self._out: list[ProgramCommand] = []

    @property
    def places(self) -> dict[int, Place]:
        """Slot → what its agent reserved, for the slots that are there."""
        return self.reservation.places

    @property
    def known(self) -> dict[int, Place]:
        """The same for all slots that ever were there."""
        return self.reservation.known

    # ------------------------------------------------------------------------------------------------ asked by the loop

    def handle(self, event: ProgramEvent) -> list[ProgramCommand]:
        """Apply one event and decide what follows."""
        if self.phase == "over":
            return []
        out: list[ProgramCommand] = []
        self._out, before = out, self.phase
        if not isinstance(event, Tick):
            self.apply(event)
        self._renew(before)
        match event:
            case Launched():
                out += [Renew(slot) for slot in range(self.spec.slots)]
            case Lost() if before == "reserving" and not self.reservation.gave_back(event.slot):
                self._fail_or_renew(event)
            case Stop() if event.grace > 0 and self.phase == "running":
                self._warn()
            case Stop():
                self._stop(event, event.at)
            case _:
                pass  # it is in the state
        self._advance(event.at)
        return out

    def apply(self, line: ProgramLine) -> None:
        """Change state by one line of the journal, and decide nothing."""
        if self.phase != "over":
            _APPLY[type(line)](self, line)

    def due(self, now: float) -> float | None:
        """Return when the next timeout ends, of those that had not at `now`, the time of the last event. A `Tick` may
        lead to a decision then, and not before. None: there is no timeout.
        """
        spec, deadlines = self.spec, []
        if self._stopping is not None:
            deadlines.append(self._stopping.at + self._stopping.grace)
        if spec.max_time is not None:
            deadlines.append(self.began + spec.max_time)
        match self.phase:
            case "reserving":
                deadlines += self.reservation.deadlines()
            case "running":
                starting = [record for record in self.tasks.values() if record.status == "starting"]
                deadlines += [record.began + spec.start_timeout for record in starting]
                if len(self.tasks) < len(self.places):
                    deadlines.append(self.reservation.last_arrival + ELASTIC)
            case "failing":
                deadlines.append(self._phase_began + SETTLE)
            case "restarting":
                deadlines.append(self._phase_began + LAST)
            case "closing":
                deadlines += [self._phase_began + spec.grace, self._phase_began + spec.grace + LAST]
            case "over":
                pass
        return min((deadline for deadline in deadlines if deadline >= now), default=None)

    # ------------------------------------------------------------------------------------------------ the fold

    def _launched(self, fact: Launched) -> None:
        self.began = self._phase_began = fact.at
        self.reservation.begin(fact.at)

    def _running(self, fact: Running) -> None:
        record = self._record(fact.slot, fact.incarnation)
        if record is not None and record.status == "starting":
            record.status = "running"

    def _reported(self, fact: Reported) -> None:
        record = self._record(fact.slot, fact.incarnation)
        if record is not None:
            record.values |= fact.values
            record.step = fact.step if fact.step is not None else record.step

    def _ended(self, fact: Ended) -> None:
        record = self._record(fact.slot, fact.incarnation)
        if record is None or not record.up:
            return
        record.code, record.up = fact.code, False
        succeeded = not fact.error and fact.code == 0 and (fact.returned or self.spec.script)
        if fact.halted or self.phase in ("restarting", "closing"):
            if record.status != "failed":
                record.status = "ended" if fact.halted else "completed" if succeeded else "failed"
                record.cause = fact.error or (f"its {fact.story}" if fact.story else "")
        elif succeeded:
            record.status = "completed"
        else:
            text = fact.error or f"its {fact.story}"
            if fact.code == 0 and not fact.error:
                text = f"its {fact.story} before main returned"
            if fact.trace:
                text += f"\n{fact.trace.rstrip()}"
            self._fail(fact.at, record, text, killed=fact.code == -9)
        self._reserve_if_all_ended(fact.at)

    def _lost(self, fact: Lost) -> None:
        place = self.reservation.lose(fact, early=self.phase == "reserving")
        record = self.tasks.get(fact.slot)
        if record is None or not record.up:
            return
        record.up = False
        if self.phase == "restarting" or (self.phase == "closing" and self._halted):
            record.status = "ended"
        else:
            host = place.host if place is not None else "?"
            cause = f"the agent that hosted it on {host} was lost: {fact.reason}"
            self._fail(fact.at, record, cause, killed=True, lost=True)
        self._reserve_if_all_ended(fact.at)

    def _overdue(self, line: Overdue) -> None:
        self._fail(line.at, self.tasks[line.slot], line.cause)

    def _fail(self, at: float, record: TaskRecord, cause: str, *, killed: bool = False, lost: bool = False) -> None:
        record.status, record.cause = "failed", cause
        self._failures.append(_Failure(at, record, cause, killed, lost))
        if self.phase == "running":
            self._go("failing", at)

    def _assigned(self, line: Assigned) -> None:
        self.restart, self._spent = line.restart, line.spent
        records = {}
        for task, incarnation in zip(line.tasks, line.incarnations, strict=True):
            record = self._record(task.slot, incarnation)
            records[task.slot] = record if record is not None else TaskRecord(task, incarnation, line.at)
        self.tasks = records  # at once, as others read it
        self.incarnations = max(self.incarnations, *line.incarnations)
        self.reservation.failed_starts.clear()
        self._failures.clear()
        self._go("running", line.at)

    def _restarting(self, line: Restarting) -> None:
        self.restart, self._spent = line.restart, line.spent
        self.cause, self.failed_slot = line.cause, line.slot
        self._failures.clear()
        self._go("restarting", line.at)
        self._reserve_if_all_ended(line.at)

    def _reserve_if_all_ended(self, at: float) -> None:
        """Go on to *reserving* if all tasks of the old attempt have ended."""
        if self.phase == "restarting" and not any(record.up for record in self.tasks.values()):
            self._go("reserving", at)
            self.reservation.begin(at)

    def _stopped(self, fact: Stop) -> None:
        """Note a stop with grace time; of several, the first to be over. `Closing` follows, at once or at that time."""
        if fact.grace > 0 and self.phase == "running":
            self._stopping = min(self._stopping or fact, fact, key=lambda stop: stop.at + stop.grace)

    def _closing(self, line: Closing) -> None:
        if self.phase != "closing":
            self._go("closing", line.at)
        self._verdict, self._halted, self.no_slots = line.status, line.halted, line.no_slots
        self.cause, self.failed_slot = line.cause, line.slot

    def _over(self, line: Over) -> None:
        self._go("over", line.at)
        self.status, self.cause, self.failed_slot = line.status, line.cause, line.slot

    def _go(self, phase: Phase, at: float) -> None:
        self.phase = phase
        self._phase_began = at

    def _record(self, slot: int, incarnation: int) -> TaskRecord | None:
        """Return the task in this slot; None: it has another incarnation."""
        record = self.tasks.get(slot)
        return record if record is not None and record.incarnation == incarnation else None

    # ------------------------------------------------------------------------------------------------ decisions

    def _decide(self, decision: Decision) -> None:
        """Apply a decision, and add the commands that carry it out."""
        before, incarnations = self.phase, self.incarnations
        self.apply(decision)
        self._out.append(decision)
        match decision:
            case Assigned():
                self._out += [
                    self._begin(record) for record in self.tasks.values() if record.incarnation > incarnations
                ]
            case Restarting() | Closing(halted=True):
                self._halt()
            case Closing():
                self._warn()
            case Yielded():
                self._out.append(GiveBack(range(self.spec.shared_slots)))
            case AskedAgain():
                self._out += [Renew(slot) for slot in range(self.spec.shared_slots)]
            case Over():
                self._out.append(Finish(decision.status))
            case _:
                pass  # nothing is sent
        self._renew(before)

    def _renew(self, before: Phase) -> None:
        """Ask for agents for the slots that are gone, when all tasks of an attempt have ended."""
        if self.phase == "reserving" and before != "reserving":
            self._out += [Renew(slot) for slot in range(self.spec.slots) if slot not in self.places]

    def _begin(self, record: TaskRecord) -> Begin:
        tasks = [other.task for other in self.tasks.values()]
        # From `known`, not `places`: a task that has ended may have lost its agent, but its peers still name it.
        variables = environment(
            record.task, tasks, self.known, self._spent, self.spec.max_restarts, self.spec.run_id or self.spec.name
        )
        return Begin(record.task, record.incarnation, self.restart, variables, peers(tasks, self.known))

    def _warn(self) -> None:
        """Tell the tasks that still run that they may end by themselves."""
        self._out += [RequestStop(record.task.slot, record.incarnation) for record in self.tasks.values() if record.up]

    def _halt(self) -> None:
        """End the tasks that still run: parameter servers, evaluators, then the others."""
        order = {name: number for number, name in enumerate(SERVING)}
        up = [record for record in self.tasks.values() if record.up]
        up.sort(key=lambda record: (order.get(record.task.role, len(order)), record.task.slot))
        self._out += [Halt(record.task.slot, record.incarnation) for record in up]

    def _advance(self, at: float) -> None:
        """Decide what is due."""
        if self._stopping is not None and at - self._stopping.at >= self._stopping.grace:
            self._stop(self._stopping, at)
        if self.phase == "failing" and at - self._phase_began >= SETTLE:
            self._judge(at)
        if self.phase == "running":
            self._look(at)
        if self.phase == "restarting" and at - self._phase_began >= LAST:
            for record in [record for record in self.tasks.values() if record.up]:
                reason = f"it has not ended its task within {LAST:.0f} seconds"
                self._decide(Lost(at=at, slot=record.task.slot, reason=reason))
        if self.phase == "reserving":
            self._gather(at)
        if self.phase == "closing":
            self._settle(at)

    def _gather(self, at: float) -> None:
        """Run the tasks if there are enough slots; else wait for more, or give back those that are too few."""
        if self._too_long(at):
            return None
        if not self.reservation.complete(at):
            decision = self.reservation.decision(at)
            return None if decision is None else self._decide(decision)
        try:
            tasks = assign(self.spec.wanted, list(self.places.values()))
        except SpecError as error:
            return self._close(at, "failed", str(error))
        incarnations = tuple(range(self.incarnations + 1, self.incarnations + 1 + len(tasks)))
        self._decide(Assigned(at=at, restart=self.restart, tasks=tasks, incarnations=incarnations, spent=self._spent))

    def _fail_or_renew(self, fact: Lost) -> None:
        """Ask for another agent, as one ended before the program began; fail after `FAILED_STARTS` in one slot."""
        if self.reservation.failed_starts[fact.slot] < FAILED_STARTS:
            self._out.append(Renew(fact.slot))
            return
        agents = f"{FAILED_STARTS} agents of slot {fact.slot}, one after the other,"
        self._close(
            fact.at, "failed", f"{agents} ended before the program began, the last: {fact.reason}", slot=fact.slot
        )

    def _look(self, at: float) -> None:
        """End, fail or restart what runs, if it is time."""
        limit = self.spec.start_timeout
        late = [record for record in self.tasks.values() if record.status == "starting" and at - record.began > limit]
        if all(record.status == "completed" for record in self.tasks.values() if self.spec.awaits(record.task)):
            self._close(at, "completed", halted=False)
        elif late:
            cause = (
                f"it has not begun its main within {limit:.0f} seconds: it hangs while what it needs is imported or "
                "unpickled; its log has its stack"
            )
            self._decide(Overdue(at=at, slot=late[0].task.slot, incarnation=late[0].incarnation, cause=cause))
        elif not self._too_long(at) and self._grows(at):
            self._decide(Restarting(at=at, restart=self.restart + 1, spent=self._spent))

    def _too_long(self, at: float) -> bool:
        """Close the program if `max_time` is over, and return whether it is; restarts do not begin that time anew."""
        limit = self.spec.max_time
        if limit is None or at - self.began < limit:
            return False
        cause = f"it took longer than max_time={limit:g} seconds"
        if self.restart:
            cause += f", its {self.restart} restart(s) included"
        if self.phase == "reserving":
            cause += (
                f"; it waited for slots, and there were {self.reservation.most} of the {self.spec.least} that it needs"
            )
        self._close(at, "failed", cause, halted=False)
        return True

    def _grows(self, at: float) -> bool:
        """Whether an elastic program should be started again on slots that came since. It must be allowed to
        restart, and all its tasks must run; torchrun restarts at once (Elastic Agent, "Membership Changes")."""
        settled = at - self.reservation.last_arrival >= ELASTIC
        has_more_slots = len(self.tasks) < min(len(self.places), self.spec.slots) and settled
        all_running = all(record.status == "running" for record in self.tasks.values())
        return has_more_slots and all_running and self.spec.max_restarts > 0 and self.spec.restart_scope == "program"

    def _judge(self, at: float) -> None:
        """Restart, or end with the first cause. A process that was killed or a slot that was lost is a cause even if a
        peer noticed it before its own host reported it."""
        killed = [failure for failure in self._failures if failure.killed]
        first = min(killed or self._failures, key=lambda failure: failure.at)
        cause, slot = f"{first.record.task.name} failed: {first.text}", first.record.task.slot
        restart, spent = self.restart + 1, self._spent + 1
        if spent > self.spec.max_restarts:
            self._close(at, "failed", cause, slot=slot)
        elif not self._restarts_alone():
            self._decide(Restarting(at=at, restart=restart, spent=spent, cause=cause, slot=slot))
        else:
            slots = {failure.record.task.slot for failure in self._failures}
            new, records = count(self.incarnations + 1), self.tasks.values()
            incarnations = tuple([next(new) if r.task.slot in slots else r.incarnation for r in records])
            tasks = tuple(record.task for record in records)
            self._decide(Assigned(at=at, restart=restart, tasks=tasks, incarnations=incarnations, spent=spent))

    def _restarts_alone(self) -> bool:
        """Whether only the tasks that failed are started again. Not where the others could not go on: a lost slot takes
        its address along, a parameter server its variables."""
        return self.spec.restart_scope == "task" and not any(
            failure.lost or failure.record.up or failure.record.task.role == "ps" for failure in self._failures
        )

    def _stop(self, fact: Stop, at: float) -> None:
        if self.phase != "closing":
            self._close(at, "failed" if fact.failed else "stopped", fact.reason)
        elif not self._halted:
            self._close(at, self._verdict, self.cause, slot=self.failed_slot, no_slots=self.no_slots)

    def _close(
        self, at: float, status: Status, cause: str = "", *, slot: int = -1, halted: bool = True, no_slots: bool = False
    ) -> None:
        """Close the program: tasks that still run are ended, or may end by themselves within the grace time."""
        self._decide(Closing(at=at, status=status, halted=halted, cause=cause, slot=slot, no_slots=no_slots))

    def _settle(self, at: float) -> None:
        """End the program when all its tasks have ended."""
        up = [record for record in self.tasks.values() if record.up]
        waited = at - self._phase_began
        if up and not self._halted and (waited >= self.spec.grace or all(record.task.role == "ps" for record in up)):
            self._close(at, self._verdict, self.cause, slot=self.failed_slot, no_slots=self.no_slots)
        elif not up or (self._halted and waited >= LAST + self.spec.grace):
            self._decide(Over(at=at, status=self._verdict, cause=self.cause, slot=self.failed_slot))


_APPLY: dict[type, Callable[[ProgramMachine, Any], None]] = {
    Launched: ProgramMachine._launched,
    Reserved: lambda machine, fact: machine.reservation.arrive(fact),
    Waiting: lambda machine, fact: machine.reservation.grant(fact),
    Yielded: lambda machine, line: machine.reservation.give_back(line),
    AskedAgain: lambda machine, line: machine.reservation.ask_again(line),
    Running: ProgramMachine._running,
    Reported: ProgramMachine._reported,
    Ended: ProgramMachine._ended,
    Lost: ProgramMachine._lost,
    Stop: ProgramMachine._stopped,
    Assigned: ProgramMachine._assigned,
    Restarting: ProgramMachine._restarting,
    Overdue: ProgramMachine._overdue,
    Closing: ProgramMachine._closing,
    Over: ProgramMachine._over,
}


def begun(first: ProgramLine) -> ProgramMachine:
    """Return the machine of a program whose journal begins with this line, which is not yet applied.

    Raises:
        JournalError: the line is not `Launched`.
    """
    if not isinstance(first, Launched):
        raise JournalError(f"a program's journal begins with Launched, not {type(first).__name__}")
    return ProgramMachine(first.spec)
