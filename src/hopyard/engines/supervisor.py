"""The supervisor that a Spark task starts: it runs one agent, as the driver orders; the task holds the slot in Spark.

A supervisor dials the driver (one plain socket, let in by a token that came with the task) and reports where it is
(`messages.py`). The driver names a slot; the supervisor starts an agent for it, passes on what the agent prints, and
reports when it ended. Whatever ends first ends the rest at once: the connection (the driver is gone, or has no work),
the JVM of the executor, the task, the agent. Only where the driver orders so does the task end alone: its slot is then
free for other jobs, and supervisor and agent go on, until a task of a second supervisor holds a slot for them again.

A supervisor is a fork of the task's Python worker, in a session of its own: 10 ms, where a new interpreter that imports
this module took 160–270 ms on the same busy machine. It knows nothing of pyspark but the GPUs of its task, and not what
agents do.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hopyard.core.facts import UNREADABLE
from hopyard.engines.local import AGENT, THREADS, python_path, story
from hopyard.engines.messages import (
    FORMAT,
    End,
    Ended,
    EndTask,
    Free,
    Hello,
    Leave,
    Leaving,
    Lines,
    Order,
    Printed,
    Report,
    Start,
    line_of,
    order_of,
)
from hopyard.system import oom
from hopyard.system.network import java_above, keep_alive
from hopyard.system.processes import ended, watched
from hopyard.text import escaped

DIAL_SECONDS = 10.0
"""An executor that has not connected after this time cannot reach the driver."""
UNREACHED = "cannot reach the driver"
"""Part of the error of an executor whose driver cannot be dialled."""
BLOCK = 1 << 16
"""Bytes of an agent's output that go to the driver at once."""
CAUSE_SECONDS = 0.5
"""An executor that ends within this time after its task is named as the cause."""
POLL_SECONDS = 0.2
"""Time between two looks at processes, where the system has no descriptors of them."""
SPARK_FILES = "HOPYARD_SPARK_FILES"
"""Variable in which agents get the folder of Spark's files."""
_OF_SPARK = ("PYTHONHASHSEED", "PYTHONSAFEPATH", "SPARK_AUTH_SOCKET_TIMEOUT")
"""Variables of Spark's own Python workers. The first is 0 there, and none elsewhere; with the second a script that the
user's code starts would not find the modules beside it; others hold secrets."""
_PR_SET_PDEATHSIG = 1
"""Number of an option of `prctl` on Linux."""
_SILENT = 20
"""Seconds after which a connection to a host that vanished counts as cut."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a supervisor needs. It travels in the task; its keys are in no name, plan or log."""

    host: str
    """The host by which supervisors dial the driver."""
    port: int
    token: str = field(repr=False)
    card: bytes = field(repr=False)
    """JSON of a `core.messages.Card`, for any slot."""
    threads: int
    env: Mapping[str, str] = field(repr=False)
    job: int = 0
    """Number of the Spark job whose task this is."""


def supervise_in_rdd(ticket: Ticket) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for `mapPartitions` of an RDD: one task runs one supervisor, and gives a row when it leaves."""

    def hopyard_slot(rows: Iterator[Any]) -> Iterator[Any]:
        yield _supervise(ticket, rows)

    return hopyard_slot


def supervise(ticket: Ticket) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the same for `mapInArrow`, which is all that Spark Connect has."""

    def hopyard_slot(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.record_batch([pa.array([_supervise(ticket, batches)])], names=["host"])

    return hopyard_slot


def _supervise(ticket: Ticket, rows: Iterator[Any]) -> str:
    """Stay in a task until the supervisor leaves; return the host's name."""
    for _ in rows:
        pass
    os.environ[SPARK_FILES] = _files()
    hold(ticket, _gpus(), java_above() or os.getppid())
    return socket.gethostname()


def hold(ticket: Ticket, gpus: list[str], executor: int) -> None:
    """Start a supervisor, and wait: until it has ended, or lets this task go.

    Args:
        ticket: the driver's.
        gpus: addresses of the GPUs that Spark gave to this task.
        executor: process that this one belongs to; its end ends all.

    Raises:
        ConnectionError: the driver cannot be dialled.
    """
    connection = dial(ticket)
    task_end, supervisor_end = socket.socketpair()
    with task_end:
        with connection, supervisor_end, warnings.catch_warnings():
            # Python 3.12 warns of a fork beside threads (pyarrow's) for their locks; a supervisor does not call them
            warnings.simplefilter("ignore", DeprecationWarning)
            supervisor = os.fork()
            if supervisor == 0:
                _run_detached(ticket, connection, supervisor_end, gpus, executor)
        if not task_end.recv(1):
            os.waitpid(supervisor, 0)


def _run_detached(
    ticket: Ticket, connection: socket.socket, task: socket.socket, gpus: list[str], executor: int
) -> NoReturn:
    """Run the supervisor in the forked process. No descriptor of the worker's may stay open: its JVM waits for the end
    of some. Each is redirected to /dev/null instead of being closed, as objects that own it live on here, and would
    close one of ours by its number."""
    code = 1
    try:
        os.setsid()  # what Spark does to its worker, and to all of its group, is not done to this process
        continue_when_parent_ends()
        gc.freeze()  # leave the pages of memory that are shared with the worker alone
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if descriptor not in (2, null, connection.fileno(), task.fileno()):
                with contextlib.suppress(OSError):  # the descriptor of this listing is closed by now
                    os.fstat(descriptor)
                    os.dup2(null, descriptor, inheritable=False)
        attend(ticket, connection, task, gpus, executor)
        code = 0
    except BaseException:  # noqa: BLE001 - goes to the executor's log; nothing above here may run twice
        traceback.print_exc()
    finally:
        os._exit(code)


def continue_when_parent_ends() -> None:
    """Let this process, if it is stopped (SIGSTOP), go on when its task ends: it sees that, and ends its agent. So
    cancelling a job also ends the agent of a supervisor that does not answer."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def attend(ticket: Ticket, connection: socket.socket, task: socket.socket, gpus: list[str], executor: int) -> None:
    """Run agents until the driver orders to leave, or until it, the executor or the task is gone.

    Args:
        ticket: the driver's.
        connection: to the driver.
        task: to the task; its end is the task's, and one byte lets the task go.
        gpus: addresses of the GPUs that Spark gave to the task.
        executor: process that all of them belong to.
    """
    with connection, task:
        host = socket.gethostname()
        hello = Hello(ticket.token, host, f"{host}-{executor}", tuple(gpus), ticket.job, FORMAT)
        with contextlib.suppress(OSError):  # the driver has closed; the next look at the connection shows it
            connection.sendall(line_of(hello))
        _AgentRunner(ticket, connection, task, gpus, executor).run()


def dial(ticket: Ticket) -> socket.socket:
    """Return a connection to the driver. Raises ConnectionError, which says what to set."""
    try:
        connection = socket.create_connection((ticket.host, ticket.port), DIAL_SECONDS)
    except OSError as error:
        raise ConnectionError(f"{socket.gethostname()} {UNREACHED} at {ticket.host}:{ticket.port} ({error})") from None
    lasting(connection)
    return connection


def lasting(connection: socket.socket) -> None:
    """Let the kernel find out when the other side's host has vanished."""
    connection.settimeout(None)
    keep_alive(connection)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT * 1000)


class _AgentRunner:
    """Owner of one agent at a time."""

    def __init__(
        self, ticket: Ticket, connection: socket.socket, task: socket.socket, gpus: list[str], executor: int
    ) -> None:
        self._ticket, self._connection, self._task, self._gpus = ticket, connection, task, gpus
        self._wait = selectors.DefaultSelector()
        self._wait.register(connection, selectors.EVENT_READ, self._receive)
        self._wait.register(task, selectors.EVENT_READ, self._task_ended)
        self._executor, self._executor_watch = executor, watched(executor)
        if self._executor_watch >= 0:
            self._wait.register(self._executor_watch, selectors.EVENT_READ, lambda: self._leave("executor"))
        self._lines = Lines()
        self._slot = -1
        self._agent: subprocess.Popen[bytes] | None = None
        self._kills = oom.Kills()
        """It counts since the agent began: earlier kills are not of this agent."""
        self._counter: tuple[Path, int] | None = None
        self._agent_watch = -1
        self._open = True

    def run(self) -> None:
        try:
            while self._open:
                notified = self._executor_watch >= 0 and (self._agent_watch >= 0 or self._agent is None)
                for key, _ in self._wait.select(None if notified else POLL_SECONDS):
                    key.data()
                if self._agent_watch < 0 and self._agent is not None and self._agent.poll() is not None:
                    self._ended()
                if self._executor_watch < 0 and ended(self._executor):
                    self._leave("executor")
        finally:
            self._end()
            self._wait.close()
            if self._executor_watch >= 0:
                os.close(self._executor_watch)

    def _leave(self, cause: str = "") -> None:
        """Leave because `cause` ended; "": the driver knows why."""
        if cause and self._open:
            self._send(Leaving(f"its {cause} on {socket.gethostname()} ended"))
        self._open = False

    def _task_ended(self) -> None:
        """Leave. An executor that dies ends its task too, which may be seen first: the executor is the cause then."""
        deadline = time.monotonic() + CAUSE_SECONDS
        while not (executor_ended := ended(self._executor)) and time.monotonic() < deadline:
            time.sleep(0.02)  # polled, as the system may have no descriptors of processes
        self._leave("executor" if executor_ended else "Spark task")

    def _end_task(self) -> None:
        """Let the task end alone."""
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._wait.unregister(self._task)
            self._task.sendall(b".")
        self._task.close()

    def _receive(self) -> None:
        """Do as the driver orders; the connection's end is an order to leave."""
        try:
            data = self._connection.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._leave()
            return
        try:
            for text in self._lines.add(data):
                self._handle(order_of(text))
        except UNREADABLE as error:
            self._send(
                Leaving(
                    escaped(f"its supervisor on {socket.gethostname()} cannot read what the driver orders: {error}")
                )
            )
            self._leave()

    def _handle(self, order: Order) -> None:
        match order:
            case Start():
                self._start(order.slot)
            case End() if order.slot == self._slot:
                self._end()
                self._send(Free(order.slot))
            case EndTask():
                self._end_task()
            case Leave():
                self._leave()
            case End():
                pass  # of a slot whose agent is not here any more

    def _start(self, slot: int) -> None:
        self._end()
        self._slot = slot
        try:
            self._agent = agent = subprocess.Popen(
                AGENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment(self._ticket, self._gpus),
                start_new_session=True,  # what it starts ends with it, by its process group
            )
        except OSError as error:
            self._send(Ended(slot, escaped(f"no process could be started: {error}")))
            return
        assert agent.stdin is not None and agent.stdout is not None
        self._kills = oom.Kills()
        self._counter = self._kills.watch(agent.pid)  # before its card, without which it does nothing
        card = json.loads(self._ticket.card) | {"slot": slot}
        with contextlib.suppress(BrokenPipeError):
            agent.stdin.write(json.dumps(card).encode() + b"\n")
            agent.stdin.flush()
        os.set_blocking(agent.stdout.fileno(), False)
        self._wait.register(agent.stdout, selectors.EVENT_READ, self._printed)
        self._agent_watch = watched(agent.pid)
        if self._agent_watch >= 0:
            self._wait.register(self._agent_watch, selectors.EVENT_READ, self._ended)

    def _printed(self) -> None:
        """Pass on what the agent printed."""
        agent = self._agent
        if agent is None or agent.stdout is None:
            return
        try:
            data = os.read(agent.stdout.fileno(), BLOCK)
        except BlockingIOError:
            return
        if data:
            self._send(Printed(self._slot, data.decode(errors="replace")))
        else:
            self._wait.unregister(agent.stdout)

    def _ended(self) -> None:
        """The agent ended by itself, or was killed."""
        if self._agent is None:
            return
        slot, pid, code = self._slot, self._agent.pid, self._agent.wait()
        memory = code == -signal.SIGKILL and self._kills.killed(self._counter)
        self._end()
        reason = f"process {pid} on {socket.gethostname()} {story(code)}{oom.RAN_OUT if memory else ''}"
        self._send(Ended(slot, reason, memory))

    def _end(self) -> None:
        """End the agent, and all that it started; pass on its last output."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(agent.pid, signal.SIGKILL)
        agent.kill()
        agent.wait()
        assert agent.stdin is not None and agent.stdout is not None
        with contextlib.suppress(KeyError):
            self._wait.unregister(agent.stdout)
        if self._agent_watch >= 0:
            self._wait.unregister(self._agent_watch)
            os.close(self._agent_watch)
            self._agent_watch = -1
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(agent.stdout.fileno(), BLOCK):
                self._send(Printed(self._slot, data.decode(errors="replace")))
        with contextlib.suppress(BrokenPipeError):
            agent.stdin.close()
        agent.stdout.close()
        self._slot = -1

    def _send(self, report: Report) -> None:
        try:
            self._connection.sendall(line_of(report))
        except OSError:
            self._open = False


def environment(ticket: Ticket, gpus: list[str]) -> dict[str, str]:
    """Return the environment of an agent: this task's, without what Spark sets for its own Python workers."""
    variables = dict(os.environ)
    for name in list(variables):
        if name in _OF_SPARK or name.startswith("PYTHON_WORKER_FACTORY"):
            del variables[name]
    variables.update(dict.fromkeys(THREADS, str(ticket.threads)))
    variables["PYTHONPATH"] = python_path()
    variables["PYTHONUNBUFFERED"] = "1"
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        variables.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    variables.update(ticket.env)
    return variables


def _files() -> str:
    """Return the folder of the files that were sent by --files, --py-files, addFile and the like; "": there is none."""
    from pyspark import SparkFiles

    try:
        return os.path.abspath(SparkFiles.getRootDirectory())  # noqa: PTH100 - a text
    except AssertionError:  # this process is none of Spark's workers
        return ""


def _gpus() -> list[str]:
    from pyspark import TaskContext

    task: Any = TaskContext.get()
    gpus = task.resources().get("gpu") if task is not None else None
    return [] if gpus is None else list(gpus.addresses)
