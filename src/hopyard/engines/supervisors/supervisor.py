"""A supervisor, on its host: it runs one agent, as the driver orders.

A supervisor dials the driver (one socket, let in by the token of its ticket) and reports where it is (`messages.py`).
The driver names a slot; the supervisor starts an agent for it, passes on what the agent prints, and reports when it
ended. Supervisor and agent end with the connection (the driver is gone, or has no work), and with the process or task
that holds their place. Only where the driver orders so does that task end alone: supervisor and agent go on, until a
task of a second supervisor holds a slot for them again.

Where the driver's engine was started, an agent is a fork of a template (`engines/templates.py`), which the supervisor
has had since the first of its agents with these frameworks and this environment, and ends when it ends itself.

It does not know how it was placed, and not what agents do.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hopyard import __version__
from hopyard.core.facts import UNREADABLE
from hopyard.engines.local import AGENT, agent_environment
from hopyard.engines.processes import Spawned
from hopyard.engines.supervisors.line import BLOCK, Line, Security, lasting
from hopyard.engines.supervisors.messages import (
    AgentBegan,
    AgentEnded,
    EndAgent,
    EndTask,
    Free,
    HostWarning,
    Leave,
    Leaving,
    Lines,
    Order,
    Prepare,
    Printed,
    Refuse,
    Report,
    Start,
    SupervisorHello,
    line_of,
    order_of,
)
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.engines.templates import Process, Templates
from hopyard.system import oom
from hopyard.system.network import joined, parted
from hopyard.system.processes import ended, watched
from hopyard.text import escaped

DIAL_SECONDS = 10.0
"""A host that has not connected after this time cannot reach the driver."""
UNREACHED = "cannot reach the driver"
"""Part of the error of a host whose driver cannot be dialled."""
CAUSE_SECONDS = 0.5
"""A process that ends within this time after its task is named as the cause."""
_PR_SET_PDEATHSIG = 1
"""Number of an option of `prctl` on Linux."""
POLL_SECONDS = 0.2
"""Time between two looks at processes, where the system has no descriptors of them, or a template still imports."""
END_SECONDS = 4.0
"""How long a killed agent may take to end, until its template is killed: one that is stopped does not report it."""
NODE = "HOPYARD_NODE"
"""Variable of a pod that names its node, for messages to people."""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Departure(Enum):
    """Why a supervisor has left."""

    ORDERED = "the driver ordered so"
    CUT = "its connection to the driver ended"
    UNREACHED = "its agents cannot reach the driver"
    UNFIT = "the driver refused it, or its host lacks what the run requires"
    UNHELD = "its holder is gone, or was told to end"


@dataclass(frozen=True, slots=True)
class Holder:
    """What holds the place of a supervisor: a process, whose end ends all, and a task in it or below it, which may end
    alone.

    Attributes:
        process: its number.
        task: a socket whose other end the task has: its end is the task's, and one byte lets the task go. What comes
            from there is a sentence: why all must end.
        process_name, task_name: what people call them.
    """

    process: int
    task: socket.socket
    process_name: str
    task_name: str


def attend(ticket: Ticket, line: Line, holder: Holder, gpus: list[str], *, echo: bool = False) -> tuple[Departure, str]:
    """Run agents until the driver orders to leave, or until it or the holder is gone. Closes line and task.

    Args:
        ticket: the driver's.
        line: to the driver.
        holder: what holds the place of this supervisor.
        gpus: names of the GPUs that belong to it.
        echo: print what agents print, too.

    Returns:
        Why it has left, and the sentence that says why it cannot work for this driver; empty: it can.
    """
    with contextlib.closing(line), holder.task:
        host = socket.gethostname()
        hello = SupervisorHello(
            ticket.token,
            host,
            f"{host}-{holder.process}",
            tuple(gpus),
            ticket.job,
            __version__,
            PYTHON,
            os.getpid(),
            os.environ.get(NODE, ""),
        )
        with contextlib.suppress(OSError):  # the driver has closed; the next look at the connection shows it
            line.send(line_of(hello))
        runner = _AgentRunner(ticket.prepare, line, holder, gpus, echo=echo)
        return runner.run(), runner.fault


def host_name() -> str:
    """Return the name of this host for messages."""
    return named(socket.gethostname(), os.environ.get(NODE, ""))


def named(host: str, node: str) -> str:
    """Return the name of a host for messages: a pod's with that of its node."""
    return f"{host} on node {node}" if node else host


def dial(ticket: Ticket) -> Line:
    """Return a connection to the driver. Raises ConnectionError, which names both ends."""
    try:
        connection = socket.create_connection((ticket.host, ticket.port), DIAL_SECONDS)
        lasting(connection)
        line = Line(connection, Security(ticket.certificate, server=False) if ticket.certificate else None)
    except OSError as error:
        raise ConnectionError(_unreached(ticket.host, ticket.port, error)) from None
    try:
        if not line.agreed:
            line.agree(DIAL_SECONDS)
    except OSError as error:
        line.close()
        raise ConnectionError(
            f"{host_name()}: who answers at {joined(ticket.host, ticket.port)} is not the driver of this "
            f"ticket ({error})"
        ) from None
    return line


def continue_when_parent_ends() -> None:
    """Let this process, if it is stopped (SIGSTOP), go on when its parent ends: it sees that, and ends its agent. So
    ending what holds the place of a supervisor that does not answer ends its agent too."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _unreached(host: str, port: int, error: OSError) -> str:
    return f"{host_name()} {UNREACHED} at {joined(host, port)} ({error})"


def _lack(prepare: Prepare) -> str:
    """Return what this host lacks of the frameworks that a run requires; empty: nothing."""
    paths = [path for path in prepare.env.get("PYTHONPATH", "").split(os.pathsep) if path]  # of agents alone
    missing = [
        name
        for name in prepare.required
        if importlib.util.find_spec(name) is None and importlib.machinery.PathFinder.find_spec(name, paths) is None
    ]
    if not missing:
        return ""
    return (
        f"{host_name()} has no {' and no '.join(missing)} in {sys.executable}, which the run's recipe imports: install "
        "it there, or leave this host out"
    )


def _echo(data: bytes) -> None:
    """Print this, as far as standard output takes it at once: whoever reads it must not hold up an agent."""
    with contextlib.suppress(OSError):
        while data and select.select([], [1], [], 0)[1]:
            data = data[os.write(1, data[: select.PIPE_BUF]) :]


class _AgentRunner:
    """Owner of one agent at a time."""

    def __init__(
        self, prepare: Prepare | None, line: Line, holder: Holder, gpus: list[str], *, echo: bool = False
    ) -> None:
        self._prepare, self._line, self._holder, self._gpus, self._echo = prepare, line, holder, gpus, echo
        self.fault = ""
        """Why it cannot work for this driver; empty: it can."""
        self._wait = selectors.DefaultSelector()
        self._wait.register(line, selectors.EVENT_READ, self._receive)
        self._wait.register(holder.task, selectors.EVENT_READ, self._task_ended)
        self._holder_watch = watched(holder.process)
        if self._holder_watch >= 0:
            self._wait.register(self._holder_watch, selectors.EVENT_READ, self._holder_ended)
        self._lines = Lines()
        self._slot = -1
        self._agent: Process | None = None
        self._output = -1
        """Where what the agent prints comes."""
        self._begun = False
        """Whether the driver was told that the agent's process is there."""
        self._templates = Templates(lambda text: self._send(HostWarning(text)))
        self._kills = oom.Kills()
        """It counts since the agent began: earlier kills are not of this agent."""
        self._counter: tuple[Path, int] | None = None
        self._open = True
        self._left = Departure.CUT

    def run(self) -> Departure:
        """Run until it leaves; return why."""
        try:
            if self._prepare is not None:
                self._check(self._prepare)
            while self._open:
                agent = self._agent
                notified = self._holder_watch >= 0 and (agent is None or (agent.descriptor >= 0 and agent.pid > 0))
                for key, _ in self._wait.select(None if notified else POLL_SECONDS):
                    key.data()
                if not notified:
                    self._look()
                if self._holder_watch < 0 and ended(self._holder.process):
                    self._holder_ended()
        finally:
            self._end()
            self._templates.kill()
            self._wait.close()
            if self._holder_watch >= 0:
                os.close(self._holder_watch)
        return self._left

    def _leave(self, left: Departure, reason: str = "") -> None:
        """Leave. `reason`: what the driver is to know; "": it knows why."""
        if not self._open:
            return
        self._left = left
        if reason:
            self._send(Leaving(reason, left is Departure.UNFIT))
        self._open = False

    def _holder_ended(self) -> None:
        self._leave(Departure.UNHELD, f"its {self._holder.process_name} on {host_name()} ended")

    def _task_ended(self) -> None:
        """Leave, for the reason that has come. A process that dies ends its task too, which may be seen first: the
        process is the cause then."""
        try:
            reason = self._holder.task.recv(BLOCK).decode()
        except OSError:
            reason = ""
        if reason:
            self._leave(Departure.UNHELD, reason)
            return
        deadline = time.monotonic() + CAUSE_SECONDS
        while not (process_ended := ended(self._holder.process)) and time.monotonic() < deadline:
            time.sleep(0.02)  # polled, as the system may have no descriptors of processes
        cause = self._holder.process_name if process_ended else self._holder.task_name
        self._leave(Departure.UNHELD, f"its {cause} on {host_name()} ended")

    def _end_task(self) -> None:
        """Let the task end alone."""
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._wait.unregister(self._holder.task)
            self._holder.task.sendall(b".")
        self._holder.task.close()

    def _receive(self) -> None:
        """Do as the driver orders; the connection's end is an order to leave."""
        try:
            data = self._line.receive()
        except OSError:
            data = b""
        if data is None:
            return
        if not data:
            self._leave(Departure.CUT)
            return
        try:
            for text in self._lines.add(data):
                self._handle(order_of(text))
        except UNREADABLE as error:
            reason = f"its supervisor on {host_name()} cannot read what the driver orders: {error}"
            self._leave(Departure.CUT, escaped(reason))

    def _handle(self, order: Order) -> None:
        match order:
            case Prepare():
                self._prepare = order
                if order.warm and not self._templates.started:
                    self._templates.start()
                self._check(order)
                self._reach(order)
            case Start():
                self._start(order.slot)
            case EndAgent() if order.slot == self._slot:
                self._end()
                self._send(Free(order.slot))
            case EndTask():
                self._end_task()
            case Leave():
                self._leave(Departure.ORDERED)
            case Refuse(reason=reason):
                self.fault = escaped(reason)
                self._leave(Departure.UNFIT)
            case EndAgent():
                pass  # of a slot whose agent is not here any more

    def _check(self, prepare: Prepare) -> None:
        """Leave where no agent could work."""
        if fault := _lack(prepare):
            self.fault = fault
            self._leave(Departure.UNFIT, fault)

    def _reach(self, prepare: Prepare) -> None:
        """Leave where agents cannot reach the driver: they would dial for ever."""
        if not self._open:
            return
        host, port = parted(json.loads(prepare.card)["address"])
        try:
            socket.create_connection((host, port), DIAL_SECONDS).close()
        except OSError as error:
            self._leave(Departure.UNREACHED, _unreached(host, port, error))

    def _start(self, slot: int) -> None:
        self._end()
        if not self._open:
            return
        if self._prepare is None:
            self._send(AgentEnded(slot, "the driver has not said what its agents get"))
            return
        self._slot = slot
        self._launch(self._prepare, fork=True)

    def _launch(self, prepare: Prepare, *, fork: bool) -> None:
        """Start the agent's process: where it may be a fork and there are templates, of one of them."""
        variables = agent_environment(prepare.threads, ",".join(self._gpus), prepare.env)
        output = -1
        try:
            output, printed = os.pipe()
            with os.fdopen(printed, "wb") as log:
                agent: Process | None = None
                if fork:
                    agent = self._templates.fork(prepare.frameworks, prepare.threads, variables, log)
                if agent is None:
                    agent = Spawned(AGENT, variables, log, session=True)
        except OSError as error:
            if output >= 0:
                os.close(output)
            self._send(AgentEnded(self._slot, escaped(f"no process could be started: {error}")))
            return
        self._agent, self._output, self._begun = agent, output, False
        self._kills = oom.Kills()
        self._counter = self._kills.watch(agent.counted)  # before its card, without which it does nothing
        card = json.loads(prepare.card) | {"slot": self._slot}
        with contextlib.suppress(BrokenPipeError):
            agent.stdin.write(json.dumps(card).encode() + b"\n")
            agent.stdin.flush()
        os.set_blocking(output, False)
        self._wait.register(output, selectors.EVENT_READ, self._printed)
        if agent.descriptor >= 0:
            self._wait.register(agent.descriptor, selectors.EVENT_READ, self._look)
        self._look()

    def _printed(self) -> None:
        """Pass on what the agent printed."""
        if self._agent is None:
            return
        try:
            data = os.read(self._output, BLOCK)
        except BlockingIOError:
            return
        if data:
            self._pass_on(data)
        else:
            with contextlib.suppress(KeyError):
                self._wait.unregister(self._output)

    def _pass_on(self, data: bytes) -> None:
        """Send what the agent printed to the driver, and print it."""
        self._send(Printed(self._slot, data.decode(errors="replace")))
        if self._echo:
            _echo(data)

    def _look(self) -> None:
        """Report that the agent's process has begun or ended. An agent that its template refuses is started without a
        template."""
        agent = self._agent
        if agent is None:
            return
        code = agent.poll()
        if agent.refused and self._prepare is not None:
            slot = self._slot
            self._end()
            self._slot = slot
            self._launch(self._prepare, fork=False)
            return
        if agent.pid and not self._begun:
            self._begun = True
            self._send(AgentBegan(self._slot))
        if code is None:
            return
        slot, reason = self._slot, agent.story(code, f" on {host_name()}")
        memory = code == -signal.SIGKILL and self._kills.killed(self._counter)
        self._end()
        self._send(AgentEnded(slot, f"{reason}{oom.RAN_OUT if memory else ''}", memory))

    def _end(self) -> None:
        """End the agent, and all that it started; pass on its last output."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        if agent.descriptor >= 0:
            self._wait.unregister(agent.descriptor)
        agent.kill()
        while not agent.wait(END_SECONDS):
            self._templates.kill()
        with contextlib.suppress(KeyError):
            self._wait.unregister(self._output)
        agent.close()
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self._output, BLOCK):
                self._pass_on(data)
        os.close(self._output)
        self._output = self._slot = -1

    def _send(self, report: Report) -> None:
        try:
            self._line.send(line_of(report))
        except OSError:
            self._open = False
