"""A classic Spark session played by this host's processes: jobs of one task each, on so many cores; tags, and what
Spark does when a job is cancelled: it fails at once, and its Python worker is killed a moment later.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import cloudpickle

KILL_SECONDS = 0.3
"""From the cancelling of a job to the killing of its Python worker; Spark takes up to 4."""
TASK = """
import sys, cloudpickle
list(cloudpickle.load(sys.stdin.buffer)(iter([0])))
"""


class Context:
    """A SparkContext.

    Args:
        cores: tasks that may run at a time; the others wait.
    """

    def __init__(self, cores: int) -> None:
        self._cores = threading.Semaphore(cores)
        self._jsc = self
        self._lock = threading.Lock()
        self._own = threading.local()
        self.tasks: list[subprocess.Popen[bytes]] = []
        """Python workers, of all jobs that ever had a core."""
        self._jobs: dict[threading.Event, tuple[set[str], list[subprocess.Popen[bytes]]]] = {}

    def sc(self) -> Context:
        return self

    def isStopped(self) -> bool:
        return False

    def setJobDescription(self, text: str) -> None:
        pass

    def addJobTag(self, tag: str) -> None:
        self._own.tags = {*getattr(self._own, "tags", ()), tag}

    def parallelize(self, rows: list[int], parts: int) -> Context:
        return self

    def mapPartitions(self, function: Callable[[Any], Any]) -> Job:
        return Job(self, function, set(self._own.tags))

    def cancelJobsWithTag(self, tag: str) -> None:
        with self._lock:
            chosen = [(event, tasks) for event, (tags, tasks) in self._jobs.items() if tag in tags]
        for event, tasks in chosen:
            event.set()
            for task in tasks:
                threading.Timer(KILL_SECONDS, task.kill).start()

    def run(self, function: Callable[[Any], Any], tags: set[str]) -> None:
        cancelled, tasks = threading.Event(), list[subprocess.Popen[bytes]]()
        with self._lock:
            self._jobs[cancelled] = tags, tasks
        try:
            while not self._cores.acquire(timeout=0.02):
                if cancelled.is_set():
                    raise RuntimeError("[SPARK_JOB_CANCELLED] Job cancelled")
            task = subprocess.Popen([sys.executable, "-c", TASK], stdin=subprocess.PIPE)
            threading.Thread(target=self._freed, args=(task,)).start()
            assert task.stdin is not None
            with task.stdin as pipe:
                pipe.write(cloudpickle.dumps(function))
            tasks.append(task)
            self.tasks.append(task)
            while task.poll() is None:
                if cancelled.wait(0.02):
                    raise RuntimeError("[SPARK_JOB_CANCELLED] Job cancelled")
            if task.returncode:
                raise RuntimeError(f"Python worker exited unexpectedly: {task.returncode}")
        finally:
            with self._lock:
                del self._jobs[cancelled]

    def _freed(self, task: subprocess.Popen[bytes]) -> None:
        """A core is free when its task has ended, not when its job has."""
        task.wait()
        self._cores.release()

    def wait_for_tasks(self, seconds: float = 60.0) -> None:
        """Until none runs."""
        end = time.monotonic() + seconds
        for task in list(self.tasks):
            task.wait(max(0.1, end - time.monotonic()))


class Job:
    """What `mapPartitions` gives."""

    def __init__(self, context: Context, function: Callable[[Any], Any], tags: set[str]) -> None:
        self._context, self._function, self._tags = context, function, tags

    def collect(self) -> None:
        self._context.run(self._function, self._tags)


class Session:
    """A SparkSession."""

    range = conf = createDataFrame = None

    def __init__(self, cores: int) -> None:
        self.sparkContext = Context(cores)
