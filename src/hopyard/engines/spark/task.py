"""What Spark alone has of a supervisor: the task that holds its place, and the Python worker that it is a fork of.

A supervisor is a fork of the task's Python worker, in a session of its own: 10 ms, where a new interpreter that imports
this module took 160–270 ms on the same busy machine. It is tied to the executor's JVM and to the task; where the driver
lets the task go, its slot is free for other jobs of the session. Of pyspark it knows the GPUs of its task and the
folder of Spark's files.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from hopyard.engines.supervisors.line import Line
from hopyard.engines.supervisors.supervisor import Holder, attend, continue_when_parent_ends, dial
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.sparkapi import SPARK_FILES
from hopyard.system.network import java_above

_OF_SPARK = ("PYTHONHASHSEED", "PYTHONSAFEPATH", "SPARK_AUTH_SOCKET_TIMEOUT")
"""Variables of Spark's own Python workers. The first is 0 there, and none elsewhere; with the second a script that the
user's code starts would not find the modules beside it; others hold secrets."""


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
    line = dial(ticket)
    task_end, supervisor_end = socket.socketpair()
    with task_end:
        with contextlib.closing(line), supervisor_end, warnings.catch_warnings():
            # Python 3.12 warns of a fork beside threads (pyarrow's) for their locks; a supervisor does not call them
            warnings.simplefilter("ignore", DeprecationWarning)
            supervisor = os.fork()
            if supervisor == 0:
                _run_detached(ticket, line, supervisor_end, gpus, executor)
        if not task_end.recv(1):
            os.waitpid(supervisor, 0)


def _run_detached(ticket: Ticket, line: Line, task: socket.socket, gpus: list[str], executor: int) -> NoReturn:
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
            if descriptor not in (2, null, line.fileno(), task.fileno()):
                with contextlib.suppress(OSError):  # the descriptor of this listing is closed by now
                    os.fstat(descriptor)
                    os.dup2(null, descriptor, inheritable=False)
        _forget_worker()
        _, fault = attend(ticket, line, Holder(executor, task, "executor", "Spark task"), gpus)
        if fault:
            print(fault, file=sys.stderr, flush=True)  # noqa: T201 - the executor's log
        code = 0
    except BaseException:  # noqa: BLE001 - goes to the executor's log; nothing above here may run twice
        traceback.print_exc()
    finally:
        os._exit(code)


def _forget_worker() -> None:
    """Remove what Spark sets for its own Python workers from the environment, which agents inherit."""
    for name in list(os.environ):
        if name in _OF_SPARK or name.startswith("PYTHON_WORKER_FACTORY"):
            del os.environ[name]


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
