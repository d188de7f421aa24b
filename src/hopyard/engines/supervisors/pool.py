"""The supervisors of one run, or of several in turn, as the driver sees them: places where one agent each can run.

A supervisor (`supervisor.py`) that was placed somewhere dials in (`listener.py`). The driver's loop says which slots
want an agent, and `roster.py` assigns them to supervisors. When the connection of a supervisor ends, its slot is lost;
when an agent ends, its supervisor is free again, so a new agent needs nothing new from the cluster. Lasting supervisors
stand by when a run is over, with their templates; on Spark without their tasks, so that others have the cores
meanwhile. This module has the connections, the thread that reads them, and the lock. It does not know how supervisors
are placed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from hopyard.core.facts import UNREADABLE
from hopyard.engines.supervisors.line import Line
from hopyard.engines.supervisors.listener import Listener
from hopyard.engines.supervisors.logs import SlotLogs
from hopyard.engines.supervisors.messages import (
    HostWarning,
    Leaving,
    Lines,
    Prepare,
    Printed,
    Refuse,
    Report,
    SupervisorHello,
    line_of,
    report_of,
)
from hopyard.engines.supervisors.record import Supervisor, version_fault
from hopyard.engines.supervisors.roster import Roster
from hopyard.engines.supervisors.supervisor import named
from hopyard.errors import ResourceError
from hopyard.text import escaped

log = logging.getLogger(__name__)

END_SECONDS = 0.5
"""How long agents that were ordered to end have for it, until their supervisors end them."""
CLOSE_SECONDS = 5.0
"""How long supervisors may take to leave."""


class Supervisors:
    """Owner of the connections to supervisors. A thread of its own listens; everything else is called by the driver's
    loop.

    Args:
        host: the address that supervisors dial; see `network.address_to_bind`.
        port: 0: any that is free.
        token: lets supervisors in.
        log_of: slot → the file that takes what its agent prints.
        certificate: of the supervisors' ticket; empty: connections are in clear.
        prepare: what supervisors are sent for their agents; None: they have it with their ticket.
        task_name: what holds the place of a supervisor, for messages.
        expected: how many supervisors there may be, which may all dial at once.
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
        expected: int = 0,
        keep_idle: bool = False,
        lasting: bool = False,
    ) -> None:
        self._task_name = task_name
        self.lasting = lasting
        """Whether there may be another run."""
        self._logs = SlotLogs(log_of)
        self._lock = threading.Condition()
        """Notified when something has changed in the roster."""
        self._roster = Roster(self._hang_up, prepare, task_name=task_name, keep_idle=keep_idle, lasting=lasting)
        self._failure: str = ""
        self._expected = max(expected, 1)
        self._refused: dict[tuple[str, int, int], str] = {}
        """(executor, job, process) of each supervisor that cannot work for this run → why."""
        self._warned: set[str] = set()
        """Faults that were logged, each once."""
        self._open = True
        self._select = selectors.DefaultSelector()
        try:
            self._listener = Listener(host, port, token, certificate, self._select, self._admit, expected)
        except BaseException:
            self._select.close()
            raise
        self.port = self._listener.port
        self._lost_read, self._lost_write = os.pipe()
        """A pipe that is readable when `lost` is to be called."""
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._lost_read, self._lost_write, self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._select.register(self._wake_read, selectors.EVENT_READ, lambda: None)
        self._thread = threading.Thread(target=self._run, name="hopyard-supervisors", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def _changed(self) -> Iterator[Roster]:
        """Change the roster under its lock, and notify the threads that wait for changes."""
        with self._lock:
            try:
                yield self._roster
            finally:
                self._lock.notify_all()
                if self._roster.lost and self._open:
                    self._signal(self._lost_write)

    # ---------------------------------------------------------------- called by the loop

    def start(self, slot: int) -> None:
        """Put this slot into the queue for an agent."""
        with self._changed() as roster:
            roster.start(slot)

    def end(self, slot: int) -> None:
        """End the agent of this slot, or take the slot out of the queue."""
        with self._changed() as roster:
            roster.end(slot)
            self._logs.close(slot)

    def give_back(self, slots: Collection[int]) -> None:
        """End the agents of these slots, and let all supervisors leave that nobody needs."""
        with self._changed() as roster:
            roster.give_back(slots)
            for slot in slots:
                self._logs.close(slot)

    def lost(self) -> list[tuple[int, str]]:
        """Return (slot, reason) of the agents that ended since the last call. Raises ResourceError after `give_up`."""
        with self._changed() as roster:
            if not self._open:
                return []
            self._drain()
            roster.look(time.monotonic())
            lost, roster.lost = roster.lost, []
            for slot, _ in lost:
                self._logs.close(slot)
            if self._failure and not lost:
                raise ResourceError(self._failure)
            return lost

    def abandoned(self) -> set[int]:
        """Return the jobs, since the last call, that have no supervisor and do not end: they are to be cancelled."""
        with self._lock:
            jobs, self._roster.abandoned = self._roster.abandoned, set()
            return jobs

    def watch(self) -> list[int]:
        """Return a descriptor that is readable when `lost` is to be called."""
        return [self._lost_read] if self._open else []

    def waits(self, slot: int) -> bool:
        """Whether no supervisor has this slot yet, or a template still imports what its agent needs."""
        with self._lock:
            return self._roster.waits(slot)

    def device(self, slot: int) -> str:
        """Return "cuda" where Spark gave the supervisor a GPU, else "cpu"."""
        with self._lock:
            supervisor = self._roster.of(slot)
            return "cuda" if supervisor is not None and supervisor.gpus else "cpu"

    def release_cores(self, slots: Collection[int]) -> dict[int, int]:
        """Let the tasks of these slots end, those that come later too, until `reacquire_cores`.

        Returns:
            Job → slot, of the tasks that were ordered to end now.
        """
        with self._changed() as roster:
            return roster.release_cores(slots)

    def reacquire_cores(self) -> None:
        """Let tasks that come from now on hold slots again."""
        with self._changed() as roster:
            roster.reacquire_cores()

    def rest(self, released: Collection[int] = ()) -> None:
        """End a run: its agents, as `dismiss` does, and what is known of it. Supervisors that had an agent stand by for
        `renew`, without their tasks where others want their places; all others leave.

        Args:
            released: slots whose tasks are to end in the next run too.
        """
        with self._changed() as roster:
            if not self._open or roster.dismissed:
                return
            roster.clear(released)
            self._lock.wait_for(lambda: not roster.occupied, END_SECONDS)
            roster.end_agents()
            self._lock.wait_for(lambda: not roster.ending, CLOSE_SECONDS)
            roster.stand_by()
            self._drain()
            self._logs.close_all()

    def renew(self, log_of: Callable[[int], Path], prepare: Prepare) -> None:
        """Begin another run, with the supervisors that stand by.

        Args:
            log_of: slot → the file that takes what its agent prints.
            prepare: what supervisors are sent for their agents, those too that come later.
        """
        with self._changed() as roster:
            self._logs = SlotLogs(log_of)
            self._refused.clear()
            roster.renew(prepare)

    def dismiss(self) -> None:
        """End all agents. Those that were ordered to end have a moment for it; then their supervisors end them and
        leave. Supervisors that come from now on leave too."""
        with self._changed() as roster:
            if not self._open or roster.dismissed:
                return
            roster.clear(())
            roster.dismissed = True
            self._lock.wait_for(lambda: not roster.occupied, END_SECONDS)
            roster.dismiss_all()

    def close(self) -> None:
        """Dismiss all, and let nobody in any more."""
        self.dismiss()
        if not self._open:
            return
        with self._lock:
            self._lock.wait_for(lambda: not self._roster.supervisors or not self._thread.is_alive(), CLOSE_SECONDS)
            self._open = False
            self._signal(self._wake_write)
        self._thread.join(CLOSE_SECONDS)
        with self._lock:
            for supervisor in list(self._roster.supervisors.values()):
                self._roster.drop(supervisor, "")
            self._roster.lost.clear()
            self._logs.close_all()
            self._listener.close()
            self._select.close()
            for end in (self._lost_read, self._lost_write, self._wake_read, self._wake_write):
                os.close(end)

    # ---------------------------------------------------------------- called by placements

    def wake(self) -> None:
        """Wake the driver's loop, so that it calls `lost`: a placement has learnt why agents ended."""
        with self._lock:
            if self._open:
                self._signal(self._lost_write)

    @property
    def usable(self) -> bool:
        """Whether there may be another run."""
        with self._lock:
            return self._open and not self._roster.dismissed and not self._failure and self._thread.is_alive()

    @property
    def occupied(self) -> int:
        """How many supervisors have an agent."""
        with self._lock:
            return self._roster.occupied

    @property
    def held(self) -> int:
        """How many slots hold agents, except those whose cores are released."""
        with self._lock:
            return self._roster.due - self._roster.missing

    @property
    def due(self) -> int:
        """How many tasks there should be: one for each slot that wants a supervisor or has an agent, except those
        whose cores are released."""
        with self._lock:
            return self._roster.due

    @property
    def jobs(self) -> set[int]:
        """The numbers of the jobs whose supervisors are there."""
        with self._lock:
            return {supervisor.job for supervisor in self._roster.supervisors.values()}

    @property
    def missing(self) -> int:
        """How many slots wait for a supervisor."""
        with self._lock:
            return self._roster.missing

    @property
    def admitted_count(self) -> int:
        """How many supervisors were let in since the run began, and before it of those that stood by."""
        with self._lock:
            return self._roster.admitted_count

    @property
    def hosts(self) -> dict[str, bool]:
        """Host → whether an agent has run there, of the hosts that have a supervisor."""
        with self._lock:
            hosts: dict[str, bool] = {}
            for supervisor in self._roster.supervisors.values():
                hosts[supervisor.host] = hosts.get(supervisor.host, False) or supervisor.hosted
            return hosts

    @property
    def busy_hosts(self) -> set[str]:
        """The hosts where an agent runs."""
        with self._lock:
            return {supervisor.host for supervisor in self._roster.supervisors.values() if supervisor.slot >= 0}

    @property
    def refusals(self) -> list[str]:
        """Why supervisors cannot work for this run, each reason once."""
        with self._lock:
            return list(dict.fromkeys(self._refused.values()))

    def refused(self, job: int) -> bool:
        """Whether the supervisor of this job cannot work for this run."""
        with self._lock:
            return any(of == job for _, of, _ in self._refused)

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
                    with self._changed():
                        if self._open:
                            key.data()
                if (now := time.monotonic()) >= self._listener.next_look:
                    with self._lock:
                        if self._open:
                            self._listener.look(now)
        except Exception as error:  # whatever it is: else the run would wait for ever for slots that nobody brings
            log.exception("the thread that talks to supervisors ended")
            self.give_up(f"the driver can talk to supervisors no longer: {type(error).__name__}: {error}")

    def _admit(self, line: Line, hello: SupervisorHello, texts: list[bytes], lines: Lines) -> None:
        """Take a supervisor that was let in.

        Args:
            line: its connection.
            hello: what it said of itself.
            texts: lines that it has sent since.
            lines: takes the rest.
        """
        supervisor = self._roster.supervisors[line.fileno()] = Supervisor(line, time.monotonic(), lines)
        supervisor.host, supervisor.name = escaped(hello.host), escaped(named(hello.host, hello.node))
        supervisor.executor, supervisor.job = hello.executor, hello.job
        supervisor.process, supervisor.gpus = hello.process, hello.gpus
        self._select.register(line, selectors.EVENT_READ, lambda: self._receive(supervisor))
        if fault := escaped(version_fault(hello)):
            supervisor.task = False  # nobody waits for its end
            self._note_refused(supervisor, fault)
            with contextlib.suppress(OSError):  # it is gone already
                line.send(line_of(Refuse(fault)))
            self._roster.drop(supervisor, "")
            return
        self._roster.admit(supervisor)
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
            self._roster.drop(supervisor, supervisor.end_reason(self._task_name))

    def _read(self, supervisor: Supervisor, texts: Iterable[bytes]) -> None:
        try:
            for text in texts:
                self._handle(supervisor, report_of(text))
        except UNREADABLE as error:
            reason = f"its supervisor on {supervisor.name} said what cannot be read: {error}"
            self._roster.drop(supervisor, reason)

    def _handle(self, supervisor: Supervisor, report: Report) -> None:
        match report:
            case Printed(slot=slot, text=text):
                if not supervisor.given_up:  # its agent may be one of an earlier run
                    self._logs.write(slot, text, self._roster.of(slot) is not None)
            case HostWarning(text=text):
                self._warn_once(f"{supervisor.name}: {escaped(text)}", text)
            case Leaving(reason=reason, unfit=True):
                self._roster.turn_away(supervisor)
                self._note_refused(supervisor, escaped(reason))
            case _:
                self._roster.on_report(supervisor, report)

    def _note_refused(self, supervisor: Supervisor, reason: str) -> None:
        """Note that this supervisor cannot work for this run. The run ends where that holds of as many as were expected
        and no other was let in. Pods of one node are not told apart, as each that is asked for has another name."""
        reason = reason.replace(f"{supervisor.host} on node ", f"a {self._task_name} on node ")
        self._refused[supervisor.executor, supervisor.job, supervisor.process] = reason
        self._warn_once(f"{reason}; it is turned away", reason)
        if not self._roster.admitted_count and len(self._refused) >= self._expected:
            self.give_up("; ".join(dict.fromkeys(self._refused.values())))

    def _hang_up(self, supervisor: Supervisor) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._select.unregister(supervisor.line)
        supervisor.line.close()

    def _warn_once(self, text: str, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s", text)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._lost_read, 4096)

    @staticmethod
    def _signal(end: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(end, b"x")
