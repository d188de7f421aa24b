"""The user's object of a program: wait for it, feed it, ask for its status, stop it."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hopyard.checks import flag, seconds, whole
from hopyard.core.programs.status import ProgramStatus
from hopyard.driver.interrupts import without_frames
from hopyard.driver.logs import LogStream, read_log
from hopyard.errors import SpecError
from hopyard.store.layout import Layout
from hopyard.text import escaped, shell_command, shown

if TYPE_CHECKING:
    from hopyard.driver.programs.feeds import Feeding
    from hopyard.driver.programs.loop import ProgramLoop

log = logging.getLogger(__name__)

DAY = 86_400
STREAM_SECONDS = 0.2
"""Time between two looks at what tasks print."""


_RUNNING: list[Program] = []
"""Programs of this process, so that one whose object was lost can be stopped. Those that are over leave it late."""


class Program:
    """A program that was launched.

    Leaving it as a context manager stops it. A process that ends without `wait()` ends its programs.

    Attributes:
        directory: where its journal, logs and checkpoints are.
    """

    def __init__(self, layout: Layout, loop: ProgramLoop, feeding: Feeding) -> None:
        self._layout = layout
        self._loop = loop
        self._feeding = feeding
        self._printed = LogStream({log: log.stat().st_size for log in layout.logs.glob("*.log")})
        self._printing_lock = threading.Lock()
        self.directory = layout.root
        _RUNNING[:] = [*Program.running(), self]

    def __repr__(self) -> str:
        return escaped(f"<Program {self._loop.spec.name} {self.directory} {self.status}>")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if type(error) is KeyboardInterrupt:
            self._interrupted()
            without_frames(error)
        else:
            self.stop()

    # ------------------------------------------------------------------------------------------------ its life

    @staticmethod
    def running() -> list[Program]:
        """Return the programs of this process that are not over, in the order in which they were launched."""
        _RUNNING[:] = [program for program in _RUNNING if not program.done]
        return list(_RUNNING)

    def wait(self, timeout: float | None = None, *, stream: bool = False) -> Program:
        """Wait until it is over. Ctrl-C here stops it.

        Args:
            timeout: seconds to wait at most; None: any number.
            stream: print what its tasks print, as it comes: each line behind the name of its task, control characters
                escaped. What was printed before is printed first.

        Returns:
            The program itself; its status is "completed", or "stopped".

        Raises:
            ProgramFailed: a task failed; names the first cause, its host and its log.
            ResourceError: the engine has no room for it.
            TimeoutError: it goes on.
        """
        if timeout is not None:
            timeout = seconds("wait(timeout=)", timeout, zero=True, none="for any")
        stream = flag("wait(stream=)", stream)
        try:
            is_over = self._wait_and_print(timeout) if stream else self._loop.wait_for(_ended, timeout)
        except KeyboardInterrupt as error:
            self._interrupted()
            if stream:
                self._print_logs()
            raise without_frames(error) from None
        if not is_over:
            raise TimeoutError(f"{self.directory}: not over after {timeout:g} seconds: {self._task_statuses()}")
        self._loop.check()
        return self

    def stop(self, grace: float = 0.0) -> None:
        """End it, and wait until nothing of it runs any more. No error when it is over.

        Args:
            grace: seconds that tasks have to end by themselves, once `ctx.stop_requested` is true.
        """
        grace = seconds("stop(grace=)", grace, zero=True, most=DAY)
        self._loop.stop("stopped by the user", grace)
        if not self._loop.wait_for(_ended, grace + 30.0):
            log.warning(
                "%s: not over %.0f seconds after it was stopped: %s", self.directory, grace + 30, self._task_statuses()
            )

    @property
    def status(self) -> str:
        """One of "running" (also while it waits for slots), "completed", "failed" and "stopped" (by `stop`)."""
        return _status(self._loop.status)

    @property
    def done(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._loop.status.ended

    def summary(self) -> dict[str, Any]:
        """Return "directory", "status", "restarts", "cause", and as "tasks" of each task its role, index, status, host,
        process of its agent, log, and last reported values and step (None: none yet); no tasks before all slots are
        there."""
        status, order = self._loop.status, list(self._loop.spec.roles)
        tasks = [
            {
                "role": task.task.role,
                "index": task.task.index,
                "status": task.status,
                "host": task.host,
                "agent": task.agent,
                "log": str(self._layout.log(task.task.slot)),
                "values": dict(task.values),
                "step": task.step,
            }
            for task in sorted(status.tasks, key=lambda task: (order.index(task.task.role), task.task.index))
        ]
        cause = status.cause or ("" if status.error is None else str(status.error))
        return {
            "directory": str(self.directory),
            "status": _status(status),
            "restarts": status.restart,
            "cause": cause,
            "tasks": tasks,
        }

    def logs(self, role: str | None = None, index: int | None = None) -> str:
        """Return what its tasks printed, all or those of a role.

        Raises:
            SpecError: there is no such task.
        """
        if role is not None and not isinstance(role, str):
            raise SpecError(f"logs(role=) must be the name of a role, or None for all, got {shown(role)}")
        if index is not None:
            index = whole("logs(index=)", index, 0)
        counts = {name: wanted.count for name, wanted in self._loop.spec.wanted.items()}
        tasks = [(name, number) for name, count in counts.items() for number in range(count)]
        if not any(role in (None, name) and index in (None, number) for name, number in tasks):
            roles = ", ".join(f"{count} {name}" for name, count in counts.items())
            raise SpecError(f"logs({shown(role)}, {index!r}): no such task; there are {roles}, counted from 0")
        return "".join(
            read_log(self._layout.log(record.task.slot))
            for record in self._loop.status.tasks
            if role in (None, record.task.role) and index in (None, record.task.index)
        )

    def tensorboard_url(self, timeout: float = 60.0) -> str:
        """Return the URL at which its TensorBoard listens, once it is up; empty when it does not start, which is logged
        with the reason, is not up within `timeout`, or was not asked for. It ends with the program.

        Args:
            timeout: seconds to wait for it; 0: none.
        """
        timeout = seconds("tensorboard_url(timeout=)", timeout, zero=True)
        if self._loop.tensorboard:
            self._loop.wait_for(lambda now: now.tensorboard_url or now.tensorboard_error or now.ended, timeout)
        return self._loop.status.tensorboard_url

    # ------------------------------------------------------------------------------------------------ its rows

    def feed(
        self,
        data: Any,
        *,
        epochs: int = 1,
        name: str = "train",
        uneven: str = "allow",
        end: bool = True,
        timeout: float | None = 600.0,
        stream: bool = False,
    ) -> int:
        """Send rows to its chiefs and workers; returns when all are taken (with `end=False`: when all are there).

        Where the program may be started again (`max_restarts`), what was fed is kept until it ends, to go again then.

        Args:
            data: a Spark DataFrame, an RDD, a hy.Dataset, rows of Arrow (as in Dataset.arrow; read as a whole), a
                pandas DataFrame, a dict from column to array, or a list of rows (dicts become columns, others stay as
                they are).
            epochs: number of times that all rows are sent.
            name: of the feed, as in `ctx.feed(name)`.
            uneven: when workers have unequal shares: "allow" (the feed of each ends with its own rows), "min" (all end
                after as many batches as the least has, and drop the rest) or "cycle" (who runs out begins its own
                again).
            end: False: more rows will be fed under this name; `program.end_feed(name)` says when that was all.
            timeout: seconds that a worker may take no row at all while it has some to take; None: any.
            stream: print what the tasks print meanwhile, as `wait(stream=True)`.

        Returns:
            How many rows were sent, with those that the workers drop.

        Raises:
            ProgramFailed: a worker failed; with *its* error.
            FeedError: the rows cannot be given exactly once, or no worker takes them.
        """
        with self._printing() if flag("feed(stream=)", stream) else contextlib.nullcontext():
            return self._feeding.feed(data, epochs=epochs, name=name, uneven=uneven, end=end, timeout=timeout)

    def infer(self, data: Any, *, schema: Any = None, name: str = "infer", timeout: float | None = 600.0) -> Any:
        """Send rows to its chiefs and workers, and get as many answers, in the order of the rows.

        Args:
            data: a DataFrame, or an RDD.
            schema: of the answers, as a DDL string or StructType, where `data` is a DataFrame.
            name: of the feed.
            timeout: seconds that a worker may take and answer no row at all while some wait for it; then the job that
                asks fails, and names the worker. None: any.

        Returns:
            A lazy DataFrame or RDD. Rows go when it is evaluated, while the program runs.
        """
        return self._feeding.infer(data, schema=schema, name=name, timeout=timeout)

    def end_feed(self, name: str = "train") -> None:
        """No more rows come under this name."""
        self._feeding.end(name)

    def _interrupted(self) -> None:
        """Stop it after Ctrl-C, and say how to go on."""
        if self._loop.status.ended:
            return
        self.stop()
        log.warning(
            "interrupted; the program in %s was stopped. `%s` shows what its tasks printed, and "
            "hy.launch(…, directory=%r, resume=True) goes on with its checkpoints",
            self._layout.shown,
            shell_command("logs", self._layout.shown),
            self._layout.shown,
        )

    def _wait_and_print(self, timeout: float | None) -> bool:
        """Wait until it is over, or for so many seconds, and print what its tasks print. Returns whether it is over."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            remaining = deadline - time.monotonic()
            is_over = self._loop.wait_for(_ended, max(0.0, min(remaining, STREAM_SECONDS)))
            self._print_logs()
            if is_over or remaining <= 0:
                return is_over

    @contextlib.contextmanager
    def _printing(self) -> Iterator[None]:
        """Print what tasks print, in a thread, while the block runs."""
        is_over = threading.Event()

        def work() -> None:
            with contextlib.suppress(OSError):  # nobody reads the output any more: `wait` says so
                while not is_over.wait(STREAM_SECONDS):
                    self._print_logs()
                self._print_logs()

        thread = threading.Thread(target=work, name="hopyard-stream", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _print_logs(self) -> None:
        """Print what tasks have printed since the last time."""
        with self._printing_lock:
            status = self._loop.status
            logs = [(record.task.name, self._layout.log(record.task.slot)) for record in status.tasks]
            for name, line in self._printed.lines(logs, status.ended):
                print(f"{name}: {line}", flush=True)  # noqa: T201 - asked for

    def _task_statuses(self) -> str:
        tasks = self.summary()["tasks"]
        return ", ".join(f"{task['role']} {task['index']} {task['status']}" for task in tasks) or "no task has a slot"


def _status(status: ProgramStatus) -> str:
    return "failed" if status.error is not None else status.status


def _ended(status: ProgramStatus) -> bool:
    return status.ended
