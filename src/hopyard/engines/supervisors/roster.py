"""The assignment of slots to supervisors, and the orders to each: the decisions of `pool.py`, taken under its lock.

Slots that want an agent wait in a queue; supervisors that are free take them in turn. An agent that ends leaves its
supervisor to the next one. A supervisor that does not follow its orders is given up: its slot gets another once it is
gone, as an agent and its successor have one name on the wire. Tasks of supervisors can be ordered to end alone while
their agents go on; the slot of such an agent is then held by no task, and later by that of another supervisor that is
free. This module sends orders over lines that are there, and waits for nothing.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection

from hopyard.engines.supervisors.messages import (
    AgentBegan,
    AgentEnded,
    EndAgent,
    EndTask,
    Free,
    Leave,
    Leaving,
    Order,
    Prepare,
    Start,
    line_of,
)
from hopyard.engines.supervisors.record import Supervisor
from hopyard.engines.templates import IMPORT_SECONDS
from hopyard.ports.engines import OutOfMemory

log = logging.getLogger(__name__)

SPARE_SECONDS = 2.0
"""After this time a supervisor that nobody needs is given back."""
AWAY_SECONDS = 5.0
"""After this time a supervisor that does not confirm an end, or does not leave, is given up, and a job whose supervisor
is gone must have ended."""
GONE_SECONDS = 15.0
"""After this time a supervisor that was given up counts as gone, whatever became of it."""
BEGIN_SECONDS = IMPORT_SECONDS + 30.0
"""After this time a supervisor that has not reported the process of its agent is given up. Until IMPORT_SECONDS it may
wait for a template, and then starts the agent without one."""
ASLEEP_SECONDS = 5.0
"""A driver that has not looked for so long was stopped, or between two runs: no supervisor is to blame."""


class Roster:
    """Owner of the supervisors, and of the queue of slots. Whoever calls it has the lock.

    Args:
        hang_up: closes the connection of a supervisor.
        prepare: what supervisors are sent for their agents; None: they have it with their ticket.
        task_name: what holds the place of a supervisor, for messages.
        keep_idle, lasting: see `pool.Supervisors`.
    """

    def __init__(
        self,
        hang_up: Callable[[Supervisor], None],
        prepare: Prepare | None,
        *,
        task_name: str,
        keep_idle: bool,
        lasting: bool,
    ) -> None:
        self._hang_up, self._task_name = hang_up, task_name
        self._keep_idle, self._lasting = keep_idle, lasting
        self.prepare = prepare
        self.supervisors: dict[int, Supervisor] = {}
        """By the descriptors of their connections."""
        self.lost: list[tuple[int, str]] = []
        """(slot, reason) of the agents that ended, until somebody takes them."""
        self.abandoned: set[int] = set()
        """Jobs that have no supervisor and do not end, until somebody takes them."""
        self.admitted_count = 0
        """How many supervisors were let in since the run began, and before it of those that stood by."""
        self.dismissed = False
        """Whether supervisors that come are to leave."""
        self._queue: dict[int, None] = {}
        """Slots that want an agent, the first one first."""
        self._by_slot: dict[int, Supervisor] = {}
        """Slot → the supervisor that has its agent: each look at all agents asks for each."""
        self._released: set[int] = set()
        self._gave_back = False
        """Whether this run has given places back, so that others want them: supervisors without an agent leave."""
        self._looked = time.monotonic()
        self._taskless: dict[int, float] = {}
        """Job → since when its task has no supervisor any more: it is about to end, or to run again."""

    # ---------------------------------------------------------------- state

    @property
    def occupied(self) -> int:
        """How many supervisors have an agent."""
        return len(self._by_slot)

    @property
    def due(self) -> int:
        """How many tasks there should be: one for each slot that wants a supervisor or has an agent, except those
        whose cores are released."""
        return len(self._queue) + len(self._by_slot.keys() - self._released)

    @property
    def missing(self) -> int:
        """How many slots wait for a supervisor."""
        return len(self._queue)

    @property
    def ending(self) -> bool:
        """Whether an agent is being ended."""
        return any(supervisor.ending for supervisor in self.supervisors.values())

    def waits(self, slot: int) -> bool:
        """Whether no supervisor has this slot yet, or a template still imports what its agent needs."""
        supervisor = self._by_slot.get(slot)
        return slot in self._queue or (supervisor is not None and supervisor.importing)

    def of(self, slot: int) -> Supervisor | None:
        """Return the supervisor that has the agent of this slot; None: there is none."""
        return self._by_slot.get(slot)

    # ---------------------------------------------------------------- requests of the driver

    def start(self, slot: int) -> None:
        """Put this slot into the queue for an agent."""
        self._queue[slot] = None
        self._fill()

    def end(self, slot: int) -> None:
        """End the agent of this slot, or take the slot out of the queue."""
        self._queue.pop(slot, None)
        self.lost = [(number, reason) for number, reason in self.lost if number != slot]
        if (supervisor := self._by_slot.get(slot)) is not None:
            self._end_agent(supervisor)

    def give_back(self, slots: Collection[int]) -> None:
        """End the agents of these slots, and let all supervisors leave that nobody needs, whether they last or not."""
        for slot in slots:
            self.end(slot)
        self._gave_back = True
        self._dismiss_spares(time.monotonic())

    def release_cores(self, slots: Collection[int]) -> dict[int, int]:
        """Let the tasks of these slots end, those that come later too; return job → slot of those that end now."""
        jobs = {}
        self._released.update(slots)
        for supervisor in list(self.supervisors.values()):
            slot = max(supervisor.slot, supervisor.held_slot)
            if slot in self._released and supervisor.task and not supervisor.leaving:
                jobs[supervisor.job] = slot
                self._end_task(supervisor)
        self._fill()
        return jobs

    def reacquire_cores(self) -> None:
        """Let tasks that come from now on hold slots again."""
        self._released.clear()
        self._fill()

    def look(self, now: float) -> None:
        """Give up supervisors that have not followed an order in time, and give back those that nobody needs."""
        if now - self._looked > ASLEEP_SECONDS:
            for supervisor in self.supervisors.values():
                if not supervisor.given_up:
                    supervisor.since = now
            self._taskless = dict.fromkeys(self._taskless, now)
        self._looked = now
        for supervisor in list(self.supervisors.values()):
            seconds = now - supervisor.since
            if supervisor.given_up:
                if seconds > GONE_SECONDS:
                    self.drop(supervisor, "")
            elif (supervisor.ending or supervisor.leaving) and seconds > AWAY_SECONDS:
                self._give_up(supervisor)
            elif supervisor.importing and seconds > BEGIN_SECONDS:
                slot = supervisor.ending_slot = supervisor.slot
                self._vacate(supervisor)
                self._give_up(supervisor)
                self.lost.append(
                    (slot, f"its supervisor on {supervisor.name} has not started it for {seconds:.0f} seconds")
                )
            elif self._idle(supervisor) and not self._keep_idle and not self._queue and seconds > SPARE_SECONDS:
                self._spare(supervisor)
        if self._gave_back:
            self._dismiss_spares(now - SPARE_SECONDS)
        for job, since in list(self._taskless.items()):
            if now - since > AWAY_SECONDS:
                self._abandon(job)

    # ---------------------------------------------------------------- from one run to the next

    def clear(self, released: Collection[int]) -> None:
        """Forget the slots that wait, and what agents get: a run is over.

        Args:
            released: slots whose tasks are to end in the next run.
        """
        self._queue.clear()
        self.prepare = None
        self._released = set(released)

    def end_agents(self) -> None:
        """End all agents."""
        for supervisor in list(self._by_slot.values()):
            self._end_agent(supervisor)

    def stand_by(self) -> None:
        """Give up supervisors that have not confirmed the end of their agents; let the others wait for the next run."""
        for supervisor in list(self.supervisors.values()):
            if supervisor.ending and not supervisor.given_up:
                self._give_up(supervisor)
            elif not supervisor.leaving and not self._keep_idle:
                self._spare(supervisor)
            supervisor.ending_slot = -1  # the next run's agents have other keys
        self.lost.clear()

    def renew(self, prepare: Prepare) -> None:
        """Begin another run, with those that stand by and those that come later."""
        self.prepare, self._gave_back = prepare, False
        for supervisor in list(self.supervisors.values()):
            if not supervisor.leaving:
                self._send(supervisor, prepare)
        self.admitted_count = sum(not supervisor.leaving for supervisor in self.supervisors.values())

    def dismiss_all(self) -> None:
        """Let all leave."""
        for supervisor in list(self.supervisors.values()):
            self._send(supervisor, Leave())

    # ---------------------------------------------------------------- reports of supervisors

    def admit(self, supervisor: Supervisor) -> None:
        """Take one that was let in, and can work."""
        self.admitted_count += 1
        self._taskless.pop(supervisor.job, None)
        resting = self._lasting and self.prepare is None
        if self.dismissed or (resting and not self._keep_idle):
            self.dismiss(supervisor)
        elif self.prepare is not None:
            self._send(supervisor, self.prepare)
        self._fill()

    def on_report(self, supervisor: Supervisor, report: AgentBegan | AgentEnded | Free | Leaving) -> None:
        """Note what became of its agent, or of itself."""
        match report:
            case Leaving(reason=reason):
                supervisor.reason = reason
                return
            case AgentBegan(slot=slot):
                supervisor.importing = supervisor.importing and supervisor.slot != slot
                return
            case AgentEnded(slot=slot) if supervisor.slot == slot >= 0:
                self._vacate(supervisor)
                self.lost.append((slot, OutOfMemory(report.reason) if report.memory else report.reason))
            case _:
                supervisor.ending, supervisor.ending_slot = False, -1  # as ordered, or by itself just before
        if not supervisor.task and supervisor.slot < 0 and not self._lasting:
            self.dismiss(supervisor)
        self._fill()

    def turn_away(self, supervisor: Supervisor) -> None:
        """Note that it leaves, as it cannot work for this run: its slot waits for another one, which is no loss."""
        if supervisor.leaving:
            return
        supervisor.leaving, supervisor.since = True, time.monotonic()
        supervisor.task, supervisor.held_slot = False, -1  # nobody waits for its end
        self.admitted_count -= 1
        if (slot := supervisor.slot) >= 0:
            self._vacate(supervisor)
            self._queue[slot] = None
        self._fill()

    def dismiss(self, supervisor: Supervisor) -> None:
        """Let it leave."""
        if not supervisor.leaving:
            supervisor.leaving, supervisor.since = True, time.monotonic()
        self._send(supervisor, Leave())

    def drop(self, supervisor: Supervisor, reason: str) -> None:
        """Note that it is gone; its agent, if it has one, is lost for this reason."""
        if self.supervisors.pop(supervisor.line.fileno(), None) is None:
            return
        self._hang_up(supervisor)
        supervisor.leaving, supervisor.ending_slot = True, -1
        if supervisor.task and not supervisor.given_up:
            self._taskless[supervisor.job] = time.monotonic()
        if (slot := supervisor.slot) >= 0:
            self._vacate(supervisor)
            self.lost.append((slot, reason))
        self._fill()

    # ---------------------------------------------------------------- one supervisor

    def _fill(self) -> None:
        """Give supervisors that are free the slots that wait for an agent, then those that no task holds. Those that
        may have a template come first. Where nothing is to be given, as at each report of a thousand that stand by, it
        takes one pass."""
        startable, without_task = self._startable(), self._without_task()
        if not (startable or without_task or self._released):
            return
        free = [supervisor for supervisor in self.supervisors.values() if self._idle(supervisor)]
        for supervisor in sorted(free, key=lambda each: not (self._lasting and each.hosted)):
            while startable and startable[0] not in self._queue:
                startable.popleft()
            without_task = [other for other in without_task if other.slot >= 0]
            if not self._idle(supervisor):  # an order could not be sent to another, and all was done again
                continue
            if startable:
                supervisor.slot, supervisor.used, supervisor.hosted = startable.popleft(), True, True
                supervisor.importing = self.prepare is not None and self.prepare.warm
                supervisor.since = time.monotonic()
                self._by_slot[supervisor.slot] = supervisor
                del self._queue[supervisor.slot]
                self._send(supervisor, Start(supervisor.slot))
                if supervisor.slot in self._released and supervisor.task:
                    self._end_task(supervisor)
            elif not supervisor.task:
                continue
            elif without_task:
                nearby = [other for other in without_task if other.executor == supervisor.executor]
                other = (nearby or without_task)[0]
                without_task.remove(other)
                supervisor.held_slot, supervisor.used = other.slot, True
            elif self._released and not supervisor.used:
                self.dismiss(supervisor)  # it was requested before others were to have the cores

    def _startable(self) -> deque[int]:
        """Return the slots that wait for an agent, and whose last agent is gone."""
        if not self._queue:
            return deque()
        ending = {supervisor.ending_slot for supervisor in self.supervisors.values()}
        return deque(slot for slot in self._queue if slot not in ending)

    def _without_task(self) -> list[Supervisor]:
        excluded = {supervisor.held_slot for supervisor in self.supervisors.values()} | self._released
        return [
            supervisor
            for supervisor in self._by_slot.values()
            if not supervisor.task and supervisor.slot not in excluded
        ]

    def _idle(self, supervisor: Supervisor) -> bool:
        return (
            (supervisor.task or self._lasting)
            and max(supervisor.slot, supervisor.held_slot) < 0
            and not supervisor.ending
            and not supervisor.leaving
        )

    def _end_agent(self, supervisor: Supervisor) -> None:
        slot = supervisor.slot
        supervisor.ending, supervisor.ending_slot = True, slot
        self._vacate(supervisor)
        self._send(supervisor, EndAgent(slot))

    def _end_task(self, supervisor: Supervisor) -> None:
        """Let its task end; a supervisor whose task only held a slot leaves too, unless it may have a template."""
        if supervisor.slot >= 0 or (self._lasting and supervisor.hosted):
            supervisor.task, supervisor.held_slot = False, -1
            self._send(supervisor, EndTask())
        else:
            self.dismiss(supervisor)

    def _spare(self, supervisor: Supervisor) -> None:
        """Give back the place of a supervisor that nobody needs."""
        if supervisor.task:
            self._end_task(supervisor)

    def _dismiss_spares(self, since: float) -> None:
        """Let those leave that have had no agent since then, as far as no slot waits for them. In a place with an agent
        they stay: it is not free without them."""
        busy = {(supervisor.executor, supervisor.job) for supervisor in self._by_slot.values()}
        spares = [
            supervisor
            for supervisor in self.supervisors.values()
            if (supervisor.task and max(supervisor.slot, supervisor.held_slot) < 0 and not supervisor.leaving)
            and (supervisor.executor, supervisor.job) not in busy
            and supervisor.since <= since
        ]
        for supervisor in spares[len(self._queue) :]:
            self.dismiss(supervisor)

    def _give_up(self, supervisor: Supervisor) -> None:
        """Let its job be cancelled. Should it go on all the same, it finds the order to leave in its socket."""
        log.warning("a supervisor on %s does not answer: it is given up", supervisor.name)
        supervisor.given_up, supervisor.leaving = True, True
        supervisor.since, supervisor.held_slot = time.monotonic(), -1
        if supervisor.task:
            self._abandon(supervisor.job)
        self._send(supervisor, Leave())

    def _abandon(self, job: int) -> None:
        self._taskless.pop(job, None)
        self.abandoned.add(job)

    def _vacate(self, supervisor: Supervisor) -> None:
        """Note that it has no agent any more, and that no other supervisor needs to hold its slot."""
        for holder in self.supervisors.values():
            if holder is supervisor or holder.held_slot == supervisor.slot:
                holder.held_slot, holder.since = -1, time.monotonic()
        self._by_slot.pop(supervisor.slot, None)
        supervisor.slot, supervisor.importing = -1, False

    def _send(self, supervisor: Supervisor, order: Order) -> None:
        try:
            supervisor.line.send(line_of(order))
        except OSError:  # no room for a few bytes: nobody reads there any more
            self.drop(supervisor, f"its {self._task_name} on {supervisor.name} does not listen")
