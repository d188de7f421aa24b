"""The supervisors of one run, or of several in turn, as the driver sees them: places where one agent each can run.

A supervisor (`supervisor.py`) that was placed somewhere dials in (`listener.py`). Slots that want an agent wait in a
queue; supervisors that are free take them in turn. When the connection of a supervisor ends, its slot is lost; when an
agent ends, its supervisor is free again, so a new agent needs nothing new from the cluster. A supervisor that does not
follow its orders is given up: whoever placed it cancels its job, and its slot gets another once it is gone, as an agent
and its successor have one name on the wire. Tasks of supervisors can be ordered to end alone while their agents go on,
so that others find their cores free. The slot of such an agent is then held by no task, and later by that of another
supervisor that is free. Supervisors that last stand by when a run is over, with what they have to fork agents of; on
Spark without their tasks, so that others have the cores meanwhile. This module does not know how supervisors are
placed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from hopyard.core.facts import UNREADABLE
from hopyard.engines.supervisors.line import Line
from hopyard.engines.supervisors.listener import Listener
from hopyard.engines.supervisors.logs import SlotLogs
from hopyard.engines.supervisors.messages import (
    Began,
    End,
    Ended,
    EndTask,
    Free,
    Hello,
    Leave,
    Leaving,
    Lines,
    Order,
    Prepare,
    Printed,
    Report,
    Start,
    Warned,
    line_of,
    report_of,
)
from hopyard.engines.supervisors.record import Supervisor, version_fault
from hopyard.errors import ResourceError
from hopyard.ports import OutOfMemory
from hopyard.text import escaped

log = logging.getLogger(__name__)

END_SECONDS = 0.5
"""How long agents that were ordered to end have for it, until their supervisors end them."""
CLOSE_SECONDS = 5.0
"""How long supervisors may take to leave."""
SPARE_SECONDS = 2.0
"""After this time a supervisor that nobody needs is given back."""
AWAY_SECONDS = 5.0
"""After this time a supervisor that does not confirm an end, or does not leave, is given up, and a job whose supervisor
is gone must have ended."""
GONE_SECONDS = 15.0
"""After this time a supervisor that was given up counts as gone, whatever became of it."""


class Supervisors:
    """Owner of the supervisors. A thread of its own listens; everything else is called by the driver's loop.

    Args:
        host: the address that supervisors dial; see `network.address_to_bind`.
        port: 0: any that is free.
        token: lets supervisors in.
        log_of: slot → the file that takes what its agent prints.
        certificate: of the supervisors' ticket; empty: connections are in clear.
        prepare: what supervisors are sent for their agents; None: they have it with their ticket.
        task_name: what holds the place of a supervisor, for messages.
        keep_idle: keep supervisors that nobody needs at the moment: nothing else wants their place.
        lasting: supervisors that had an agent stay for later runs, see `rest` and `renew`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        log_of: Callable[[int], Path],
        *,
        certificate: str = "",
        prepare: Prepare | None = None,
        task_name: str = "Spark task",
        keep_idle: bool = False,
        lasting: bool = False,
    ) -> None:
        self._prepare, self._task_name, self._keep_idle, self._lasting = prepare, task_name, keep_idle, lasting
        self._logs = SlotLogs(log_of)
        self._lock = threading.Condition()
        """Notified when an agent or a supervisor is gone."""
        self._supervisors: dict[int, Supervisor] = {}
        """By the descriptors of their connections."""
        self._queue: deque[int] = deque()
        self._released: set[int] = set()
        self._lost: list[tuple[int, str]] = []
        self._taskless: dict[int, float] = {}
        """Job → since when its task has no supervisor any more: it is about to end, or to run again."""
        self._abandoned: set[int] = set()
        self._failure: str = ""
        self._warned: set[str] = set()
        """What people were warned of: of each fault once."""
        self._open = True
        self._dismissed = False
        """Whether supervisors that come are to leave."""
        self.admitted_count = 0
        """How many supervisors were ever let in."""
        self._select = selectors.DefaultSelector()
        try:
            self._listener = Listener(host, port, token, certificate, self._select, self._admit)
        except BaseException:
            self._select.close()
            raise
        self.port = self._listener.port
        self._lost_read, self._lost_write = os.pipe()
        """A pipe that is readable while `lost` has something to return."""
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._lost_read, self._lost_write, self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._select.register(self._wake_read, selectors.EVENT_READ, lambda: None)
        self._thread = threading.Thread(target=self._run, name="hopyard-supervisors", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------- called by the loop

    def start(self, slot: int) -> None:
        """Put this slot into the queue for an agent."""
        with self._lock:
            self._queue.append(slot)
            self._fill()

    def end(self, slot: int) -> None:
        """End the agent of this slot, or take the slot out of the queue."""
        with self._lock:
            if slot in self._queue:
                self._queue.remove(slot)
            self._lost = [(number, reason) for number, reason in self._lost if number != slot]
            supervisor = self._supervisor_of(slot)
            if supervisor is not None:
                supervisor.ending, supervisor.ending_slot = True, slot
                self._vacate(supervisor)
                self._send(supervisor, End(slot))
            self._logs.close(slot)

    def lost(self) -> list[tuple[int, str]]:
        """Return (slot, reason) of the agents that ended since the last call. Raises ResourceError after `give_up`."""
        with self._lock:
            if not self._open:
                return []
            with contextlib.suppress(BlockingIOError):
                os.read(self._lost_read, 4096)
            lost, self._lost = self._lost, []
            now = time.monotonic()
            for supervisor in list(self._supervisors.values()):
                if supervisor.given_up:
                    if now - supervisor.since > GONE_SECONDS:
                        self._drop(supervisor, "")
                elif (supervisor.ending or supervisor.leaving) and now - supervisor.since > AWAY_SECONDS:
                    self._give_up(supervisor)
                elif self._keep_idle:
                    continue
                elif self._idle(supervisor) and not self._queue and now - supervisor.since > SPARE_SECONDS:
                    self._spare(supervisor)
            for job, since in list(self._taskless.items()):
                if now - since > AWAY_SECONDS:
                    self._abandon(job)
            if self._failure and not lost:
                raise ResourceError(self._failure)
            return lost

    def abandoned(self) -> set[int]:
        """Return the jobs, since the last call, that have no supervisor and do not end: they are to be cancelled."""
        with self._lock:
            jobs, self._abandoned = self._abandoned, set()
            return jobs

    def watch(self) -> list[int]:
        """Return a descriptor that is readable when `lost` has something to return."""
        return [self._lost_read] if self._open else []

    def waits(self, slot: int) -> bool:
        """Whether no supervisor has this slot yet, or a template still imports what its agent needs."""
        with self._lock:
            if slot in self._queue:
                return True
            supervisor = self._supervisor_of(slot)
            return supervisor is not None and supervisor.importing

    def device(self, slot: int) -> str:
        """Return "cuda" where Spark gave the supervisor a GPU, else "cpu"."""
        with self._lock:
            supervisor = self._supervisor_of(slot)
            return "cuda" if supervisor is not None and supervisor.gpus else "cpu"

    def release_cores(self, slots: Collection[int]) -> dict[int, int]:
        """Let the tasks of these slots end, those that come later too, until `reacquire_cores`.

        Returns:
            Job → slot, of the tasks that were ordered to end now.
        """
        jobs = {}
        with self._lock:
            self._released.update(slots)
            for supervisor in list(self._supervisors.values()):
                slot = max(supervisor.slot, supervisor.held_slot)
                if slot in self._released and supervisor.task and not supervisor.leaving:
                    jobs[supervisor.job] = slot
                    self._end_task(supervisor)
            self._fill()
        return jobs

    def reacquire_cores(self) -> None:
        """Let tasks that come from now on hold slots again."""
        with self._lock:
            self._released.clear()
            self._fill()

    def rest(self, released: Collection[int] = ()) -> None:
        """End a run: its agents, as `dismiss` does, and what is known of it. Supervisors that had an agent stand by for
        `renew`, without their tasks where others want their places; all others leave.

        Args:
            released: slots whose tasks are to end in the next run too.
        """
        with self._lock:
            if not self._open or self._dismissed:
                return
            self._queue.clear()
            self._prepare = None
            self._released = set(released)
            self._lock.wait_for(lambda: not self.occupied, END_SECONDS)
            for supervisor in list(self._supervisors.values()):
                if (slot := supervisor.slot) >= 0:
                    supervisor.ending, supervisor.ending_slot = True, slot
                    self._vacate(supervisor)
                    self._send(supervisor, End(slot))
            self._lock.wait_for(lambda: not any(each.ending for each in self._supervisors.values()), CLOSE_SECONDS)
            for supervisor in list(self._supervisors.values()):
                if supervisor.ending and not supervisor.given_up:
                    self._give_up(supervisor)
                elif not supervisor.leaving and not self._keep_idle:
                    self._spare(supervisor)
                supervisor.ending_slot = -1  # the next run's agents have other keys
            self._lost.clear()
            with contextlib.suppress(BlockingIOError):
                os.read(self._lost_read, 4096)
            self._logs.close_all()

    def renew(self, log_of: Callable[[int], Path], prepare: Prepare) -> None:
        """Begin another run, with the supervisors that stand by.

        Args:
            log_of: slot → the file that takes what its agent prints.
            prepare: what supervisors are sent for their agents, those too that come later.
        """
        with self._lock:
            self._prepare, self._logs = prepare, SlotLogs(log_of)
            for supervisor in list(self._supervisors.values()):
                if not supervisor.leaving:
                    self._send(supervisor, prepare)
            self.admitted_count = sum(not supervisor.leaving for supervisor in self._supervisors.values())

    def dismiss(self) -> None:
        """End all agents. Those that were ordered to end have a moment for it; then their supervisors end them and
        leave. Supervisors that come from now on leave too."""
        with self._lock:
            if not self._open or self._dismissed:
                return
            self._queue.clear()
            self._dismissed = True
            self._lock.wait_for(lambda: not self.occupied, END_SECONDS)
            for supervisor in list(self._supervisors.values()):
                self._send(supervisor, Leave())

    def close(self) -> None:
        """Dismiss all, and let nobody in any more."""
        self.dismiss()
        if not self._open:
            return
        with self._lock:
            self._lock.wait_for(lambda: not self._supervisors or not self._thread.is_alive(), CLOSE_SECONDS)
            self._open = False
            self._signal(self._wake_write)
        self._thread.join(CLOSE_SECONDS)
        with self._lock:
            for supervisor in list(self._supervisors.values()):
                self._drop(supervisor, "")
            self._lost.clear()
            self._logs.close_all()
            self._listener.close()
            self._select.close()
            for end in (self._lost_read, self._lost_write, self._wake_read, self._wake_write):
                os.close(end)

    # ---------------------------------------------------------------- asked by whoever places supervisors

    @property
    def usable(self) -> bool:
        """Whether there may be another run."""
        with self._lock:
            return self._open and not self._dismissed and not self._failure and self._thread.is_alive()

    @property
    def occupied(self) -> int:
        """How many supervisors have an agent."""
        with self._lock:
            return sum(supervisor.slot >= 0 for supervisor in self._supervisors.values())

    @property
    def due(self) -> int:
        """How many tasks there should be: one for each slot that wants a supervisor or has an agent, except those
        whose cores are released."""
        with self._lock:
            running = [supervisor.slot for supervisor in self._supervisors.values() if supervisor.slot >= 0]
            return len(self._queue) + sum(slot not in self._released for slot in running)

    @property
    def missing(self) -> int:
        """How many slots wait for a supervisor."""
        return len(self._queue)

    def give_up(self, reason: str) -> None:
        """Note that there will be no (more) supervisors, and why: `lost` raises that."""
        with self._lock:
            self._failure = self._failure or reason
            if self._open:
                self._signal(self._lost_write)

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            while self._open:
                for key, _ in self._select.select(max(0.0, self._listener.next_look - time.monotonic())):
                    with self._lock:
                        if self._open:
                            key.data()
                if (now := time.monotonic()) >= self._listener.next_look:
                    with self._lock:
                        if self._open:
                            self._listener.look(now)
        except Exception as error:  # whatever it is: else the run would wait for ever for slots that nobody brings
            log.exception("the thread that talks to supervisors ended")
            self.give_up(f"the driver can talk to supervisors no longer: {type(error).__name__}: {error}")

    def _admit(self, line: Line, hello: Hello, texts: list[bytes], lines: Lines) -> None:
        """Take a supervisor that was let in.

        Args:
            line: its connection.
            hello: what it said of itself.
            texts: lines that it has sent since.
            lines: takes the rest.
        """
        supervisor = self._supervisors[line.fileno()] = Supervisor(line, time.monotonic(), lines)
        supervisor.host, supervisor.executor, supervisor.job = escaped(hello.host), hello.executor, hello.job
        supervisor.gpus = hello.gpus
        self._select.register(line, selectors.EVENT_READ, lambda: self._receive(supervisor))
        if fault := escaped(version_fault(hello)):
            supervisor.task = False  # nobody waits for its end
            if not self.admitted_count:
                self.give_up(fault)
            else:  # others do the work
                self._warn_once(f"{fault}; it is turned away", fault)
                self._send(supervisor, Leave())
            self._drop(supervisor, "")
            return
        self.admitted_count += 1
        self._taskless.pop(supervisor.job, None)
        resting = self._lasting and self._prepare is None
        if self._dismissed or (resting and not self._keep_idle):
            self._dismiss(supervisor)
        elif self._prepare is not None:
            self._send(supervisor, self._prepare)
        self._fill()
        self._read(supervisor, texts)

    def _receive(self, supervisor: Supervisor) -> None:
        try:
            data = supervisor.line.receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._read(supervisor, supervisor.lines.add(data))
        elif data is not None:
            self._drop(supervisor, self._end_reason(supervisor))

    def _read(self, supervisor: Supervisor, texts: Iterable[bytes]) -> None:
        try:
            for text in texts:
                self._handle(supervisor, report_of(text))
        except UNREADABLE as error:
            self._drop(supervisor, f"its supervisor on {supervisor.host} said what cannot be read: {error}")

    def _handle(self, supervisor: Supervisor, report: Report) -> None:
        match report:
            case Printed(slot=slot, text=text):
                if not supervisor.given_up:  # its agent may be one of an earlier run
                    self._logs.write(slot, text, self._supervisor_of(slot) is not None)
            case Leaving(reason=reason):
                supervisor.reason = reason
            case Began(slot=slot):
                supervisor.importing = supervisor.importing and supervisor.slot != slot
            case Warned(text=text):
                self._warn_once(f"{supervisor.host}: {escaped(text)}", text)
            case Ended() | Free():
                self._on_end(supervisor, report)

    def _on_end(self, supervisor: Supervisor, report: Ended | Free) -> None:
        if isinstance(report, Ended) and supervisor.slot == report.slot >= 0:
            self._vacate(supervisor)
            self._report_lost(report.slot, OutOfMemory(report.reason) if report.memory else report.reason)
        else:
            supervisor.ending, supervisor.ending_slot = False, -1  # as ordered, or by itself just before
            self._lock.notify_all()
        if not supervisor.task and supervisor.slot < 0 and not self._lasting:
            self._dismiss(supervisor)
        self._fill()

    def _fill(self) -> None:
        """Give supervisors that are free the slots that wait for an agent, then those that no task holds. Those that
        may have a template come first."""
        for supervisor in sorted(self._supervisors.values(), key=lambda each: not (self._lasting and each.hosted)):
            if not self._idle(supervisor):
                continue
            if startable := self._startable():
                supervisor.slot, supervisor.used, supervisor.hosted = startable[0], True, True
                supervisor.importing = self._prepare is not None and self._prepare.warm
                self._queue.remove(supervisor.slot)
                self._send(supervisor, Start(supervisor.slot))
                if supervisor.slot in self._released and supervisor.task:
                    self._end_task(supervisor)
            elif not supervisor.task:
                continue
            elif without_task := self._without_task():
                nearby = [other.slot for other in without_task if other.executor == supervisor.executor]
                supervisor.held_slot, supervisor.used = (nearby or [other.slot for other in without_task])[0], True
            elif self._released and not supervisor.used:
                self._dismiss(supervisor)  # it was requested before others were to have the cores

    def _startable(self) -> list[int]:
        """Return the slots that wait for an agent, and whose last agent is gone."""
        ending = {supervisor.ending_slot for supervisor in self._supervisors.values()}
        return [slot for slot in self._queue if slot not in ending]

    def _without_task(self) -> list[Supervisor]:
        excluded = {supervisor.held_slot for supervisor in self._supervisors.values()} | self._released
        return [
            supervisor
            for supervisor in self._supervisors.values()
            if supervisor.slot >= 0 and not supervisor.task and supervisor.slot not in excluded
        ]

    def _idle(self, supervisor: Supervisor) -> bool:
        return (
            (supervisor.task or self._lasting)
            and max(supervisor.slot, supervisor.held_slot) < 0
            and not supervisor.ending
            and not supervisor.leaving
        )

    def _end_task(self, supervisor: Supervisor) -> None:
        """Let its task end; a supervisor whose task only held a slot leaves too, unless it may have a template."""
        if supervisor.slot >= 0 or (self._lasting and supervisor.hosted):
            supervisor.task, supervisor.held_slot = False, -1
            self._send(supervisor, EndTask())
        else:
            self._dismiss(supervisor)

    def _spare(self, supervisor: Supervisor) -> None:
        """Give back the place of a supervisor that nobody needs."""
        if supervisor.task:
            self._end_task(supervisor)

    def _dismiss(self, supervisor: Supervisor) -> None:
        if not supervisor.leaving:
            supervisor.leaving, supervisor.since = True, time.monotonic()
        self._send(supervisor, Leave())

    def _give_up(self, supervisor: Supervisor) -> None:
        """Let its job be cancelled. Should it go on all the same, it finds the order to leave in its socket."""
        log.warning("a supervisor on %s does not answer: it is given up", supervisor.host)
        supervisor.given_up, supervisor.leaving = True, True
        supervisor.since, supervisor.held_slot = time.monotonic(), -1
        if supervisor.task:
            self._abandon(supervisor.job)
        self._send(supervisor, Leave())

    def _abandon(self, job: int) -> None:
        self._taskless.pop(job, None)
        self._abandoned.add(job)

    def _vacate(self, supervisor: Supervisor) -> None:
        """Note that it has no agent any more, and that nobody needs to hold its slot."""
        for holder in self._supervisors.values():
            if holder is supervisor or holder.held_slot == supervisor.slot:
                holder.held_slot, holder.since = -1, time.monotonic()
        supervisor.slot, supervisor.importing = -1, False
        self._lock.notify_all()

    def _send(self, supervisor: Supervisor, order: Order) -> None:
        try:
            supervisor.line.send(line_of(order))
        except OSError:  # no room for a few bytes: nobody reads there any more
            self._drop(supervisor, f"its {self._task_name} on {supervisor.host} does not listen")

    def _drop(self, supervisor: Supervisor, reason: str) -> None:
        if self._supervisors.pop(supervisor.line.fileno(), None) is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._select.unregister(supervisor.line)
        supervisor.line.close()
        self._lock.notify_all()
        supervisor.leaving, supervisor.ending_slot = True, -1
        if supervisor.task and not supervisor.given_up:
            self._taskless[supervisor.job] = time.monotonic()
        if (slot := supervisor.slot) >= 0:
            self._vacate(supervisor)
            self._report_lost(slot, reason)
        if self._open:
            self._fill()

    def _report_lost(self, slot: int, reason: str) -> None:
        self._logs.close(slot)
        self._lost.append((slot, reason))
        self._signal(self._lost_write)

    def _supervisor_of(self, slot: int) -> Supervisor | None:
        return next((supervisor for supervisor in self._supervisors.values() if supervisor.slot == slot >= 0), None)

    def _end_reason(self, supervisor: Supervisor) -> str:
        """Return why its connection ended, as far as that is known."""
        if not supervisor.reason:
            return f"its {self._task_name if supervisor.task else 'supervisor'} on {supervisor.host} ended"
        note = (
            ""
            if supervisor.task
            else " (no task held it then: with dynamic allocation, Spark removes executors that are idle)"
        )
        return supervisor.reason + note

    def _warn_once(self, text: str, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s", text)

    @staticmethod
    def _signal(end: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(end, b"x")
