"""A host without a scheduler: a supervisor for each slot, in a process of its own, until the driver ends it.

It is started by ssh, which brings the ticket on standard input and keeps that open (`python -m
hopyard.engines.supervisors`), by hand or systemd with the ticket in a file (`hopyard agent --join`), or as process 1 of
a pod (`pod.py`). It is what the executor is to supervisors on Spark: its end ends all. A supervisor that was killed, or
stopped for some seconds, gets a successor, and so does one whose connection to the driver ended: only an order of the
driver, or its refusal, ends a place. But where no supervisor can dial the driver any more, a host that does not stand
by ends: who started it may have vanished unseen.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from hopyard.engines.local import cores, gpus
from hopyard.engines.supervisors.line import BLOCK
from hopyard.engines.supervisors.messages import Lines
from hopyard.engines.supervisors.supervisor import (
    DIAL_SECONDS,
    Departure,
    Holder,
    attend,
    continue_when_parent_ends,
    dial,
    host_name,
)
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.system.processes import descendants, state_of, watched
from hopyard.text import escaped

UNREACHED_CODE = 3
"""Exit code where the driver cannot be dialled."""
CUT_CODE = 4
"""Exit code of a supervisor whose connection to the driver ended without an order to leave."""
UNFIT_CODE = 78
"""Exit code where nothing can work for this driver: it has refused the host, or the host lacks what the run requires.
Of a pod also where the driver cannot be dialled. (EX_CONFIG of sysexits.h.)"""
TERMINATED_CODE = 128 + signal.SIGTERM
"""Exit code of a pod that was told to end."""
LOOK_SECONDS = 1.0
"""Time between two looks at supervisors."""
STOPPED_SECONDS = 5.0
"""A supervisor that is stopped for so long is ended; the driver has given it up by then."""
AGAIN_SECONDS = 1.0
"""Time before a supervisor that was killed gets a successor, and before a driver that is not there is dialled again."""
ORPHANED_SECONDS = 2.0
"""How long what has lost its parent may go on in a pod that was cut off: companions clean up."""
CUT_SECONDS = 3 * DIAL_SECONDS
"""How long supervisors of a host that was cut off dial a driver again, until the host ends."""
MOST_SECONDS = 60.0
"""The longest time before a driver is dialled again for which agents could not work; it doubles from AGAIN_SECONDS
on."""
END_SECONDS = 3.0
"""How long supervisors may take to end their agents and themselves."""


DIALLED = "."
"""What a supervisor reports when it has dialled the driver."""


@dataclass(slots=True)
class Child:
    """The process of a supervisor."""

    number: int
    task: socket.socket
    """Its end tells the supervisor that this process is gone. Lines come: DIALLED, and sentences for people."""
    watch: int
    lines: Lines = field(default_factory=Lines)
    dialled: bool = False
    """Whether it has dialled the driver."""
    stopped_at: float = 0.0
    """Since when it is stopped; 0: it is not."""


def shares(slots: int | None, devices: str) -> list[list[str]]:
    """Return the GPUs of each slot of this host.

    Args:
        slots: how many; None: one for each GPU, or, where there is none, for each core.
        devices: "auto": the GPUs in turn; "none".
    """
    names = gpus() if devices == "auto" else []
    return [[names[number % len(names)]] if names else [] for number in range(slots or len(names) or cores())]


class SupervisorHost:
    """Owner of the supervisors of this host.

    Args:
        ticket: the driver's.
        gpus_of: slot → its GPUs.
        standing: dial again when the driver has ended, or is not there yet.
        input_file: a descriptor whose end means that all must end; -1: none.
        pod: this is process 1 of a pod: SIGTERM ends all, and what agents print is printed.

    Attributes:
        fault: the last sentence of a supervisor that could not work; empty: there was none.
    """

    def __init__(
        self,
        ticket: Ticket,
        gpus_of: Sequence[list[str]],
        *,
        standing: bool = False,
        input_file: int = -1,
        pod: bool = False,
    ) -> None:
        self._ticket, self._gpus_of, self._standing, self._input = ticket, gpus_of, standing, input_file
        self._pod = pod
        self.fault = ""
        self._said_at = 0.0
        """When `fault` was printed."""
        self._wait = selectors.DefaultSelector()
        self._children: dict[int, Child] = {}
        self._due: list[tuple[float, int]] = []
        """When which slot gets another supervisor."""
        self._left: list[tuple[float, int]] = []
        """The same of slots whose supervisors left as the driver ordered, if others are still there."""
        self._reached = False
        """Whether a supervisor has dialled the driver."""
        self._reached_at = 0.0
        """When one was last known to have done so."""
        self._unreached: list[int] = []
        """Slots whose supervisors could not dial it, as long as none has."""
        self._unfit = False
        """Whether a supervisor has left as it cannot work for this driver."""
        self._farewell = ""
        """Why this process was told to end; empty: it was not."""
        self._began = time.monotonic()
        """A pod dials for CUT_SECONDS from then on: its network may come late."""
        self._open = True

    def run(self) -> int:
        """Run until nothing is left to do; return the exit code."""
        if self._input >= 0:
            self._wait.register(self._input, selectors.EVENT_READ, self._read)
        if self._pod:
            self._heed_sigterm()
        try:
            for number in range(len(self._gpus_of)):
                self._start(number)
            while self._open and (self._children or self._due):
                for key, _ in self._wait.select(LOOK_SECONDS):
                    key.data()
                self._look(time.monotonic())
        finally:
            self._end()
            self._wait.close()
        if self._farewell:
            return TERMINATED_CODE
        unreached = bool(self._unreached) and not self._reached
        if self._unfit or (unreached and self._pod):
            return UNFIT_CODE
        return UNREACHED_CODE if unreached else 0

    def _heed_sigterm(self) -> None:
        """End all on SIGTERM, which process 1 would not get without a handler. A pipe ends the wait for events."""
        woken, wakes = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self._wait.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 4096))
        signal.signal(signal.SIGTERM, self._told_to_end)

    def _told_to_end(self, number: int, frame: object) -> None:
        self._farewell, self._open = f"its pod {host_name()} was told to end (SIGTERM)", False

    def _read(self) -> None:
        """Notice the end of the input; what else comes there means nothing."""
        try:
            self._open = bool(os.read(self._input, 4096))
        except OSError:
            self._open = False

    def _look(self, now: float) -> None:
        for child, code in self._reap():
            if child.dialled:
                self._reached, self._reached_at = True, now
            if code == UNREACHED_CODE and not (self._pod and now - self._began < CUT_SECONDS):
                self._unreached.append(child.number)
            elif code == UNFIT_CODE:
                self._unfit = True
            else:  # one that was ordered to leave may have been given up: its place is kept as long as others stay
                (self._due if code else self._left).append((now + AGAIN_SECONDS, child.number))
        for pid, child in self._children.items():
            if state_of(pid) not in "Tt":
                child.stopped_at = 0.0
            elif not child.stopped_at:
                child.stopped_at = now
            elif now - child.stopped_at > STOPPED_SECONDS:
                os.kill(pid, signal.SIGKILL)
        if any(child.dialled for child in self._children.values()):
            self._reached, self._reached_at = True, now
        elif self._pod and now - self._reached_at > ORPHANED_SECONDS:
            self._end_orphans()
        if self._reached and not self._standing and now - self._reached_at > CUT_SECONDS:
            self._open = False
            return
        if self._unreached and self._reached:
            self._due += [(now + AGAIN_SECONDS, number) for number in self._unreached]
            self._unreached.clear()
        for waiting in (self._due, self._left) if self._children else (self._due,):
            for at, number in [due for due in waiting if due[0] <= now]:
                waiting.remove((at, number))
                self._start(number)

    def _end_orphans(self) -> None:
        """End what agents have started that has lost its parent: no supervisor here has an agent any more."""
        orphans = descendants(os.getpid()) - self._children.keys()
        for child in self._children:  # one that has just dialled may have an agent
            orphans -= descendants(child)
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> list[tuple[Child, int]]:
        """Return the supervisors that have ended, with their exit codes. Others that have ended were orphans, of which
        process 1 becomes the parent."""
        result: list[tuple[Child, int]] = []
        with contextlib.suppress(ChildProcessError):  # there is none
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if (child := self._children.get(ended[0])) is not None:
                    self._hear(child)
                    self._forget(ended[0])
                    result.append((child, os.waitstatus_to_exitcode(ended[1])))
        return result

    def _hear(self, child: Child) -> None:
        """Note what a supervisor reports; print a sentence of it, which others may report too, once."""
        try:
            data = child.task.recv(BLOCK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            with contextlib.suppress(KeyError):
                self._wait.unregister(child.task)
        for line in child.lines.add(data):
            text, now = line.decode(), time.monotonic()
            if text == DIALLED:
                child.dialled = True
            elif text != self.fault or now - self._said_at > MOST_SECONDS:
                self.fault, self._said_at = text, now
                print(text, file=sys.stderr, flush=True)  # noqa: T201 - read by the driver, or by people

    def _start(self, number: int) -> None:
        task, supervisor_end = socket.socketpair()
        pid = os.fork()
        if not pid:
            task.close()
            self._run_child(number, supervisor_end)
        supervisor_end.close()
        child = self._children[pid] = Child(number, task, watched(pid))
        self._wait.register(task, selectors.EVENT_READ, lambda: self._hear(child))
        if child.watch >= 0:
            self._wait.register(child.watch, selectors.EVENT_READ, lambda: None)

    def _forget(self, pid: int) -> None:
        child = self._children.pop(pid)
        with contextlib.suppress(KeyError):
            self._wait.unregister(child.task)
        child.task.close()
        if child.watch >= 0:
            self._wait.unregister(child.watch)
            os.close(child.watch)

    def _end(self) -> None:
        """End all supervisors, which end their agents."""
        for child in self._children.values():
            with contextlib.suppress(OSError):
                child.task.sendall(self._farewell.encode())
                child.task.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + END_SECONDS
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        while self._children and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.01)
        for pid in list(self._children):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._forget(pid)

    def _run_child(self, number: int, task: socket.socket) -> NoReturn:
        """Run a supervisor in the forked process."""
        code, parent = 1, os.getppid()
        try:
            os.setsid()  # Ctrl-C in a terminal is for the parent
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            continue_when_parent_ends()
            gc.freeze()
            self._wait.close()
            for child in self._children.values():
                child.task.close()
            if self._input >= 0:
                null = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null, self._input)
                os.close(null)
            code = supervise(self._ticket, self._gpus_of[number], task, parent, standing=self._standing, echo=self._pod)
        except BaseException:  # noqa: BLE001 - standard error is the only place to say it
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            with contextlib.suppress(OSError):
                os.kill(parent, signal.SIGCONT)  # one that is stopped would stay behind
            os._exit(code)


def supervise(
    ticket: Ticket, gpus_of_slot: list[str], task: socket.socket, parent: int, *, standing: bool, echo: bool = False
) -> int:
    """Dial the driver and run agents until it ends, or the parent does; where `standing`, until the parent does. Where
    agents could not reach the driver, dial again: what was in the way may be gone, and the place is not lost.

    Args:
        ticket: the driver's.
        gpus_of_slot: names of the GPUs of this slot.
        task: its end is the parent's, which gets reports by it.
        parent: number of the parent process.
        standing: dial again when the driver has ended, has refused this host, or is not there yet.
        echo: print what agents print.

    Returns:
        The exit code.
    """

    def report(text: str) -> None:
        with contextlib.suppress(OSError):  # the parent is gone, which the holder shows
            task.sendall(escaped(text).replace("\n", " ").encode() + b"\n")

    fault, pause = "", AGAIN_SECONDS
    while True:
        try:
            line = dial(ticket)
        except ConnectionError as error:
            if str(error) != fault and not (standing and isinstance(error.__context__, ConnectionRefusedError)):
                fault = str(error)
                report(fault)
            if not standing:
                return UNREACHED_CODE
            pause = AGAIN_SECONDS
        else:
            report(DIALLED)
            holder = Holder(parent, task.dup(), "parent process", "parent process")
            left, refusal = attend(ticket, line, holder, gpus_of_slot, echo=echo)
            if refusal and refusal != fault:
                report(refusal)
            fault = refusal
            if left is Departure.UNFIT and not standing:
                return UNFIT_CODE
            if left in (Departure.UNREACHED, Departure.UNFIT):
                pause = min(2 * pause, MOST_SECONDS)
            elif left is Departure.UNHELD or not standing:
                return CUT_CODE if left is Departure.CUT else 0
            else:
                pause = AGAIN_SECONDS
        if select.select([task], [], [], pause)[0]:
            return 0
