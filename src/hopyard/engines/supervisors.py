"""Supervisors: places in somebody else's cluster where one agent each can run, as the driver sees them.

A supervisor (`supervisor.py`) that was placed somewhere dials in. Slots that want an agent wait in a queue; supervisors
that are free take them in turn. When the connection of a supervisor ends, its slot is lost; when an agent ends, its
supervisor is free again, so a new agent needs nothing new from the cluster. A supervisor that does not follow its
orders is given up: whoever placed it cancels its job, and its slot gets another once it is gone, as an agent and its
successor have one name on the wire. Tasks of supervisors can be ordered to end alone while their agents go on, so that
others find their cores free. The slot of such an agent is then held by no task, and later by that of another supervisor
that is free. This module imports nothing of Spark, and does not know how supervisors are placed.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hopyard.core.facts import UNREADABLE
from hopyard.engines.messages import (
    FORMAT,
    End,
    Ended,
    EndTask,
    Hello,
    Leave,
    Leaving,
    Lines,
    Order,
    Printed,
    Report,
    Start,
    hello_of,
    line_of,
    report_of,
)
from hopyard.engines.supervisor import lasting
from hopyard.errors import ResourceError
from hopyard.ports import OutOfMemory
from hopyard.system.network import listen

log = logging.getLogger(__name__)

HELLO_BYTES = 1 << 16
"""Bytes that a stranger may send before it must have shown the token."""
HELLO_SECONDS = 10.0
STRANGERS = 512
"""Connections that may be about to show the token: all executors may come at once. One more ends the oldest."""
LOOK_SECONDS = 1.0
"""Time between two looks at strangers."""
PAUSE_SECONDS = 0.1
"""How long nobody is let in when no more files may be open."""
WARN_SECONDS = 60.0
"""The least time between two warnings about strangers."""
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


@dataclass(slots=True)
class Supervisor:
    """One supervisor, as the driver knows it."""

    connection: socket.socket
    since: float
    lines: Lines = field(default_factory=Lines)
    admitted: bool = False
    host: str = ""
    executor: str = ""
    """Host, and process of the executor there."""
    gpus: tuple[str, ...] = ()
    job: int = -1
    """Number of the job whose task started it."""
    task: bool = True
    """Whether its task is there; False: its core was released."""
    slot: int = -1
    """Slot whose agent runs there; −1: none."""
    held_slot: int = -1
    """Slot that it holds for the agent of another supervisor, whose own task is gone; −1: none."""
    used: bool = False
    """Whether it has had a slot."""
    ending: bool = False
    """Whether an agent of it is being ended; it takes no other before it has confirmed that."""
    ending_slot: int = -1
    """The slot whose agent is being ended there, and may still be at work; −1: none."""
    leaving: bool = False
    """Whether it was ordered to leave."""
    given_up: bool = False
    """Whether it does not follow its orders: its job is cancelled, which ends it."""
    reason: str = ""
    """Why it leaves, as it reported."""


class Supervisors:
    """Owner of the supervisors of one run. A thread of its own listens; everything else is called by the driver's loop.

    Args:
        host: the address that supervisors dial; see `network.address_to_bind`.
        port: 0: any that is free.
        token: lets supervisors in.
        log_of: slot → the file that takes what its agent prints.
    """

    def __init__(self, host: str, port: int, token: str, log_of: Callable[[int], Path]) -> None:
        self._token = token
        self._log_of = log_of
        self._lock = threading.Condition()
        """Notified when an agent or a supervisor is gone."""
        self._supervisors: dict[int, Supervisor] = {}
        self._queue: deque[int] = deque()
        self._released: set[int] = set()
        self._lost: list[tuple[int, str]] = []
        self._taskless: dict[int, float] = {}
        """Job → since when its task has no supervisor any more: it is about to end, or to run again."""
        self._abandoned: set[int] = set()
        self._failure: str = ""
        self._logs: dict[int, IO[bytes]] = {}
        self._open = True
        self._dismissed = False
        """Whether supervisors that come are to leave."""
        self._next_look = time.monotonic() + LOOK_SECONDS
        self._listens = True
        """Whether connections are accepted now: not while no more files may be open."""
        self.admitted_count = 0
        """How many supervisors were ever let in."""
        self._refused_count = 0
        self._warned = -WARN_SECONDS
        try:
            self._listener = listen(host, port)
        except OSError as error:
            raise ResourceError(f"port {port} on {host}: {error}; give another port=, or port=0 for any") from error
        self.port = int(self._listener.getsockname()[1])
        self._listener.setblocking(False)
        self._lost_read, self._lost_write = os.pipe()
        """A pipe that is readable while `lost` has something to return."""
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._lost_read, self._lost_write, self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._select = selectors.DefaultSelector()
        self._select.register(self._listener, selectors.EVENT_READ, self._accept)
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
            self._close_log(slot)

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
                elif self._idle(supervisor) and not self._queue and now - supervisor.since > SPARE_SECONDS:
                    self._dismiss(supervisor)
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
        """Whether no supervisor has this slot yet."""
        return slot in self._queue

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
            for slot in list(self._logs):
                self._close_log(slot)
            self._listener.close()
            self._select.close()
            for end in (self._lost_read, self._lost_write, self._wake_read, self._wake_write):
                os.close(end)

    # ---------------------------------------------------------------- asked by whoever places supervisors

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
                for key, _ in self._select.select(max(0.0, self._next_look - time.monotonic())):
                    with self._lock:
                        if self._open:
                            key.data()
                if (now := time.monotonic()) >= self._next_look:
                    with self._lock:
                        self._look(now)
        except Exception as error:  # whatever it is: else the run would wait for ever for slots that nobody brings
            log.exception("the thread that talks to supervisors ended")
            self.give_up(f"the driver can talk to supervisors no longer: {type(error).__name__}: {error}")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:  # it is gone
            return
        except OSError as error:  # no more files may be open; the kernel keeps the connection until there are
            log.warning("a supervisor cannot be let in: %s", error)
            self._select.unregister(self._listener)
            self._listens, self._next_look = False, time.monotonic() + PAUSE_SECONDS
            return
        try:
            lasting(connection)
        except OSError:  # it is gone; macOS then allows no options any more
            connection.close()
            return
        connection.setblocking(False)
        now = time.monotonic()
        strangers = [supervisor for supervisor in self._supervisors.values() if not supervisor.admitted]
        if len(strangers) >= STRANGERS:
            self._drop(min(strangers, key=lambda stranger: stranger.since), "")
        supervisor = self._supervisors[connection.fileno()] = Supervisor(connection, now)
        self._select.register(connection, selectors.EVENT_READ, lambda: self._receive(supervisor))

    def _look(self, now: float) -> None:
        """Drop strangers that are silent for too long, and listen again after a pause."""
        if not self._open:
            return
        self._next_look = now + LOOK_SECONDS
        for supervisor in list(self._supervisors.values()):
            if not supervisor.admitted and now - supervisor.since > HELLO_SECONDS:
                self._drop(supervisor, "")
        if not self._listens:
            self._listens = True
            self._select.register(self._listener, selectors.EVENT_READ, self._accept)

    def _receive(self, supervisor: Supervisor) -> None:
        try:
            data = supervisor.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(supervisor, _end_reason(supervisor))
            return
        try:
            for text in supervisor.lines.add(data):
                if supervisor.admitted:
                    self._handle(supervisor, report_of(text))
                elif not self._admit(supervisor, hello_of(text)):
                    return
        except UNREADABLE as error:
            self._drop(supervisor, f"its supervisor on {supervisor.host} said what cannot be read: {error}")
        if not supervisor.admitted and len(supervisor.lines) > HELLO_BYTES:
            self._drop(supervisor, "")

    def _admit(self, supervisor: Supervisor, hello: Hello) -> bool:
        if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            self._refuse(supervisor)
            return False
        if hello.format != FORMAT:
            self.give_up(
                f"the executor on {hello.host} has another version of Hopyard than this process (messages of format "
                f"{hello.format}, not {FORMAT}): install the same one for all"
            )
            self._drop(supervisor, "")
            return False
        supervisor.admitted = True
        supervisor.host, supervisor.executor, supervisor.job = hello.host, hello.executor, hello.job
        supervisor.gpus = hello.gpus
        self.admitted_count += 1
        self._taskless.pop(supervisor.job, None)
        if self._dismissed:
            self._dismiss(supervisor)
        self._fill()
        return True

    def _refuse(self, supervisor: Supervisor) -> None:
        self._drop(supervisor, "")
        self._refused_count += 1
        if (now := time.monotonic()) - self._warned >= WARN_SECONDS:
            self._warned = now
            log.warning(
                "a stranger dialled the port of supervisors; it was not let in (%d so far)", self._refused_count
            )

    def _handle(self, supervisor: Supervisor, report: Report) -> None:
        if isinstance(report, Printed):
            return self._write(report.slot, report.text)
        if isinstance(report, Leaving):
            supervisor.reason = report.reason
            return
        if isinstance(report, Ended) and supervisor.slot == report.slot >= 0:
            self._vacate(supervisor)
            self._report_lost(report.slot, OutOfMemory(report.reason) if report.memory else report.reason)
        else:
            supervisor.ending, supervisor.ending_slot = False, -1  # as ordered, or by itself just before
        if not supervisor.task and supervisor.slot < 0:
            self._dismiss(supervisor)
        self._fill()

    def _fill(self) -> None:
        """Give supervisors that are free the slots that wait for an agent, then those that no task holds."""
        for supervisor in list(self._supervisors.values()):
            if not self._idle(supervisor):
                continue
            if startable := self._startable():
                supervisor.slot, supervisor.used = startable[0], True
                self._queue.remove(supervisor.slot)
                self._send(supervisor, Start(supervisor.slot))
                if supervisor.slot in self._released:
                    self._end_task(supervisor)
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

    @staticmethod
    def _idle(supervisor: Supervisor) -> bool:
        return (
            supervisor.admitted
            and supervisor.task
            and max(supervisor.slot, supervisor.held_slot) < 0
            and not supervisor.ending
            and not supervisor.leaving
        )

    def _end_task(self, supervisor: Supervisor) -> None:
        """Let its task end; a supervisor whose task only held a slot leaves too."""
        if supervisor.slot >= 0:
            supervisor.task = False
            self._send(supervisor, EndTask())
        else:
            self._dismiss(supervisor)

    def _dismiss(self, supervisor: Supervisor) -> None:
        if not supervisor.leaving:
            supervisor.leaving, supervisor.since = True, time.monotonic()
        self._send(supervisor, Leave())

    def _give_up(self, supervisor: Supervisor) -> None:
        """Let its job be cancelled. Should it go on all the same, it finds the order to leave in its socket."""
        log.warning("a supervisor on %s does not answer: its Spark job is cancelled", supervisor.host)
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
        supervisor.slot = -1
        self._lock.notify_all()

    def _send(self, supervisor: Supervisor, order: Order) -> None:
        try:
            supervisor.connection.sendall(line_of(order))
        except OSError:  # no room for a few bytes: nobody reads there any more
            self._drop(supervisor, f"its Spark task on {supervisor.host} does not listen")

    def _drop(self, supervisor: Supervisor, reason: str) -> None:
        if self._supervisors.pop(supervisor.connection.fileno(), None) is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._select.unregister(supervisor.connection)
        supervisor.connection.close()
        self._lock.notify_all()
        supervisor.leaving, supervisor.ending_slot = True, -1
        if supervisor.admitted and supervisor.task and not supervisor.given_up:
            self._taskless[supervisor.job] = time.monotonic()
        if (slot := supervisor.slot) >= 0:
            self._vacate(supervisor)
            self._report_lost(slot, reason)
        if self._open:
            self._fill()

    def _report_lost(self, slot: int, reason: str) -> None:
        self._close_log(slot)
        self._lost.append((slot, reason))
        self._signal(self._lost_write)

    def _supervisor_of(self, slot: int) -> Supervisor | None:
        return next((supervisor for supervisor in self._supervisors.values() if supervisor.slot == slot >= 0), None)

    def _write(self, slot: int, text: str) -> None:
        file = self._logs.get(slot)
        try:
            if self._supervisor_of(slot) is None:  # its last output
                with self._log_of(slot).open("ab") as ended:
                    ended.write(text.encode())
                return
            if file is None:
                path = self._log_of(slot)
                path.parent.mkdir(parents=True, exist_ok=True)
                file = self._logs[slot] = path.open("ab", buffering=0)
            file.write(text.encode())
        except OSError as error:  # the journal says so too, if the disk is full; training need not end for a log
            log.warning("slot %d: its log cannot be written: %s", slot, error)

    def _close_log(self, slot: int) -> None:
        file = self._logs.pop(slot, None)
        if file is not None:
            file.close()

    @staticmethod
    def _signal(end: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(end, b"x")


def _end_reason(supervisor: Supervisor) -> str:
    """Return why its connection ended, as far as that is known."""
    if not supervisor.reason:
        return f"its {'Spark task' if supervisor.task else 'supervisor'} on {supervisor.host} ended"
    note = (
        ""
        if supervisor.task
        else " (no task held it then: with dynamic allocation, Spark removes executors that are idle)"
    )
    return supervisor.reason + note
