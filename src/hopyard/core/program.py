"""The life of a program: reserved → running → done, failed or stopped, and restarted on the way.

The machine of a program as `machine.py` is that of a run: facts in, commands out, no clock and no I/O. It decides when
there are enough slots, which slot hosts which task, whose end is the program's end, what is done about a task that
fails, and which failure was the first cause.

*reserving*: agents come up, each reserves ports. *running*: tasks run. *failing*: a task failed; for a moment others
may say what they know, as the first to notice is seldom the first to fail. *restarting*: all tasks of the old attempt
end before those of the new one begin, since they would talk to each other. *closing*: the program is over, what only
serves is ended. *over*: nothing runs any more.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hopyard.core.cluster import CHIEFS, SERVING, Place, Task, assign, environment, peers
from hopyard.core.events import Lost, Tick
from hopyard.core.program_facts import (
    Assigned,
    Begin,
    Ended,
    Finish,
    Halt,
    Launched,
    Over,
    ProgramCommand,
    ProgramLine,
    ProgramSpec,
    Renew,
    Reported,
    Reserved,
    Running,
    Status,
    Stop,
    Warned,
)
from hopyard.errors import SpecError

Phase = Literal["reserving", "running", "failing", "restarting", "closing", "over"]

STARTING: tuple[Phase, ...] = ("failing", "restarting", "reserving")
"""Those in which a program may come up, or come up again."""
SETTLE = 0.7
"""Seconds from the first failure until its cause is judged."""
ELASTIC = 5.0
"""Seconds that an elastic program waits for more slots once it has the least."""
LAST = 5.0
"""Seconds that ended tasks may take to be gone."""
STILLBORN = 3
"""Agents of one slot that may end before the program begins."""


class TaskBook:
    """What is known of one task. Its owner is the machine."""

    __slots__ = ("began", "cause", "code", "life", "status", "task", "up", "values")

    def __init__(self, task: Task, life: int, at: float) -> None:
        self.task = task
        self.life = life
        self.began = at
        self.status: Literal["starting", "running", "done", "failed", "ended"] = "starting"
        self.code: int | None = None
        self.cause = ""
        self.values: dict[str, float] = {}
        self.up = True
        """Whether its `main` is at work, or about to be."""


class _Failure(msgspec.Struct, frozen=True):
    at: float
    slot: int
    name: str
    text: str
    killed: bool
    lost: bool


class ProgramMachine:
    """The only owner of a program's state."""

    def __init__(self, spec: ProgramSpec) -> None:
        self.spec = spec
        self.phase: Phase = "reserving"
        self.status: Status | Literal["reserving", "running"] = "reserving"
        self.cause = ""
        self.starved = False
        """Whether it failed for want of slots."""
        self.culprit = -1
        self.places: dict[int, Place] = {}
        """Slot → what its agent reserved, of those that are there."""
        self.known: dict[int, Place] = {}
        """The same of all that ever were there."""
        self.tasks: dict[int, TaskBook] = {}
        """Slot → its task, of the present attempt."""
        self.restart = 0
        """Times that tasks were started again, for whatever reason."""
        self.lives = 0
        self._spent = 0
        """Restarts after failures: these count against what the user allows."""
        self._since = 0.0
        """When the present phase began."""
        self._came = 0.0
        """When the last slot came."""
        self._stillborn: dict[int, int] = {}
        """Slot → how many of its agents ended, one after the other, before the program began."""
        self._failures: list[_Failure] = []
        self._halted = False
        self._verdict: Status = "done"

    # ------------------------------------------------------------------------------------------------ facts

    def handle(self, fact: ProgramLine) -> list[ProgramCommand]:
        """What happens next."""
        if self.phase == "over":
            return []
        match fact:
            case Launched():
                self._since = fact.at
                return [Renew(slot) for slot in range(self.spec.slots)]
            case Reserved():
                return self._reserved(fact)
            case Running():
                book = self._book(fact.slot, fact.life)
                if book is not None and book.status == "starting":
                    book.status = "running"
                return []
            case Reported():
                book = self._book(fact.slot, fact.life)
                if book is not None:
                    book.values |= fact.values
                return []
            case Ended():
                return self._ended(fact)
            case Lost():
                return self._lost(fact)
            case Tick():
                return self._tick(fact.at)
            case Stop():
                return self._stop(fact)
            case _:
                return []

    def _reserved(self, fact: Reserved) -> list[ProgramCommand]:
        self.places[fact.place.slot] = self.known[fact.place.slot] = fact.place
        self._came = fact.at
        return self._gather(fact.at) if self.phase == "reserving" else []

    def _gather(self, at: float) -> list[ProgramCommand]:
        """Run, if there are slots enough."""
        there, spec = len(self.places), self.spec
        if there < spec.slots and (there < spec.least or at - self._came < ELASTIC):
            return []
        try:
            tasks = assign(spec.wanted, list(self.places.values()))
        except SpecError as error:
            return self._fail(at, str(error))
        self.tasks = {}
        self._stillborn.clear()
        decided: list[ProgramCommand] = [Assigned(at=at, restart=self.restart, tasks=tasks)]
        decided += [self._begin(task, tasks, at) for task in tasks]
        self._go("running", at)
        self.status = "running"
        return decided

    def _begin(self, task: Task, tasks: tuple[Task, ...], at: float) -> Begin:
        self.lives += 1
        self.tasks[task.slot] = TaskBook(task, self.lives, at)
        told = environment(task, tasks, self.places, self.restart, self.spec.restarts, "hopyard")
        return Begin(task, self.lives, self.restart, told, peers(tasks, self.places))

    def _ended(self, fact: Ended) -> list[ProgramCommand]:
        book = self._book(fact.slot, fact.life)
        if book is None or not book.up:
            return []
        book.code, book.up = fact.code, False
        well = not fact.error and fact.code == 0 and (fact.returned or self.spec.script)
        if fact.halted or self.phase in ("restarting", "closing"):
            if book.status != "failed":
                book.status = "ended" if fact.halted else "done" if well else "failed"
                book.cause = fact.error or (f"its {fact.story}" if fact.story else "")
            return self._settle(fact.at)
        if well:
            book.status = "done"
            return self._close(fact.at, "done") if self.phase == "running" and self._is_over() else []
        book.status = "failed"
        text = fact.error or f"its {fact.story}"
        if fact.code == 0 and not fact.error:
            text = f"its {fact.story} before main returned"
        if fact.trace:
            text += f"\n{fact.trace.rstrip()}"
        book.cause = text
        return self._failed(_Failure(fact.at, fact.slot, book.task.name, text, fact.code == -9, False))

    def _lost(self, fact: Lost) -> list[ProgramCommand]:
        place = self.places.pop(fact.slot, None)
        book = self.tasks.get(fact.slot)
        if self.phase == "reserving":
            self._stillborn[fact.slot] = self._stillborn.get(fact.slot, 0) + 1
            if self._stillborn[fact.slot] < STILLBORN:
                return [Renew(fact.slot)]
            self.culprit = fact.slot
            where = f"{STILLBORN} agents of slot {fact.slot}, one after the other,"
            return self._fail(fact.at, f"{where} ended before the program began, the last: {fact.reason}")
        if book is None or not book.up:
            return self._settle(fact.at)
        book.up = False
        if self.phase == "restarting" or (self.phase == "closing" and self._halted):
            book.status = "ended"
            return self._settle(fact.at)
        book.status = "failed"
        host = place.host if place is not None else "?"
        book.cause = f"the agent that hosted it on {host} was lost: {fact.reason}"
        if self.phase == "closing":
            return self._settle(fact.at)
        return self._failed(_Failure(fact.at, fact.slot, book.task.name, book.cause, True, True))

    def _failed(self, failure: _Failure) -> list[ProgramCommand]:
        self._failures.append(failure)
        if self.phase == "failing":
            return []
        book = self.tasks[failure.slot]
        if self.spec.restart == "task" and not (failure.lost or book.up) and self._spent < self.spec.restarts:
            self._failures.clear()
            self._spent += 1
            self.restart += 1
            tasks = tuple(other.task for other in self.tasks.values())
            again = Assigned(at=failure.at, restart=self.restart, tasks=tasks)
            return [again, self._begin(book.task, tasks, failure.at)]
        self._go("failing", failure.at)
        return []

    def _tick(self, at: float) -> list[ProgramCommand]:
        passed = at - self._since
        if self.phase == "reserving":
            decided = self._gather(at)
            if decided or passed < self.spec.patience:
                return decided
            there, self.starved = len(self.places), True
            return self._fail(
                at,
                f"the roles need {self.spec.least} processes, and after {self.spec.patience:.0f} seconds there were "
                f"slots for {there}: ask for fewer, or give the engine more (executors, cores, workers=)",
            )
        if self.phase == "running":
            late = [b for b in self.tasks.values() if b.status == "starting" and at - b.began > self.spec.patience]
            if late:
                late[0].status = "failed"
                text = (
                    f"it has not begun its main within {self.spec.patience:.0f} seconds: it hangs while what it needs "
                    "is imported or unpickled; its log has its stack"
                )
                return self._failed(_Failure(at, late[0].task.slot, late[0].task.name, text, False, False))
            if self._grows(at):
                return self._start_again(at)
        elif self.phase == "failing" and passed >= SETTLE:
            return self._judge(at)
        elif self.phase == "closing":
            return self._settle(at)
        elif self.phase == "restarting" and passed >= LAST:
            for book in self.tasks.values():
                if book.up:  # whose agent does not answer: another takes its slot
                    book.up = False
                    self.places.pop(book.task.slot, None)
            return self._settle(at)
        return []

    def _stop(self, fact: Stop) -> list[ProgramCommand]:
        if self.phase == "closing":
            if self._halted:
                return []
            self._halted = True
            return self._halts()
        self.cause = fact.reason
        return self._close(fact.at, "failed" if fact.failed else "stopped", now=True)

    # ------------------------------------------------------------------------------------------------ decisions

    def _judge(self, at: float) -> list[ProgramCommand]:
        """Restart, or end with the first cause. A process that was killed, or a slot that was lost, is a cause even if
        a peer noticed it sooner than its own host told of it."""
        first = min(self._failures, key=lambda failure: failure.at)
        dead = [failure for failure in self._failures if failure.killed]
        cause = min(dead, key=lambda failure: failure.at) if dead else first
        self.cause, self.culprit = f"{cause.name} failed: {cause.text}", cause.slot
        if self._spent >= self.spec.restarts:
            return self._close(at, "failed", now=True)
        self._spent += 1
        self._failures.clear()
        return self._start_again(at)

    def _start_again(self, at: float) -> list[ProgramCommand]:
        """End all tasks; when they have ended, others begin on the slots that are there then."""
        self.restart += 1
        self._go("restarting", at)
        return [*self._halts(), *self._settle(at)]

    def _grows(self, at: float) -> bool:
        """Whether an elastic program should be started again on slots that came since. Only one that may be started
        again, while all of it is at work; torchrun does the same at once (Elastic Agent, "Membership Changes")."""
        more = len(self.tasks) < min(len(self.places), self.spec.slots) and at - self._came >= ELASTIC
        whole = all(book.status == "running" for book in self.tasks.values())
        return more and whole and self.spec.restarts > 0 and self.spec.restart == "program"

    def _is_over(self) -> bool:
        books = list(self.tasks.values())
        if self.spec.until == "chief":
            return all(book.status == "done" for book in books if book.task.role in CHIEFS)
        if self.spec.until == "workers":
            return all(book.status == "done" for book in books if book.task.rank >= 0)
        return all(book.status == "done" for book in books)

    def _fail(self, at: float, cause: str) -> list[ProgramCommand]:
        self.cause = cause
        return self._close(at, "failed", now=True)

    def _close(self, at: float, verdict: Status, now: bool = False) -> list[ProgramCommand]:
        """Over: others end by themselves within the grace time, or (`now`) at once."""
        self._verdict = verdict
        self._go("closing", at)
        self._halted = now
        warned = [Warned(book.task.slot, book.life) for book in self.tasks.values() if book.up]
        return [*(self._halts() if now else warned), *self._settle(at)]

    def _settle(self, at: float) -> list[ProgramCommand]:
        """Go on when all tasks have ended."""
        up = [book for book in self.tasks.values() if book.up]
        if self.phase == "restarting" and not up:
            missing = [slot for slot in range(self.spec.slots) if slot not in self.places]
            self._go("reserving", at)
            self._came = at
            return [*[Renew(slot) for slot in missing], *self._gather(at)]
        if self.phase != "closing":
            return []
        waited = at - self._since
        if not up or (self._halted and waited >= LAST + self.spec.grace):
            self._go("over", at)
            self.status = self._verdict
            cause = self.cause if self._verdict != "done" else ""
            return [Over(at=at, status=self._verdict, cause=cause, slot=self.culprit), Finish(self._verdict)]
        if not self._halted and (waited >= self.spec.grace or all(book.task.role == "ps" for book in up)):
            self._halted = True
            return self._halts()
        return []

    def _halts(self) -> list[ProgramCommand]:
        """End what still runs: parameter servers, evaluators, then the others."""
        order = {name: number for number, name in enumerate(SERVING)}
        up = [book for book in self.tasks.values() if book.up]
        up.sort(key=lambda book: (order.get(book.task.role, len(order)), book.task.slot))
        return [Halt(book.task.slot, book.life) for book in up]

    def _go(self, phase: Phase, at: float) -> None:
        self.phase = phase
        self._since = at

    def _book(self, slot: int, life: int) -> TaskBook | None:
        """The task that this is said of, unless it is one of the past."""
        book = self.tasks.get(slot)
        return book if book is not None and book.life == life else None
